// Computes the stages of a walk on a text, in double precision, by the rules that Python sends.
import { product, RULES, transposed } from "./operations.js";
import { connect, hasPairs, range, steps } from "./stages.js";
import { words } from "./words.js";

/** @import { Heads, Row, Texts } from "./operations.js" */
/** @import { Stage, Walk } from "./types.js" */

/** The walk of a sentence through a variant. @param {any} data its texts and weight matrices, from one_file.py @param {string} text @param {string} second the second text, for cross-attention @returns {Walk} */
export function computeWalk(data, text, second) {
  const all = [words(text), data.memory.length ? words(second) : []];
  const [tokens, memory] = all.map((each) => each.slice(0, data.most));
  return {
    ...walkOf(data, { tokens, memory, ids: [] }),
    notes: notes(data, [...tokens, ...memory]),
    cut: all.map(({ length }, i) =>
      cutAt(data.most, length, `words${i ? " of the second text" : ""}`),
    ),
  };
}

/** A sentence about a text that is cut after `most` tokens, or "". @param {number} most @param {number} count @param {string} name */
export const cutAt = (most, count, name) =>
  count > most
    ? `The first ${most} ${name} are shown, ${(count - most).toLocaleString("en")} more are not.`
    : "";

/** The walk of tokens; the numbers of a stage are computed when they are first used. @param {any} data @param {Texts} texts @returns {Walk} */
export function walkOf(data, texts) {
  /** @type {Heads[]} */
  const values = [];
  const value = (/** @type {number} */ i) => {
    values[i] ??= compute(data.stages[i], data, texts, data.stages[i].inputs.map(value));
    return values[i];
  };
  /** @type {Stage[]} */
  const stages = data.stages.map((/** @type {any} */ entry, /** @type {number} */ i) =>
    stage(entry, data, texts, () => value(i), value),
  );
  connect(stages, data.stages);
  const { tokens, memory } = texts;
  const list = steps(stages, data.section, data.sections, [], "", tokens);
  // A walk whose last token is selected selects the last token of other texts, too
  const row = data.row + 1 === data.tokens?.length ? tokens.length - 1 : data.row;
  return { ...data, tokens, memory, stages, row, cut: [], steps: list };
}

/** @template T @param {T[]} parts of the heads @param {number} head @param {number} heads @returns {T} */
const ofHead = (parts, head, heads) => parts[Math.floor((head * parts.length) / heads)];

/** The bias of a head, if there is one. @param {any} entry @param {number} head @param {number} heads @returns {number[] | undefined} */
const biasOf = ({ constants: { bias } }, head, heads) =>
  Array.isArray(bias?.[0]) ? ofHead(bias, head, heads) : bias;

/** @param {any} entry @param {any} data @param {Texts} texts @param {Heads[]} inputs @returns {Heads} */
function compute(entry, data, texts, inputs) {
  if (entry.numbers) return entry.shape.length > 2 ? entry.numbers : [entry.numbers];
  const heads = entry.rule === "joined" ? 1 : Math.max(1, ...inputs.map((parts) => parts.length));
  const words = texts[entry.axes[0]];
  return Array.from({ length: heads }, (_, h) => {
    const [left, right] = inputs.map((parts) => ofHead(parts, h, heads));
    if (!entry.factors.length)
      return words.map((_, n) =>
        RULES[entry.rule].row(row(entry, data, texts, inputs, h, heads, n)),
      );
    return product(left, hasPairs(entry) ? right : transposed(right), biasOf(entry, h, heads));
  });
}

/** @param {any} entry @param {any} data @param {Texts} texts @param {Heads[]} inputs @param {number} head @param {number} heads @param {number} n @returns {Row} */
function row(entry, data, texts, inputs, head, heads, n) {
  const parts = inputs.map((each) => ofHead(each, head, heads));
  const rows = parts.map((part) => part[n]);
  return { n, rows, parts, heads: inputs, entry, c: entry.constants, texts, data };
}

/** @param {any} entry @param {any} data @param {Texts} texts @param {() => Heads} own its numbers @param {(i: number) => Heads} value the numbers of any stage @returns {Stage} */
function stage(entry, data, texts, own, value) {
  const counts = { N: texts.tokens.length, M: texts.memory.length };
  const size = (/** @type {(number | "N" | "M")[]} */ shape) =>
    shape.map((n) => (typeof n === "number" ? n : counts[n]));
  const shape = size(entry.shape);
  const [rows, columns] = shape.slice(-2).map(range);
  return {
    ...entry,
    shape,
    chain: entry.chain.map(size),
    rows,
    columns,
    names: null,
    factors: [],
    sources: [],
    at: (head, row, column) => ofHead(own(), head, data.heads)[row]?.[column] ?? Number.NaN,
    bias: (head, column) => biasOf(entry, head, data.heads)?.[column] ?? null,
    how(head, n, column) {
      const rule = RULES[entry.rule];
      if (!rule?.how) return null;
      const inputs = entry.inputs.map(value);
      const [text, numbers, areWhole] = rule.how(
        row(entry, data, texts, inputs, head, data.heads, n),
        column,
      );
      return { text, numbers, whole: areWhole ? numbers.map((_, i) => i) : [] };
    },
  };
}

/** Notes on the origin of the word vectors. @param {any} data @param {string[]} tokens @returns {string[]} */
function notes(data, tokens) {
  const all = [...new Set(tokens)];
  const printed = all.filter((token) => Object.hasOwn(data.printed, token));
  const { none, some, word } = data.notes;
  if (!printed.length) return none;
  if (printed.length === all.length) return data.notes.all;
  return some.map((/** @type {string} */ note) => note.replace(word, printed.join(", ")));
}
