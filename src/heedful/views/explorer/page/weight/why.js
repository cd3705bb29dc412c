// Why a weight is as large as it is, in a sentence or two.
import { percent } from "../number_format.js";
import { number } from "../wire.js";

/** @import { Answer } from "../types.js" */

/**
 * @param {Answer} made what the source says of one weight
 * @param {number} at its key
 * @param {(key: number) => string} name a key's token and position
 * @returns {string[]} sentences
 */
export function why(made, at, name) {
  if (made.hidden) return ["The mask hides this key from the query, so it can get nothing."];
  const found = [];
  if (made.seen === 1 && made.sink == null)
    found.push("The query may see no other key, so this one gets the whole row.");
  else found.push(beside(made, at, name));
  const sum = summed(made);
  if (sum) found.push(sum);
  const added = number(made.bias);
  if (Math.abs(added) > 0.5)
    found.push(`The bias ${added > 0 ? "adds" : "takes"} ${Math.abs(added).toFixed(2)}.`);
  if (made.sink != null) found.push(learned(made));
  return found.filter(Boolean);
}

/** How it stands beside the others of its row. @param {Answer} made @param {number} at @param {(key: number) => string} name */
function beside(made, at, name) {
  const [keys, scores] = [made.rivals.data, made.scores.data];
  const other = keys[0] === at ? 1 : 0;
  if (other >= keys.length) return "";
  const gap = number(made.score) - scores[other];
  const who = name(keys[other]);
  if (made.rank > 1)
    return `Its score is ${(-gap).toFixed(2)} below the best one, that of ${who}, which therefore gets ${times(Math.exp(-gap))} its weight.`;
  if (gap < 0.005) return `${who} has the same score, and the same weight.`;
  const left =
    Math.exp(-gap) < 0.001
      ? "less than 0.1\u00a0%"
      : `e^−${gap.toFixed(2)} = ${percent(Math.exp(-gap))}`;
  return `The next key, ${who}, scores ${gap.toFixed(2)} lower, which leaves it ${left} of this weight.`;
}

/** @param {number} factor */
function times(factor) {
  if (factor > 1e6) return "more than a million times";
  return `${factor < 10 ? factor.toFixed(1) : Math.round(factor).toLocaleString("en")} times`;
}

/** Which dimension the score is made of. @param {Answer} made */
function summed(made) {
  const products = made.products.data;
  const sum = number(made.product);
  if (products.length < 2 || Math.abs(sum) < 1e-6) return "";
  /** @type {number[]} positive: towards the sum */
  const pulls = Array.from(products, (product) => product * Math.sign(sum));
  const [best, against] = [Math.max(...pulls), Math.min(...pulls)].map((x) => pulls.indexOf(x));
  const share = products[best] / sum;
  const all = sum > 0 ? "query · key" : "query · key (which is negative)";
  if (share <= 1) return `Dimension ${best} alone gives ${percent(share)} of ${all}.`;
  const back =
    pulls[against] < 0
      ? `, and others take it back, dimension ${against} most: ${signed(products[against])}`
      : "";
  return `Dimension ${best} alone gives ${signed(products[best])} of the ${signed(sum)}${back}.`;
}

/** @param {number} value */
const signed = (value) => value.toFixed(2).replace("-", "−");

/** What the model's own sink takes. @param {Answer} made */
function learned(made) {
  const share = Math.exp(number(made.sink) - number(made.log_sum_exp));
  return `The learned sink takes ${percent(share)} of the row.`;
}
