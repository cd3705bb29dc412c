// Computes a variant of attention on a typed sentence, in double precision, from its definition.

import { vector } from "./hashed_vectors.js";
import { hasPairs, steps } from "./stages.js";
import { words } from "./words.js";

/** @import { Formula, Stage, Walk } from "./types.js" */

/** Rows of numbers. @typedef {number[][]} Matrix */
/** The matrices of a stage, one per head. @typedef {Matrix[]} Heads */
/** The words of both texts. @typedef {{tokens: string[], memory: string[]}} Texts */

/** The product left · right. @param {Matrix} left @param {Matrix} right @returns {Matrix} */
const product = (left, right) =>
  left.map((row) => right[0].map((_, j) => row.reduce((sum, x, k) => sum + x * right[k][j], 0)));

/** @param {Matrix} matrix @returns {Matrix} */
const transpose = (matrix) => matrix[0].map((_, j) => matrix.map((row) => row[j]));

/** @param {number[]} scores */
function softmax(scores) {
  const largest = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - largest));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}

/**
 * The walk of a sentence through a variant.
 * @param {any} data the texts and weight matrices of the variant, from one_file.py
 * @param {string} text @param {string} second the second text, for cross-attention
 * @returns {Walk}
 */
export function computeWalk(data, text, second) {
  const [first, others] = [words(text), data.memory.length ? words(second) : []];
  const [tokens, memory] = [first, others].map((all) => all.slice(0, data.most));
  const texts = { tokens, memory };
  /** @type {Heads[]} */
  const all = [];
  data.stages.forEach((/** @type {any} */ entry) => {
    all.push(numbers(entry, data, texts, all));
  });
  /** @type {Stage[]} */
  const stages = [];
  data.stages.forEach((/** @type {any} */ entry, /** @type {number} */ i) => {
    stages.push(stage(entry, data, all[i], all, texts));
  });
  data.stages.forEach((/** @type {any} */ entry, /** @type {number} */ i) => {
    stages[i].factors = entry.factors.map((/** @type {number} */ index) => stages[index]);
    stages[i].sources = entry.sources.map((/** @type {number} */ index) => stages[index]);
  });
  return {
    ...data,
    ...texts,
    notes: notes(data, [...tokens, ...memory]),
    stages,
    beyond: [first.length - tokens.length, others.length - memory.length],
    steps: steps(stages, data.section, data.sections, [], "", tokens),
  };
}

/** @param {any} entry @param {any} data @param {Texts} texts @param {Heads[]} all matrices of the earlier stages @returns {Heads} */
function numbers(entry, data, { tokens, memory }, all) {
  const [first, second] = [...entry.factors, ...entry.sources].map(
    (/** @type {number} */ index) => all[index],
  );
  const text = entry.axes[0] === "memory" ? memory : tokens;
  if (entry.kind === "positions") return [entry.numbers.slice(0, text.length)];
  if (entry.numbers) return entry.shape.length > 2 ? entry.numbers : [entry.numbers];
  if (!first) return [text.map((word) => vector(word, data.width, data.seed, data.printed))];
  const heads = Math.max(first.length, second?.length ?? 1);
  const each = (/** @type {(head: number) => Matrix} */ make) =>
    Array.from({ length: heads }, (_, h) => make(h));
  const pick = (/** @type {Heads} */ part, /** @type {number} */ head) =>
    part[part.length > 1 ? head : 0];
  const right = hasPairs(entry) && second ? second.map(transpose) : second;
  if (entry.factors.length) return each((h) => product(pick(first, h), pick(right, h)));
  if (entry.kind === "scaled")
    return first.map((part) => part.map((row) => row.map((x) => x / keyScale(data))));
  if (entry.kind === "masked")
    return first.map((part) => part.map((row, n) => row.map((x, m) => (m <= n ? x : -Infinity))));
  if (entry.kind === "weights") return first.map((part) => part.map(softmax));
  if (entry.reads === "head") return [first[0].map((_, n) => first.flatMap((part) => part[n]))];
  return each((h) => pick(first, h).map((row, n) => row.map((x, d) => x + pick(second, h)[n][d])));
}

/** √d for keys of width d: the divisor of the scores. @param {any} data */
const keyScale = (data) =>
  Math.sqrt(data.stages.find((/** @type {any} */ entry) => entry.kind === "key").shape.at(-1));

/** @param {any} entry @param {any} data @param {Heads} matrices @param {Heads[]} all @param {Texts} texts @returns {Stage} */
function stage(entry, data, matrices, all, { tokens, memory }) {
  const counts = { N: tokens.length, M: memory.length };
  const size = (/** @type {(number | "N" | "M")[]} */ shape) =>
    shape.map((n) => (typeof n === "number" ? n : counts[n]));
  const shape = size(entry.shape);
  const ofHead = (/** @type {Heads} */ part, /** @type {number} */ head) =>
    part[Math.floor((head * part.length) / data.heads)];
  const [rows, columns] = shape.slice(-2).map((n) => Array.from({ length: n }, (_, i) => i));
  return {
    ...entry,
    shape,
    chain: entry.chain.map(size),
    rows,
    columns,
    names: null,
    factors: [],
    sources: [],
    at: (head, row, column) => ofHead(matrices, head)[row]?.[column] ?? Number.NaN,
    bias: () => null,
    how(head, row, column) {
      if (!entry.text) return null;
      const sources = entry.sources.map((/** @type {number} */ index) => all[index]);
      if (entry.reads === "head") {
        const wide = sources[0][0][0].length;
        return {
          text: entry.text,
          numbers: [column % wide, Math.floor(column / wide)],
          whole: [0, 1],
        };
      }
      const values = sources.map((/** @type {Heads} */ part) => ofHead(part, head)[row][column]);
      return {
        text: entry.text,
        numbers: entry.kind === "scaled" ? [values[0], keyScale(data)] : values,
        whole: [],
      };
    },
  };
}

/** Notes on the origin of the word vectors. @param {any} data @param {string[]} tokens @returns {string[]} */
function notes(data, tokens) {
  const all = [...new Set(tokens)];
  const printed = all.filter((token) => Object.hasOwn(data.printed, token));
  if (!printed.length) return data.notes.none;
  if (printed.length === all.length) return data.notes.all;
  return data.notes.some.map((/** @type {string} */ note) =>
    note.replace(data.notes.word, printed.join(", ")),
  );
}
