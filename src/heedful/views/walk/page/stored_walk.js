// A walk whose numbers are stored in the file.
import { steps } from "./stages.js";

/** @import { Stage, Walk } from "./types.js" */

/** @param {any} data as packed by page_data.py: JSON, and arrays by name @returns {Walk} */
export function readWalk(data) {
  /** @type {Stage[]} */
  const stages = [];
  data.stages.forEach((/** @type {any} */ entry, /** @type {number} */ i) => {
    stages.push(readStage(entry, data, i));
  });
  data.stages.forEach((/** @type {any} */ entry, /** @type {number} */ i) => {
    stages[i].factors = entry.factors.map((/** @type {number} */ index) => stages[index]);
    stages[i].sources = entry.sources.map((/** @type {number} */ index) => stages[index]);
  });
  const { section, sections, answers, asked: heading, tokens } = data;
  return {
    ...data,
    stages,
    steps: steps(stages, section, sections, answers, heading, tokens),
    cut: [],
  };
}

/** @param {any} entry @param {any} walk the packed data @param {number} i @returns {Stage} */
function readStage(entry, walk, i) {
  const { data, shape } = walk[`numbers ${i}`];
  const [high, wide] = shape.slice(-2);
  const heads = shape.length > 2 ? shape[0] : 1;
  const rows = entry.rows ?? range(high);
  const columns = entry.columns ?? range(wide);
  const [rowOffset, columnOffset] = [rows, columns].map(
    (all) => new Map(all.map((/** @type {number} */ index, /** @type {number} */ n) => [index, n])),
  );
  /** The index of a number in the array, or −1. @param {number} head @param {number} row @param {number} column */
  const find = (head, row, column) => {
    const [r, c] = [rowOffset.get(row), columnOffset.get(column)];
    if (r === undefined || c === undefined) return -1;
    return (Math.floor((head * heads) / walk.heads) * high + r) * wide + c;
  };
  const bias = walk[`bias ${i}`];
  const formulas = walk[`formulas ${i}`];
  const which = walk[`which ${i}`];
  return {
    ...entry,
    rows,
    columns,
    names: entry.names ?? null,
    factors: [],
    sources: [],
    at(head, row, column) {
      return data[find(head, row, column)] ?? Number.NaN;
    },
    bias(head, column) {
      const c = columnOffset.get(column);
      if (!bias || c === undefined) return null;
      const group = bias.shape.length > 1 ? Math.floor((head * bias.shape[0]) / walk.heads) : 0;
      return bias.data[group * bias.shape[bias.shape.length - 1] + c];
    },
    how(head, row, column) {
      const index = find(head, row, column);
      if (!formulas || index < 0) return null;
      const text = which ? which.data[index] : 0;
      const first = index * formulas.shape[1];
      const count = entry.texts[text].split("{}").length - 1; // zeros that pad the row may follow
      const numbers = [...formulas.data.subarray(first, first + count)];
      return { text: entry.texts[text], numbers, whole: entry.whole[text] };
    },
  };
}

/** @param {number} size */
const range = (size) => Array.from({ length: size }, (_, n) => n);
