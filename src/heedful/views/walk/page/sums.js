// Writes the calculation of a number as the parts of a line: a sum of products or a formula.
import { bracketed, formatNumber, formatter } from "./number_format.js";
import { terms } from "./stages.js";

/** @import { Cell, Formula, Stage } from "./types.js" */

/** @typedef {{text: string, kind: "left" | "right" | "sign" | "number" | "total"}} Part */

const [TERMS, SHORT] = [12, 6]; // up to TERMS terms are shown; of a longer sum of products, SHORT terms

/** @param {Part["kind"]} kind @param {string} text @returns {Part} */
const part = (kind, text) => ({ kind, text });

/** The calculation of a number and its result; [] for an input. @param {Cell} cell @returns {Part[]} */
export function calculationParts(cell) {
  const { stage, head, row, column } = cell;
  const value = stage.at(head, row, column);
  const calculation = parts(cell);
  if (!calculation.length) return [];
  return [...calculation, part("sign", " = "), part("total", formatNumber(value))];
}

/** @param {Cell} cell @returns {Part[]} */
function parts({ stage, head, row, column }) {
  if (stage.factors.length) return products(stage, head, row, column);
  if (stage.kind === "weights" && stage.sources.length) return softmax(stage, head, row, column);
  if (stage.kind === "masked" && stage.sources.length) return masked(stage, head, row, column);
  const formula = stage.how(head, row, column);
  return formula ? fillFormula(formula) : [];
}

/** @param {Stage} stage @param {number} head @param {number} row @param {number} column */
function products(stage, head, row, column) {
  const { stored: all, missing } = terms(stage, head, row, column);
  const isZero = all.every(({ left, right }) => !(left * right));
  const stored = isZero ? all : all.filter(({ left, right }) => left * right !== 0);
  const bias = stage.bias(head, column);
  const [left, right] = [stored.map((term) => term.left), stored.map((term) => term.right)].map(
    formatter,
  );
  const visible =
    stored.length > TERMS ? [...stored.slice(0, SHORT - 1), stored[stored.length - 1]] : stored;
  // the omitted terms, as a single number: the total minus the visible terms
  const rest = stored.length - visible.length + missing;
  const sum = visible.reduce((total, term) => total + term.left * term.right, 0);
  const others = stage.at(head, row, column) - sum - (bias ?? 0);
  /** @type {Part[]} */
  const line = [];
  visible.forEach((term, i) => {
    if (i) line.push(part("sign", " + "));
    if (rest && i === visible.length - 1)
      line.push(
        part("number", bracketed(formatNumber(others))),
        part("sign", ` (${rest.toLocaleString("en")} others) + `),
      );
    line.push(part("left", i ? bracketed(left(term.left)) : left(term.left)));
    line.push(part("sign", " · "), part("right", bracketed(right(term.right))));
  });
  if (bias !== null) line.push(part("sign", " + "), part("number", bracketed(formatNumber(bias))));
  return line;
}

/** A weight of a softmax. @param {Stage} stage @param {number} head @param {number} row @param {number} column */
function softmax(stage, head, row, column) {
  const [source] = stage.sources;
  const scores = source.columns.map((m) => source.at(head, row, m)).filter(Number.isFinite);
  const numerator = source.at(head, row, column);
  if (!Number.isFinite(numerator)) return [part("number", "e^(−∞)")];
  const power = (/** @type {number} */ score) =>
    `e^${bracketed(score.toFixed(4).replace("-", "−"))}`;
  const line = [part("left", power(numerator))];
  const visible = scores.slice(0, TERMS);
  visible.forEach((score, i) => {
    line.push(part("sign", i ? " + " : " / ("), part("right", power(score)));
  });
  const missing = source.shape[source.shape.length - 1] - source.columns.length;
  const others = missing + scores.length - visible.length;
  line.push(part("sign", others ? ` + ${others.toLocaleString("en")} others)` : ")"));
  return line;
}

/** @param {Stage} stage @param {number} head @param {number} row @param {number} column */
function masked(stage, head, row, column) {
  const score = part("left", formatNumber(stage.sources[0].at(head, row, column)));
  const isVisible = Number.isFinite(stage.at(head, row, column));
  return isVisible ? [score] : [score, part("sign", ", masked")];
}

/** A formula with its numbers. @param {Formula} formula @returns {Part[]} */
function fillFormula({ text, numbers, whole }) {
  /** @type {Part[]} */
  const line = [];
  text.split("{}").forEach((words, i) => {
    if (words) line.push(part("sign", words));
    if (i >= numbers.length) return;
    const number = whole.includes(i) ? String(numbers[i]) : formatNumber(numbers[i]);
    const afterSign = /[-+×/]\s*$/.test(words);
    line.push(part("number", afterSign ? bracketed(number) : number));
  });
  return line;
}
