// A number written out as the sum, or the formula, that it is: parts of a line, each with its kind.
import { bracketed, one, written } from "./number_format.js";
import { terms } from "./stages.js";

/** @import { Cell, Formula, Stage } from "./types.js" */

/** @typedef {{text: string, kind: "left" | "right" | "sign" | "number" | "total"}} Part */

const [TERMS, SOME] = [12, 6]; // products that are all written out; of more the first and the last

/** @param {Part["kind"]} kind @param {string} text @returns {Part} */
const part = (kind, text) => ({ kind, text });

/** All of what makes a number, and the number; [] where it is what it is. @param {Cell} cell @returns {Part[]} */
export function sum(cell) {
  const { stage, head, row, column } = cell;
  const value = stage.at(head, row, column);
  const made = parts(cell);
  if (!made.length) return [];
  return [...made, part("sign", " = "), part("total", one(value))];
}

/** @param {Cell} cell @returns {Part[]} */
function parts({ stage, head, row, column }) {
  if (stage.factors.length) return products(stage, head, row, column);
  if (stage.kind === "weights" && stage.sources.length) return shares(stage, head, row, column);
  if (stage.kind === "masked" && stage.sources.length) return hidden(stage, head, row, column);
  const made = stage.how(head, row, column);
  return made ? filled(made) : [];
}

/** @param {Stage} stage @param {number} head @param {number} row @param {number} column */
function products(stage, head, row, column) {
  const { found, missing } = terms(stage, head, row, column);
  const bias = stage.bias(head, column);
  const [left, right] = [found.map((term) => term.left), found.map((term) => term.right)].map(
    written,
  );
  const shown =
    found.length > TERMS ? [...found.slice(0, SOME - 1), found[found.length - 1]] : found;
  // those that are left out, as one number that is what is missing of the sum
  const rest = found.length - shown.length + missing;
  const known = shown.reduce((total, term) => total + term.left * term.right, 0);
  const others = stage.at(head, row, column) - known - (bias ?? 0);
  /** @type {Part[]} */
  const line = [];
  shown.forEach((term, i) => {
    if (i) line.push(part("sign", " + "));
    if (rest && i === shown.length - 1)
      line.push(
        part("number", bracketed(one(others))),
        part("sign", ` (${rest.toLocaleString("en")} others) + `),
      );
    line.push(part("left", i ? bracketed(left(term.left)) : left(term.left)));
    line.push(part("sign", " · "), part("right", bracketed(right(term.right))));
  });
  if (bias !== null) line.push(part("sign", " + "), part("number", bracketed(one(bias))));
  return line;
}

/** A share of a softmax. @param {Stage} stage @param {number} head @param {number} row @param {number} column */
function shares(stage, head, row, column) {
  const [before] = stage.sources;
  const scores = before.columns.map((m) => before.at(head, row, m)).filter(Number.isFinite);
  const mine = before.at(head, row, column);
  if (!Number.isFinite(mine)) return [part("number", "e^(−∞) is 0")];
  const power = (/** @type {number} */ score) =>
    `e^${bracketed(score.toFixed(4).replace("-", "−"))}`;
  const line = [part("left", power(mine)), part("sign", " / (")];
  const shown = scores.slice(0, TERMS);
  shown.forEach((score, i) => {
    line.push(part("sign", i ? " + " : ""), part("right", power(score)));
  });
  const left =
    before.shape[before.shape.length - 1] - before.columns.length + scores.length - shown.length;
  line.push(part("sign", left ? ` + ${left.toLocaleString("en")} others)` : ")"));
  return line;
}

/** @param {Stage} stage @param {number} head @param {number} row @param {number} column */
function hidden(stage, head, row, column) {
  const before = one(stage.sources[0].at(head, row, column));
  if (Number.isFinite(stage.at(head, row, column))) return [part("left", before)];
  return [part("left", before), part("sign", ", hidden by the mask,")];
}

/** A formula with its numbers. @param {Formula} formula @returns {Part[]} */
function filled({ text, numbers, whole }) {
  /** @type {Part[]} */
  const line = [];
  text.split("{}").forEach((words, i) => {
    if (words) line.push(part("sign", words));
    if (i >= numbers.length) return;
    const number = whole.includes(i) ? String(numbers[i]) : one(numbers[i]);
    const afterSign = /[-+×/]\s*$/.test(words);
    line.push(part("number", afterSign ? bracketed(number) : number));
  });
  return line;
}
