// The rules by which stages are computed from their inputs, and the formulas of their numbers.
// The names of rules, activations and constants are those of heedful.explain.
import { vector } from "./hashed_vectors.js";

/** Rows of numbers. @typedef {number[][]} Matrix */
/** The matrices of a stage, one per head. @typedef {Matrix[]} Heads */
/** The tokens of both texts, by the name of their axis, and the ids of a model's text. @typedef {Record<string, string[]> & {ids: number[]}} Texts */
/**
 * Row n of one head: the inputs' matrices and their row n; `heads` has all heads of the inputs.
 * @typedef {{n: number, rows: Matrix, parts: Matrix[], heads: Heads[], entry: any, c: any, texts: Texts, data: any}} Row
 */
/** A formula: its text, its numbers, whether these are integers. @typedef {[string, number[], boolean?]} Written */
/** @typedef {{row: (row: Row) => number[], how?: (row: Row, column: number) => Written}} Rule */

/** @param {number[]} numbers */
const sum = (numbers) => numbers.reduce((total, x) => total + x, 0);

/** @type {WeakMap<Matrix, Matrix>} */
const turned = new WeakMap();

/** The transposed matrix, computed once. @param {Matrix} matrix @returns {Matrix} */
export function transposed(matrix) {
  const result = turned.get(matrix) ?? matrix[0].map((_, j) => matrix.map((row) => row[j]));
  turned.set(matrix, result).set(result, matrix);
  return result;
}

/** @type {WeakMap<Matrix, Float64Array[]>} */
const packed = new WeakMap();

/** The rows as typed arrays, made once: the inner loop of a product is faster if all have one type. @param {Matrix} matrix */
function typedRows(matrix) {
  const rows = packed.get(matrix) ?? matrix.map((row) => new Float64Array(row));
  packed.set(matrix, rows);
  return rows;
}

/** Each row of `left` times each of the `columns`, plus the bias. @param {Matrix} left @param {Matrix} columns @param {number[]} [bias] @returns {Matrix} */
export function product(left, columns, bias) {
  const rows = typedRows(left);
  const result = left.map(() => new Array(columns.length).fill(0));
  typedRows(columns).forEach((column, j) => {
    for (let n = 0; n < rows.length; n++) {
      const row = rows[n];
      let total = bias ? bias[j] : 0;
      for (let k = 0; k < column.length; k++) total += row[k] * column[k];
      result[n][j] = total;
    }
  });
  return result;
}

/** @param {number[]} scores */
function softmax(scores) {
  const largest = scores.reduce((a, b) => Math.max(a, b));
  const powers = scores.map((score) => Math.exp(score - largest));
  const total = sum(powers);
  return powers.map((power) => power / total);
}

/** The error function, by a series of positive terms. @param {number} x */
function erf(x) {
  const size = Math.abs(x);
  if (size > 6) return Math.sign(x);
  let [term, total] = [size, size];
  for (let n = 1; term > total * 1e-17; n++) {
    term *= (2 * size * size) / (2 * n + 1);
    total += term;
  }
  return (Math.sign(x) * 2 * Math.exp(-size * size) * total) / Math.sqrt(Math.PI);
}

/** @param {number} x */
const normalCdf = (x) => (1 + erf(x / Math.SQRT2)) / 2;
/** @param {number} x */
const cdfByTanh = (x) => (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))) / 2;

/** @typedef {[(x: number) => number, (x: number) => Written]} Activation */
/** @type {Activation} */
const relu = [(x) => Math.max(x, 0), (x) => ["max({}, 0)", [x]]];
/** @type {Activation} */
const gelu = [(x) => x * normalCdf(x), (x) => ["{} × {}", [x, normalCdf(x)]]];
/** @type {Record<string, Activation>} */
const ACTIVATIONS = {
  relu,
  relu2: [(x) => Math.max(x, 0) ** 2, (x) => ["max({}, 0)²", [x]]],
  gelu,
  gelu_tanh: [(x) => x * cdfByTanh(x), (x) => ["{} × {}", [x, cdfByTanh(x)]]],
  swiglu: [(x) => x / (1 + Math.exp(-x)), (x) => ["{} / (1 + e^{})", [x, -x]]],
  geglu: gelu,
  reglu: relu,
};

/** The mean that a norm subtracts, and its divisor. @param {Row} row */
function moments({ rows: [x], c }) {
  const mean = c.centred ? sum(x) / x.length : 0;
  return { mean, root: Math.sqrt(sum(x.map((v) => (v - mean) ** 2)) / x.length + c.epsilon) };
}

/** A number that is rotated: the number, cosine, partner and sine; the sign of the sine. @param {Row} row @param {number} d @returns {[number[], number]} */
function rotation({ rows: [x], c, n }, d) {
  const half = x.length / 2;
  const [cosine, sine] = [c.cosines[n][d % half], c.sines[n][d % half]];
  return [[x[d], cosine, x[(d + half) % x.length], sine], d < half ? -1 : 1];
}

/** The factors of a convolution: numbers of the previous tokens, and their weights. @param {Row} row @param {number} d @returns {[number, number][]} */
const previous = ({ parts: [x], c, n }, d) =>
  c.weights
    .slice(0, n)
    .map((/** @type {number[]} */ weight, /** @type {number} */ i) => [x[n - 1 - i][d], weight[d]]);

const PLACE = "row {}, column {} of the table";

/** @type {Record<string, Rule>} */
export const RULES = {
  ids: { row: ({ texts, n }) => [texts.ids[n]] },
  words: {
    row: ({ texts, n, entry, data: { width, seed, printed } }) =>
      vector(texts[entry.axes[0]][n], width, seed, printed),
  },
  "rows by id": {
    row: ({ c, texts, n }) => c.table[texts.ids[n]],
    how: ({ texts, n }, d) => [PLACE, [texts.ids[n], d], true],
  },
  "rows by position": { row: ({ c, n }) => c.table[n], how: ({ n }, d) => [PLACE, [n, d], true] },
  sinusoids: {
    row: ({ c, n }) => c.table[n],
    how: ({ c, n }, d) => {
      const text = `${d % 2 ? "cos" : "sin"}({} / 10000^({} / {}))`;
      return [text, [n, d - (d % 2), c.table[n].length], true];
    },
  },
  convolution: {
    row: (row) => row.rows[0].map((_, d) => sum(previous(row, d).map(([x, weight]) => x * weight))),
    how: (row, d) => {
      const pairs = previous(row, d);
      return [pairs.map(() => "{} × {}").join(" + ") || "no token before", pairs.flat()];
    },
  },
  sum: {
    row: ({ rows }) => rows[0].map((_, d) => sum(rows.map((x) => x[d]))),
    how: ({ rows }, d) => [rows.map(() => "{}").join(" + "), rows.map((x) => x[d])],
  },
  norm: {
    row: (row) => {
      const { mean, root } = moments(row);
      const { gain, shift } = row.c;
      return row.rows[0].map((x, d) => ((x - mean) / root) * gain[d] + (shift?.[d] ?? 0));
    },
    how: (row, d) => {
      const { mean, root } = moments(row);
      const { gain, shift, centred } = row.c;
      const [x, ...more] = [row.rows[0][d], root, gain[d]];
      if (!centred) return ["{} / {} × {}", [x, ...more]];
      if (!shift) return ["({} - {}) / {} × {}", [x, mean, ...more]];
      return ["({} - {}) / {} × {} + {}", [x, mean, ...more, shift[d]]];
    },
  },
  rotation: {
    row: (row) =>
      row.rows[0].map((_, d) => {
        const [[x, cosine, partner, sine], sign] = rotation(row, d);
        return x * cosine + sign * partner * sine;
      }),
    how: (row, d) => {
      const [numbers, sign] = rotation(row, d);
      return [`{} × {} ${sign < 0 ? "-" : "+"} {} × {}`, numbers];
    },
  },
  scaled: {
    row: ({ rows: [x], c }) => x.map((score) => score / c.root),
    how: ({ rows: [x], c }, d) => ["{} / {}", [x[d], c.root]],
  },
  masked: {
    row: ({ rows: [x], c, n }) =>
      x.map((score, m) =>
        (c.causal && m > n) || (c.window && m <= n - c.window) ? -Infinity : score,
      ),
  },
  softmax: {
    row: ({ rows: [x] }) => softmax(x),
    how: ({ rows: [x] }, d) => ["e^{} / {}", [x[d], sum(x.map(Math.exp))]],
  },
  joined: {
    row: ({ heads: [parts], n }) => parts.flatMap((part) => part[n]),
    how: ({ rows: [{ length }] }, d) => [
      "number {} of head {}",
      [d % length, Math.floor(d / length)],
      true,
    ],
  },
  activation: {
    row: ({ rows: [x, up], c }) =>
      x.map((value, d) => ACTIVATIONS[c.name][0](value) * (up ? up[d] : 1)),
    how: ({ rows: [x, up], c }, d) => {
      const [text, numbers] = ACTIVATIONS[c.name][1](x[d]);
      return up ? [`${text} × {}`, [...numbers, up[d]]] : [text, numbers];
    },
  },
  same: { row: ({ rows }) => rows[0] },
  block: { row: ({ rows }) => rows[0] },
};
