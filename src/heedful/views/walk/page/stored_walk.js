// A walk whose numbers are stored in the file.
import { connect, headIndex, range, steps } from "./stages.js";

/** @import { Stage, Walk } from "./types.js" */

/** @param {any} data as packed by page_data.py: JSON, and arrays by name @returns {Walk} */
export function readWalk(data) {
  /** @type {Stage[]} */
  const stages = data.stages.map((entry, i) => readStage(entry, data, i));
  connect(stages, data.stages);
  const { section, sections, answers, heading, tokens } = data;
  const list = steps(stages, section, sections, answers, heading, tokens);
  return { ...data, stages, steps: list, cut: [] };
}

/** @param {any} entry @param {any} walk the packed data @param {number} i @returns {Stage} */
function readStage(entry, walk, i) {
  const { data, shape } = walk[`numbers ${i}`];
  const [high, wide] = shape.slice(-2);
  const rows = entry.rows ?? range(high);
  const columns = entry.columns ?? range(wide);
  const [rowOffset, columnOffset] = [rows, columns].map(
    (all) => new Map(all.map((index, n) => [index, n])),
  );
  /** The index of a number in the array, or −1. @param {number} head @param {number} row @param {number} column */
  const find = (head, row, column) => {
    const [r, c] = [rowOffset.get(row), columnOffset.get(column)];
    if (r === undefined || c === undefined) return -1;
    return (headIndex({ shape }, head, walk.heads) * high + r) * wide + c;
  };
  const [bias, formulas, which] = ["bias", "formulas", "which"].map((name) => walk[`${name} ${i}`]);
  return {
    ...entry,
    rows,
    columns,
    names: entry.names ?? null,
    factors: [],
    sources: [],
    at: (head, row, column) => data[find(head, row, column)] ?? Number.NaN,
    bias(head, column) {
      const c = columnOffset.get(column);
      if (!bias || c === undefined) return null;
      const width = bias.shape.at(-1);
      const heads = bias.data.length / width;
      return bias.data[Math.floor((head * heads) / walk.heads) * width + c];
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
