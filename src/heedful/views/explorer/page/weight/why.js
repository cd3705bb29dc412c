// Sentences that explain why a weight is large or small.
import { percent } from "../number_format.js";
import { number } from "../wire.js";

/** @import { Answer } from "../types.js" */

/**
 * @param {Answer} answer the source's answer about the weight
 * @param {number} key the key of the weight
 * @param {(key: number) => string} name returns a key's token and position
 * @returns {string[]} sentences
 */
export function why(answer, key, name) {
  if (answer.hidden) return ["The mask excludes this key for the query, so its weight is zero."];
  if (Number.isNaN(number(answer.weight))) {
    const source = Number.isNaN(number(answer.score))
      ? "The score is not a number (NaN)"
      : "The score of another key of the row is not a number (NaN)";
    return [`${source}, so the softmax of the row has no value.`];
  }
  const sentences = [];
  if (answer.seen === 1 && answer.sink == null)
    sentences.push("The query may attend to no other key, so this key gets all the weight.");
  else sentences.push(comparison(answer, key, name));
  const sum = dimensionSentence(answer);
  if (sum) sentences.push(sum);
  const bias = number(answer.bias);
  if (Math.abs(bias) > 0.5)
    sentences.push(`The bias ${bias > 0 ? "adds" : "subtracts"} ${Math.abs(bias).toFixed(2)}.`);
  if (answer.sink != null) sentences.push(sinkSentence(answer));
  return sentences.filter(Boolean);
}

/** Compare the score with the best other score of the row. @param {Answer} answer @param {number} key @param {(key: number) => string} name */
function comparison(answer, key, name) {
  const [keys, scores] = [answer.rivals.data, answer.scores.data];
  const other = keys[0] === key ? 1 : 0;
  if (other >= keys.length) return "";
  const gap = number(answer.score) - scores[other];
  const otherName = name(keys[other]);
  if (answer.rank > 1)
    return `The score is ${(-gap).toFixed(2)} below the highest score, that of ${otherName}. ${-gap < 0.05 ? "The weights are nearly equal." : `That key therefore gets ${times(Math.exp(-gap))} this weight.`}`;
  if (gap < 0.005) return `${otherName} has the same score, and the same weight.`;
  const ratio =
    Math.exp(-gap) < 0.001
      ? "less than 0.1\u00a0%"
      : `e^−${gap.toFixed(2)} = ${percent(Math.exp(-gap))}`;
  return `The next key, ${otherName}, scores ${gap.toFixed(2)} lower, so its weight is ${ratio} of this one.`;
}

/** @param {number} factor */
function times(factor) {
  if (factor > 1e6) return "more than a million times";
  return `${factor < 10 ? factor.toFixed(1) : Math.round(factor).toLocaleString("en")} times`;
}

/** The dimension that contributes most to the score. @param {Answer} answer */
function dimensionSentence(answer) {
  const products = answer.products.data;
  const sum = number(answer.product);
  if (products.length < 2 || Math.abs(sum) < 1e-6) return "";
  /** @type {number[]} positive if the product has the sign of the sum */
  const pulls = Array.from(products, (product) => product * Math.sign(sum));
  const [best, against] = [Math.max(...pulls), Math.min(...pulls)].map((x) => pulls.indexOf(x));
  const share = products[best] / sum;
  const all = sum > 0 ? "query · key" : "query · key (which is negative)";
  if (share <= 1) return `Dimension ${best} alone contributes ${percent(share)} of ${all}.`;
  const opposite =
    pulls[against] < 0
      ? `; dimension ${against} opposes it most, with ${signed(products[against])}`
      : "";
  return `Dimension ${best} alone contributes ${signed(products[best])} to query · key, which is ${signed(sum)}${opposite}.`;
}

/** @param {number} value */
const signed = (value) => value.toFixed(2).replace("-", "−");

/** The share of the learned sink. @param {Answer} answer */
function sinkSentence(answer) {
  const share = Math.exp(number(answer.sink) - number(answer.log_sum_exp));
  return `The learned sink takes ${percent(share)} of the row.`;
}
