// How a step stands on the page. A product is drawn as one computes it by hand (Falk's scheme):
// the first factor on the left of the result, the second one above it, so that the row and the
// column of a number meet in it. What is no product stands beside what it was made of.

import { written } from "./number_format.js";
import { own, pairs } from "./stages.js";

/** @import { Cell, Stage, Step, Walk } from "./types.js" */

/**
 * A matrix on the page. Turned: its rows stand as columns.
 * @typedef {object} Panel
 * @property {Stage} stage
 * @property {number} head
 * @property {boolean} turned
 * @property {"left" | "top" | "made"} role
 * @property {(number | null)[]} rows as they are drawn; null where some are left out
 * @property {(number | null)[]} columns
 * @property {(value: number) => string} write
 * @property {number} most the number that has the last colour
 * @property {number} room pixels that its longest number takes
 * @property {number} brief the same with two decimals; Infinity where these would not do
 * @property {number} least the same in small letters
 * @property {number} wide pixels of a column
 * @property {number} high pixels of a row
 */

/**
 * Panels that belong together: a product, or what stands side by side.
 * @typedef {{falk: boolean, left: Panel[], top: Panel[], made: Panel[]}} Group
 */

const LETTER = 7.6; // pixels of a digit

/**
 * The panels of a step, not yet of any size. Products of one matrix stand side by side, if they may.
 * @param {Walk} walk @param {Step} step @param {number} head @param {boolean} sideBySide @returns {Group[]}
 */
export function scene(walk, step, head, sideBySide) {
  /** @type {Group[]} */
  const groups = [];
  for (const stage of step.stages) {
    const made = panel(stage, head, "made");
    const last = groups[groups.length - 1];
    if (stage.factors.length) {
      const [left, top] = stage.factors;
      if (sideBySide && last?.falk && last.left[0].stage === left) {
        last.top.push(panel(top, head, "top", pairs(stage)));
        last.made.push(made);
      } else {
        groups.push({
          falk: true,
          left: [panel(left, head, "left")],
          top: [panel(top, head, "top", pairs(stage))],
          made: [made],
        });
      }
    } else if (stage.sources.length) {
      groups.push({ falk: false, left: beside(walk, stage, head), top: [], made: [made] });
    } else if (last && !last.falk && !last.left.length && !step.brief) last.made.push(made);
    else groups.push({ falk: false, left: [], top: [], made: [made] });
  }
  for (const group of groups) align(group);
  return groups;
}

/** What a stage that is no product was made of; heads that were joined all stand there. @param {Walk} walk @param {Stage} stage @param {number} head */
function beside(walk, stage, head) {
  if (stage.reads !== "head") return stage.sources.map((one) => panel(one, head, "left"));
  return Array.from({ length: walk.heads }, (_, h) => panel(stage.sources[0], h, "left"));
}

/** @param {Stage} stage @param {number} head @param {Panel["role"]} role @param {boolean} [turned] @returns {Panel} */
function panel(stage, head, role, turned = false) {
  const values = numbers(stage, head);
  const isId = stage.axes[1] === "id";
  const write = isId ? String : written(values);
  const finite = values.filter(Number.isFinite);
  const room = finite.reduce((most, x) => Math.max(most, write(x).length), 1) * LETTER + 12;
  const letters = finite.reduce((most, x) => Math.max(most, brief(x).length), 1);
  const most = isId ? 0 : largest(stage, finite.map(Math.abs));
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
    most,
    room,
    brief: isPlain ? letters * 7.2 + 4 : Number.POSITIVE_INFINITY,
    least: isPlain ? letters * 6.2 + 3 : Number.POSITIVE_INFINITY,
    wide: room,
    high: 28,
  };
}

const [MANY, NEARLY] = [600, 0.99];

/** The number with the last colour: of many it is one that few exceed, so that these do not make
 * all others pale; of shares that nobody exceeds. @param {Stage} stage @param {number[]} sizes */
function largest(stage, sizes) {
  if (isShare(stage) || sizes.length < MANY) return sizes.reduce((a, b) => Math.max(a, b), 0);
  return sizes.sort((a, b) => a - b)[Math.floor(sizes.length * NEARLY)];
}

/** Whether numbers are shares of a row, whose small ones should be seen. @param {Stage} stage */
export const isShare = ({ name }) => name === "weights" || name === "probabilities";

/** @param {Stage} stage @param {number} head */
function numbers(stage, head) {
  const found = [];
  for (const row of stage.rows)
    for (const column of stage.columns) found.push(stage.at(head, row, column));
  return found;
}

/** Places with a gap where some are left out; of a vocabulary that is all behind the likeliest.
 * @param {Stage} stage @param {0 | 1} axis @param {number[]} kept */
function drawn(stage, axis, kept) {
  if (stage.axes[axis] === "vocabulary")
    return kept.length < (stage.shape.at(-1) ?? 0) ? [...kept, null] : kept;
  /** @type {(number | null)[]} */
  const found = [];
  kept.forEach((at, i) => {
    if (i && kept[i - 1] + 1 !== at) found.push(null);
    found.push(at);
  });
  return found;
}

/** Of which rows or columns a panel has numbers. @param {Panel} panel @param {"rows" | "columns"} side */
const there = ({ stage, turned }, side) =>
  (side === "rows") === turned ? stage.columns : stage.rows;

/** Draw what all of some panels have, so that they stand in line.
 * @param {{panel: Panel, side: "rows" | "columns"}[]} sides */
function inLine(sides) {
  const all = sides.map(({ panel, side }) => new Set(there(panel, side)));
  const [first] = sides;
  const kept = there(first.panel, first.side).filter((at) => all.every((one) => one.has(at)));
  for (const { panel, side } of sides)
    panel[side] = drawn(panel.stage, (side === "rows") === panel.turned ? 1 : 0, kept);
}

/** The parts of a group as they stand in line. @param {Group} group */
function align({ falk, left, top, made }) {
  const rows = (/** @type {Panel[]} */ some) =>
    some.map((panel) => ({ panel, side: /** @type {const} */ ("rows") }));
  const columns = (/** @type {Panel[]} */ some) =>
    some.map((panel) => ({ panel, side: /** @type {const} */ ("columns") }));
  if (!left.length) return;
  inLine(rows([...left, ...made]));
  if (!falk) {
    const all = [...left, ...made];
    if (new Set(all.map((one) => one.stage.shape.at(-1))).size === 1) inLine(columns(all));
    return;
  }
  inLine([...columns(left), ...rows(top)]);
  made.forEach((one, i) => {
    inLine(columns([one, top[i]]));
  });
}

/** Whether there is room for numbers. @param {Panel} panel */
export const fits = (panel) =>
  panel.wide >= Math.min(panel.room - 4, panel.least) && panel.high >= 17;

/** Of what size the letters of a panel's numbers are. @param {Panel} panel */
export function letters(panel) {
  if (panel.wide >= panel.room - 4) return "";
  return panel.wide >= panel.brief ? "small" : "small least";
}

/** A number as it stands in a cell: with two decimals where there is no room for more.
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
 * What lights up in a panel while a number is looked at: the number itself, the row and the column
 * that make it, or the row or column that it goes into.
 * @param {Walk} walk @param {Group} group @param {Panel} panel @param {Cell} cell
 * @returns {{row: number | null, column: number | null, kind: "row" | "column" | "cell"} | null}
 */
export function light(walk, group, panel, cell) {
  const { stage, row, column } = cell;
  const mine = own(panel.stage, panel.head, walk.heads) === own(stage, cell.head, walk.heads);
  if (panel.stage === stage && mine && (panel.role === "made" || !isMade(group, stage)))
    return { row, column, kind: "cell" };
  const made = group.made.find((one) => one.stage === stage);
  if (made) return cause(group, made, panel, cell);
  return effect(group, panel, cell);
}

/** @param {Group} group @param {Stage} stage */
const isMade = (group, stage) => group.made.some((one) => one.stage === stage);

/** @param {number | null} row @param {number | null} [column] */
const rowOf = (row, column = null) => ({ row, column, kind: /** @type {const} */ ("row") });

/** @param {Panel} panel @param {number} at */
const columnOf = ({ turned }, at) => ({
  row: turned ? at : null,
  column: turned ? null : at,
  kind: /** @type {const} */ ("column"),
});

/** @param {Group} group @param {Panel} made @param {Panel} panel @param {Cell} cell */
function cause(group, made, panel, { stage, row, column }) {
  if (panel.role === "left" && group.falk) return rowOf(row);
  if (group.falk)
    return group.top[group.made.indexOf(made)] === panel ? columnOf(panel, column) : null;
  if (panel.role !== "left") return null;
  if (stage.reads === "head") {
    const wide = panel.stage.shape[panel.stage.shape.length - 1];
    return panel.head === Math.floor(column / wide) ? rowOf(row, column % wide) : null;
  }
  return rowOf(row, stage.reads === "row" || stage.reads === "pair" ? null : column);
}

/** Where a number of a factor goes. @param {Group} group @param {Panel} panel @param {Cell} cell */
function effect(group, panel, { stage, row, column }) {
  if (panel.role !== "made") return null;
  if (!group.falk) {
    if (!group.left.some((one) => one.stage === stage)) return null;
    return rowOf(row, panel.stage.reads === "number" ? column : null);
  }
  if (group.left[0].stage === stage) return rowOf(row);
  const top = group.top[group.made.indexOf(panel)];
  if (top?.stage !== stage) return null;
  return { ...rowOf(null, top.turned ? row : column), kind: /** @type {const} */ ("column") };
}
