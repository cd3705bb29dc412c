// The arrangement of a step's matrices. A product is drawn in Falk's scheme: the first factor on the
// left of the result, the second factor above it. The row and the column that a number is computed
// from cross at the number. Other stages are drawn beside their inputs.

import { formatter } from "./number_format.js";
import { hasPairs, headIndex } from "./stages.js";

/** @import { Cell, Stage, Step, Walk } from "./types.js" */

/**
 * A matrix on the page; if `turned`, it is transposed.
 * @typedef {object} Panel
 * @property {Stage} stage
 * @property {number} head
 * @property {boolean} turned
 * @property {"left" | "top" | "result"} role
 * @property {(number | null)[]} rows the drawn rows; null stands for omitted rows
 * @property {(number | null)[]} columns
 * @property {(value: number) => string} write
 * @property {number} largest the magnitude with the strongest colour
 * @property {number} room width of its longest number in pixels
 * @property {number} brief the width with two decimals; Infinity if these are not enough
 * @property {number} small the width with two decimals in a small font
 * @property {number} wide pixels of a column
 * @property {number} high pixels of a row
 */

/** Panels that are drawn together: a product in Falk's scheme, or inputs and results side by side. @typedef {{isProduct: boolean, left: Panel[], top: Panel[], results: Panel[]}} Group */

const LETTER = 7.6; // pixels of a digit

/** The panels of a step, before they get sizes. If `sideBySide`, products of the same left factor share a group. @param {Walk} walk @param {Step} step @param {number} head @param {boolean} sideBySide */
export function scene(walk, step, head, sideBySide) {
  /** @type {Group[]} */
  const groups = [];
  for (const stage of step.stages) {
    const result = panel(stage, head, "result");
    const last = groups[groups.length - 1];
    if (stage.factors.length) {
      const left = panel(stage.factors[0], head, "left");
      const top = panel(stage.factors[1], head, "top", hasPairs(stage));
      if (sideBySide && last?.isProduct && last.left[0].stage === left.stage) {
        last.top.push(top);
        last.results.push(result);
      } else groups.push({ isProduct: true, left: [left], top: [top], results: [result] });
    } else if (stage.sources.length) {
      const left = inputs(walk, stage, head);
      groups.push({ isProduct: false, left, top: [], results: [result] });
    } else if (last && !last.isProduct && !last.left.length && !step.brief)
      last.results.push(result);
    else groups.push({ isProduct: false, left: [], top: [], results: [result] });
  }
  for (const group of groups) align(group);
  return groups;
}

/** The inputs of a stage that is not a product; for joined heads, a panel per head. @param {Walk} walk @param {Stage} stage @param {number} head */
function inputs(walk, stage, head) {
  if (stage.reads !== "head") return stage.sources.map((source) => panel(source, head, "left"));
  return Array.from({ length: walk.heads }, (_, h) => panel(stage.sources[0], h, "left"));
}

/** @param {Stage} stage @param {number} head @param {Panel["role"]} role @param {boolean} [turned] @returns {Panel} */
function panel(stage, head, role, turned = false) {
  const values = numbers(stage, head);
  const isId = stage.axes[1] === "id";
  const write = isId ? String : formatter(values);
  const finite = values.filter(Number.isFinite);
  const room = finite.reduce((length, x) => Math.max(length, write(x).length), 1) * LETTER + 12;
  const letters = finite.reduce((length, x) => Math.max(length, brief(x).length), 1);
  const sizes = finite.map(Math.abs);
  const isPlain = !isId && sizes.some((size) => size >= 0.1) && sizes.every((size) => size < 1000);
  const [rows, columns] = [drawn(stage, 0, stage.rows), drawn(stage, 1, stage.columns)];
  const axes = turned ? { rows: columns, columns: rows } : { rows, columns };
  return {
    stage,
    head,
    turned,
    role,
    ...axes,
    write,
    largest: isId ? 0 : largest(stage, finite.map(Math.abs)),
    room,
    brief: isPlain ? letters * 7.2 + 4 : Number.POSITIVE_INFINITY,
    small: isPlain ? letters * 6.2 + 3 : Number.POSITIVE_INFINITY,
    wide: room,
    high: 28,
  };
}

const [MANY, NEARLY] = [600, 0.99];

/** The magnitude with the strongest colour: the largest magnitude, or the 99th percentile of many
 * numbers, so that outliers do not make the others pale. Shares have no outliers. @param {Stage} stage @param {number[]} sizes */
function largest(stage, sizes) {
  if (isShare(stage) || sizes.length < MANY) return sizes.reduce((a, b) => Math.max(a, b), 0);
  return sizes.sort((a, b) => a - b)[Math.floor(sizes.length * NEARLY)];
}

/** Whether each row sums to one; these numbers have a colour scale that shows small values. @param {Stage} stage */
export const isShare = ({ name }) => name === "weights" || name === "probabilities";

/** @param {Stage} stage @param {number} head */
function numbers(stage, head) {
  return stage.rows.flatMap((row) => stage.columns.map((column) => stage.at(head, row, column)));
}

/** Indices, with null for a gap. On a vocabulary axis, the gap follows the likeliest tokens.
 * @param {Stage} stage @param {0 | 1} axis @param {number[]} indices */
function drawn(stage, axis, indices) {
  if (stage.axes[axis] === "vocabulary")
    return indices.length < (stage.shape.at(-1) ?? 0) ? [...indices, null] : indices;
  return indices.flatMap((index, i) =>
    i && indices[i - 1] + 1 !== index ? [null, index] : [index],
  );
}

/** Indices of the stored rows or columns of a panel. @param {Panel} panel @param {"rows" | "columns"} side */
const stored = ({ stage, turned }, side) =>
  (side === "rows") === turned ? stage.columns : stage.rows;

/** Draw only the indices that all of the panels store, so that rows or columns are aligned.
 * @param {{panel: Panel, side: "rows" | "columns"}[]} sides */
function alignSides(sides) {
  const sets = sides.map(({ panel, side }) => new Set(stored(panel, side)));
  const [first] = sides;
  const shared = stored(first.panel, first.side).filter((index) =>
    sets.every((set) => set.has(index)),
  );
  for (const { panel, side } of sides)
    panel[side] = drawn(panel.stage, (side === "rows") === panel.turned ? 1 : 0, shared);
}

/** Align the panels of a group. @param {Group} group */
function align({ isProduct, left, top, results }) {
  /** @param {"rows" | "columns"} side @param {Panel[]} panels */
  const sides = (side, panels) => panels.map((panel) => ({ panel, side }));
  if (!left.length) return;
  const all = [...left, ...results];
  alignSides(sides("rows", all));
  if (isProduct) {
    alignSides([...sides("columns", left), ...sides("rows", top)]);
    for (const [i, result] of results.entries()) alignSides(sides("columns", [result, top[i]]));
  } else if (new Set(all.map(({ stage }) => stage.shape.at(-1))).size === 1)
    alignSides(sides("columns", all));
}

/** Whether a panel is large enough for numbers. @param {Panel} panel */
export const fits = (panel) =>
  panel.wide >= Math.min(panel.room - 4, panel.small) && panel.high >= 17;

/** The CSS classes for the font size of a panel's numbers. @param {Panel} panel */
export function fontClass(panel) {
  if (panel.wide >= panel.room - 4) return "";
  return panel.wide >= panel.brief ? "small" : "small least";
}

/** The text of a cell; with two decimals if there is no room for more.
 * @param {Panel} panel @param {number} value */
export const inCell = (panel, value) =>
  panel.wide >= panel.room - 4 || !Number.isFinite(value) ? panel.write(value) : brief(value);

/** @param {number} value */
const brief = (value) =>
  value
    .toFixed(2)
    .replace(/^-(?=[0.]+$)/, "")
    .replace("-", "−");

/**
 * The highlight of a panel for the selected number: the number itself, the row or column that it is
 * computed from, or the row or column of results to which it contributes.
 * @param {Walk} walk @param {Group} group @param {Panel} panel @param {Cell} cell
 * @returns {{row: number | null, column: number | null, kind: "row" | "column" | "cell"} | null}
 */
export function highlight(walk, group, panel, cell) {
  const { stage, row, column } = cell;
  const isSameHead =
    headIndex(panel.stage, panel.head, walk.heads) === headIndex(stage, cell.head, walk.heads);
  const result = group.results.find((each) => each.stage === stage);
  if (panel.stage === stage && isSameHead && (panel.role === "result" || !result))
    return { row, column, kind: "cell" };
  return result ? usedBy(group, result, panel, cell) : usersOf(group, panel, cell);
}

/** @param {number | null} row @param {number | null} [column] */
const rowOf = (row, column = null) => ({ row, column, kind: /** @type {const} */ ("row") });

/** @param {Panel} panel @param {number} index */
const columnOf = ({ turned }, index) => ({
  row: turned ? index : null,
  column: turned ? null : index,
  kind: /** @type {const} */ ("column"),
});

/** The highlight of the numbers that a result is computed from. @param {Group} group @param {Panel} result @param {Panel} panel @param {Cell} cell */
function usedBy(group, result, panel, { stage, row, column }) {
  if (group.isProduct && panel.role !== "left")
    return group.top[group.results.indexOf(result)] === panel ? columnOf(panel, column) : null;
  if (panel.role !== "left") return null;
  if (group.isProduct) return rowOf(row);
  if (stage.reads === "head") {
    const wide = panel.stage.shape[panel.stage.shape.length - 1];
    return panel.head === Math.floor(column / wide) ? rowOf(row, column % wide) : null;
  }
  return rowOf(row, stage.reads === "row" || stage.reads === "pair" ? null : column);
}

/** The highlight of the results that an input contributes to. @param {Group} group @param {Panel} panel @param {Cell} cell */
function usersOf(group, panel, { stage, row, column }) {
  if (panel.role !== "result") return null;
  if (!group.isProduct) {
    if (!group.left.some((input) => input.stage === stage)) return null;
    return rowOf(row, panel.stage.reads === "number" ? column : null);
  }
  if (group.left[0].stage === stage) return rowOf(row);
  const top = group.top[group.results.indexOf(panel)];
  if (top?.stage !== stage) return null;
  return { ...rowOf(null, top.turned ? row : column), kind: /** @type {const} */ ("column") };
}
