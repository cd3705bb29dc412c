// A variant of attention computed here, on a sentence that was typed: in doubles, by definition.
import { pairs, steps } from "./stages.js";
import { vector } from "./vectors.js";
import { words } from "./words.js";

/** @import { Formula, Stage, Walk } from "./types.js" */

/** Rows of numbers. @typedef {number[][]} Matrix */
/** What a stage has: one matrix, or one for each head. @typedef {Matrix[]} Heads */
/** The words of both texts. @typedef {{tokens: string[], memory: string[]}} Texts */

/** @param {Matrix} left @param {Matrix} right columns are multiplied @returns {Matrix} */
const product = (left, right) =>
  left.map((row) => right[0].map((_, j) => row.reduce((sum, x, k) => sum + x * right[k][j], 0)));

/** @param {Matrix} matrix @returns {Matrix} */
const turned = (matrix) => matrix[0].map((_, j) => matrix.map((row) => row[j]));

/** Positive shares that sum to one. @param {number[]} scores */
function softmax(scores) {
  const largest = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - largest));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}

/**
 * The walk of a sentence through a variant.
 * @param {any} frame the words and the tables of the variant, from the library
 * @param {string} text @param {string} second the text that it looks at, where the variant has one
 * @returns {Walk}
 */
export function typed(frame, text, second) {
  const [typed, others] = [words(text), frame.memory.length ? words(second) : []];
  const [tokens, memory] = [typed, others].map((all) => all.slice(0, frame.most));
  const texts = { tokens, memory };
  /** @type {Heads[]} */
  const all = [];
  frame.stages.forEach((/** @type {any} */ one) => {
    all.push(numbers(one, frame, texts, all));
  });
  /** @type {Stage[]} */
  const stages = [];
  frame.stages.forEach((/** @type {any} */ one, /** @type {number} */ i) => {
    stages.push(stage(one, frame, all[i], all, texts));
  });
  frame.stages.forEach((/** @type {any} */ one, /** @type {number} */ i) => {
    stages[i].factors = one.factors.map((/** @type {number} */ at) => stages[at]);
    stages[i].sources = one.sources.map((/** @type {number} */ at) => stages[at]);
  });
  return {
    ...frame,
    ...texts,
    notes: notes(frame, [...tokens, ...memory]),
    stages,
    beyond: [typed.length - tokens.length, others.length - memory.length],
    steps: steps(stages, frame.section, frame.sections, [], "", tokens),
  };
}

/** @param {any} one @param {any} frame @param {Texts} texts @param {Heads[]} all those before @returns {Heads} */
function numbers(one, frame, { tokens, memory }, all) {
  const [first, second] = [...one.factors, ...one.sources].map(
    (/** @type {number} */ at) => all[at],
  );
  const own = one.axes[0] === "memory" ? memory : tokens;
  if (one.kind === "positions") return [one.numbers.slice(0, own.length)];
  if (one.numbers) return one.shape.length > 2 ? one.numbers : [one.numbers];
  if (!first) return [own.map((word) => vector(word, frame.width, frame.seed, frame.printed))];
  const heads = Math.max(first.length, second?.length ?? 1);
  const each = (/** @type {(head: number) => Matrix} */ make) =>
    Array.from({ length: heads }, (_, h) => make(h));
  const of = (/** @type {Heads} */ part, /** @type {number} */ head) =>
    part[part.length > 1 ? head : 0];
  if (one.factors.length)
    return each((h) => product(of(first, h), pairs(one) ? turned(of(second, h)) : of(second, h)));
  if (one.kind === "scaled")
    return first.map((part) => part.map((row) => row.map((x) => x / root(frame))));
  if (one.kind === "masked")
    return first.map((part) => part.map((row, n) => row.map((x, m) => (m <= n ? x : -Infinity))));
  if (one.kind === "weights") return first.map((part) => part.map(softmax));
  if (one.reads === "head") return [first[0].map((_, n) => first.flatMap((part) => part[n]))];
  return each((h) => of(first, h).map((row, n) => row.map((x, d) => x + of(second, h)[n][d])));
}

/** The root of the width of a key, by which scores are divided. @param {any} frame */
const root = (frame) =>
  Math.sqrt(frame.stages.find((/** @type {any} */ one) => one.kind === "key").shape.at(-1));

/** @param {any} one @param {any} frame @param {Heads} mine @param {Heads[]} all @param {Texts} texts @returns {Stage} */
function stage(one, frame, mine, all, { tokens, memory }) {
  const counts = { N: tokens.length, M: memory.length };
  const size = (/** @type {(number | "N" | "M")[]} */ shape) =>
    shape.map((n) => (typeof n === "number" ? n : counts[n]));
  const shape = size(one.shape);
  const own = (/** @type {Heads} */ part, /** @type {number} */ head) =>
    part[Math.floor((head * part.length) / frame.heads)];
  const [rows, columns] = shape.slice(-2).map((n) => Array.from({ length: n }, (_, i) => i));
  return {
    ...one,
    shape,
    chain: one.chain.map(size),
    rows,
    columns,
    names: null,
    factors: [],
    sources: [],
    at: (head, row, column) => own(mine, head)[row]?.[column] ?? Number.NaN,
    bias: () => null,
    how(head, row, column) {
      if (!one.text) return null;
      const read = one.sources.map((/** @type {number} */ at) => all[at]);
      if (one.reads === "head") {
        const wide = read[0][0][0].length;
        return {
          text: one.text,
          numbers: [column % wide, Math.floor(column / wide)],
          whole: [0, 1],
        };
      }
      const values = read.map((/** @type {Heads} */ part) => own(part, head)[row][column]);
      return {
        text: one.text,
        numbers: one.kind === "scaled" ? [values[0], root(frame)] : values,
        whole: [],
      };
    },
  };
}

/** What the library says of the vectors. @param {any} frame @param {string[]} tokens @returns {string[]} */
function notes(frame, tokens) {
  const all = [...new Set(tokens)];
  const known = all.filter((token) => Object.hasOwn(frame.printed, token));
  if (!known.length) return frame.notes.none;
  if (known.length === all.length) return frame.notes.all;
  return frame.notes.some.map((/** @type {string} */ note) =>
    note.replace(frame.notes.word, known.join(", ")),
  );
}
