// How a step stands on the page. A product is drawn as one computes it by hand (Falk's scheme):
// the first factor on the left of the result, the second one above it, so that the row and the
// column of a number meet in it. What is no product stands beside what it was made of.

import { written } from "./figures.js";
import { label, own, pairs } from "./stages.js";

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
 * @property {number} most the largest number, by which colours are chosen
 * @property {number} room pixels that its longest number takes
 * @property {number} wide pixels of a column
 * @property {number} high pixels of a row
 */

/**
 * Panels that belong together: a product, or what stands side by side.
 * @typedef {{falk: boolean, left: Panel[], top: Panel[], made: Panel[]}} Group
 */

const LETTER = 7.6; // pixels of a digit
const [LEAST, THIN, GAP] = [3, 16, 26];

const SCALES = [1.75, 1.6, 1.45, 1.3, 1.15, 1]; // as large as there is room for

/**
 * The panels of a step, and how much larger than usual they are.
 * @param {Walk} walk @param {Step} step @param {number} head
 * @param {{wide: number, high: number}} room pixels
 */
export function scene(walk, step, head, room) {
  const groups = grouped(walk, step, head);
  for (const scale of SCALES) {
    for (const group of groups) sized(walk, group, room.wide, scale);
    const used = groups.map((group) => extent(walk, group, scale));
    const wide = Math.max(0, ...used.map((one) => one.wide));
    const high = used.reduce((sum, one) => sum + one.high, 0);
    const isWhole = groups.every(({ left, top, made }) => [...left, ...top, ...made].every(fits));
    if (scale === 1 || (isWhole && wide <= room.wide && high <= room.high))
      return { groups, scale };
  }
  return { groups, scale: 1 };
}

/** Pixels that a group takes. @param {Walk} walk @param {Group} group @param {number} scale */
function extent(walk, { falk, left, top, made }, scale) {
  const high = (/** @type {Panel[]} */ some) =>
    Math.max(0, ...some.map((one) => one.rows.length * one.high));
  const all = [...left, ...made];
  const names = falk
    ? margin(walk, left[0], scale) +
      top.slice(1).reduce((sum, one) => sum + margin(walk, one, scale), 0)
    : all.reduce((sum, one, i) => sum + (i && left.length ? 30 : margin(walk, one, scale)), 0);
  const wide = all.reduce((sum, one) => sum + one.wide * one.columns.length + GAP, names);
  const heading = 52 * scale;
  return { wide, high: falk ? high(top) + high(all) + 2 * heading : high(all) + heading };
}

/** @param {Walk} walk @param {Step} step @param {number} head */
function grouped(walk, step, head) {
  /** @type {Group[]} */
  const groups = [];
  for (const stage of step.stages) {
    const made = panel(stage, head, "made");
    const last = groups[groups.length - 1];
    if (stage.factors.length) {
      const [left, top] = stage.factors;
      if (last?.falk && last.left[0].stage === left) {
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
  const room = Math.max(1, ...finite.map((value) => write(value).length)) * LETTER + 12;
  const most = isId ? 0 : Math.max(0, ...finite.map(Math.abs));
  const [rows, columns] = [drawn(stage.rows), drawn(stage.columns)];
  const axes = turned ? { rows: columns, columns: rows } : { rows, columns };
  return { stage, head, turned, role, ...axes, write, most, room, wide: room, high: 28 };
}

/** @param {Stage} stage @param {number} head */
function numbers(stage, head) {
  const found = [];
  for (const row of stage.rows)
    for (const column of stage.columns) found.push(stage.at(head, row, column));
  return found;
}

/** Places with a gap where some are left out. @param {number[]} kept */
function drawn(kept) {
  /** @type {(number | null)[]} */
  const found = [];
  kept.forEach((at, i) => {
    if (i && kept[i - 1] + 1 !== at && !(kept[i - 1] > at)) found.push(null);
    found.push(at);
  });
  return found;
}

/** Give each panel its cells' size: numbers where they fit, first in the result. @param {Walk} walk @param {Group} group @param {number} wide @param {number} scale */
function sized(walk, group, wide, scale) {
  const { falk, left, top, made } = group;
  const upper = falk ? top : [];
  made.forEach((one, i) => {
    one.wide = Math.max(one.room, upper[i]?.room ?? 0) * scale;
  });
  for (const one of left) one.wide = one.room * scale;
  const all = [...left, ...made];
  const names = Math.max(...all.map((one) => margin(walk, one, scale)), 24);
  const room = Math.max(200, wide - names - GAP * all.length);
  const width = (/** @type {Panel[]} */ some) =>
    some.reduce((sum, one) => sum + one.wide * one.columns.length, 0);
  const thin = (/** @type {Panel[]} */ some, /** @type {number} */ rest) => {
    for (const one of some)
      one.wide = Math.max(
        LEAST,
        Math.min(one.wide, THIN, Math.floor((rest / places(some)) * 4) / 4),
      );
  };
  if (width(all) > room && room - width(made) > 5 * places(left)) thin(left, room - width(made));
  if (width(all) > room) {
    const share = room / places(all);
    thin(made, share * places(made));
    thin(left, room - width(made));
  }
  made.forEach((one, i) => {
    if (upper[i]) upper[i].wide = one.wide;
  });
  for (const one of [...all, ...upper]) one.high = height(one) * scale;
  const high = Math.min(...all.map((one) => one.high));
  if (falk || left.length) for (const one of all) one.high = high;
  const above = Math.min(...upper.map((one) => one.high));
  for (const one of upper) one.high = above;
}

/** Columns that are drawn. @param {Panel[]} some */
const places = (some) => some.reduce((sum, one) => sum + one.columns.length, 0);

/** Pixels of a row: numbers stand in it where there are few. @param {Panel} panel */
function height({ rows, role }) {
  const count = rows.length;
  if (role === "top")
    return count <= 12 ? 26 : Math.max(2, Math.min(14, Math.floor((220 / count) * 2) / 2));
  return count <= 12
    ? 30
    : count <= 26
      ? 22
      : Math.max(3, Math.min(18, Math.floor((520 / count) * 2) / 2));
}

/** Pixels for the names of rows. @param {Walk} walk @param {Panel} panel @param {number} scale */
export function margin(walk, panel, scale) {
  const axis = panel.turned ? 1 : 0;
  const longest = Math.max(
    ...panel.rows.map((at) => (at === null ? 1 : [...label(walk, panel.stage, axis, at)].length)),
  );
  return Math.min(116, Math.max(24, longest * 7.8 + 14)) * scale;
}

/** Whether there is room for numbers. @param {Panel} panel */
export const fits = (panel) => panel.wide >= panel.room - 4 && panel.high >= 18;

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

/** @param {Group} group @param {Panel} made @param {Panel} panel @param {Cell} cell */
function cause(group, made, panel, { stage, row, column }) {
  if (group.falk) {
    if (panel.role === "left") return { row, column: null, kind: /** @type {const} */ ("row") };
    if (panel.role === "top" && group.top[group.made.indexOf(made)] === panel)
      return panel.turned
        ? { row: column, column: null, kind: /** @type {const} */ ("column") }
        : { row: null, column, kind: /** @type {const} */ ("column") };
    return null;
  }
  if (panel.role !== "left") return null;
  if (stage.reads === "head") {
    const wide = panel.stage.shape[panel.stage.shape.length - 1];
    if (panel.head !== Math.floor(column / wide)) return null;
    return { row, column: column % wide, kind: /** @type {const} */ ("row") };
  }
  const whole = stage.reads === "row" || stage.reads === "pair";
  return { row, column: whole ? null : column, kind: /** @type {const} */ ("row") };
}

/** Where a number of a factor goes. @param {Group} group @param {Panel} panel @param {Cell} cell */
function effect(group, panel, { stage, row, column }) {
  if (panel.role !== "made") return null;
  const i = group.made.indexOf(panel);
  if (!group.falk)
    return panel.stage.reads === "number"
      ? { row, column, kind: /** @type {const} */ ("row") }
      : { row, column: null, kind: /** @type {const} */ ("row") };
  if (group.left[0].stage === stage)
    return { row, column: null, kind: /** @type {const} */ ("row") };
  if (group.top[i]?.stage !== stage) return null;
  return {
    row: null,
    column: group.top[i].turned ? row : column,
    kind: /** @type {const} */ ("column"),
  };
}
