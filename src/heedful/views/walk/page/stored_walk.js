// A walk whose numbers came with the page.
import { steps } from "./stages.js";

/** @import { Stage, Walk } from "./types.js" */

/** @param {any} told what the library wrote, with its arrays by name @returns {Walk} */
export function given(told) {
  /** @type {Stage[]} */
  const stages = [];
  told.stages.forEach((/** @type {any} */ one, /** @type {number} */ i) => {
    stages.push(stage(one, told, i));
  });
  told.stages.forEach((/** @type {any} */ one, /** @type {number} */ i) => {
    stages[i].factors = one.factors.map((/** @type {number} */ at) => stages[at]);
    stages[i].sources = one.sources.map((/** @type {number} */ at) => stages[at]);
  });
  const { section, sections, answers, asked, tokens } = told;
  return {
    ...told,
    stages,
    steps: steps(stages, section, sections, answers, asked, tokens),
    beyond: [0, 0],
  };
}

/** @param {any} one @param {any} told @param {number} i @returns {Stage} */
function stage(one, told, i) {
  const { data, shape } = told[`numbers ${i}`];
  const [high, wide] = shape.slice(-2);
  const heads = shape.length > 2 ? shape[0] : 1;
  const rows = one.rows ?? places(high);
  const columns = one.columns ?? places(wide);
  const [rowAt, columnAt] = [rows, columns].map(
    (all) => new Map(all.map((/** @type {number} */ at, /** @type {number} */ n) => [at, n])),
  );
  /** Where a number lies in the array. @param {number} head @param {number} row @param {number} column */
  const find = (head, row, column) => {
    const [r, c] = [rowAt.get(row), columnAt.get(column)];
    if (r === undefined || c === undefined) return -1;
    return (Math.floor((head * heads) / told.heads) * high + r) * wide + c;
  };
  const bias = told[`bias ${i}`];
  const formulas = told[`formulas ${i}`];
  const which = told[`which ${i}`];
  return {
    ...one,
    rows,
    columns,
    names: one.names ?? null,
    factors: [],
    sources: [],
    at(head, row, column) {
      return data[find(head, row, column)] ?? Number.NaN;
    },
    bias(head, column) {
      const c = columnAt.get(column);
      if (!bias || c === undefined) return null;
      const own = bias.shape.length > 1 ? Math.floor((head * bias.shape[0]) / told.heads) : 0;
      return bias.data[own * bias.shape[bias.shape.length - 1] + c];
    },
    how(head, row, column) {
      const at = find(head, row, column);
      if (!formulas || at < 0) return null;
      const text = which ? which.data[at] : 0;
      const first = at * formulas.shape[1];
      const own = one.texts[text].split("{}").length - 1; // zeros may follow
      const numbers = [...formulas.data.subarray(first, first + own)];
      return { text: one.texts[text], numbers, whole: one.whole[text] };
    },
  };
}

/** @param {number} size */
const places = (size) => Array.from({ length: size }, (_, n) => n);
