// The cell sizes of a step's matrices: as large as possible and, if there is room, large enough for
// numbers. Results have priority over factors and inputs.

import { label } from "./stages.js";
import { fits, scene } from "./step_layout.js";

/** @import { Group, Panel } from "./step_layout.js" */
/** @import { Stage, Step, Walk } from "./types.js" */
/** @typedef {{wide: number, high: number}} Room pixels */

const SCALES = [1.75, 1.6, 1.45, 1.3, 1.15, 1];
const [NARROWEST, THIN, FEW] = [1, 44, 12]; // minimum and maximum pixels of a column without numbers; FEW: rows that get more height
const TYPED = 40; // up to this number of rows (a typed sentence), each row has room for its label
const FAVOUR = 4; // ratio of a product's column width to its left factor's
/** @typedef {"room" | "brief" | "small"} Digits all digits; two decimals; two decimals in a small font */
/** @type {[Digits, Digits][]} digits of the results and of the left inputs, in order of preference */
const TRIES = [
  ["room", "room"],
  ["room", "brief"],
  ["brief", "brief"],
  ["small", "small"],
];
export const FONT = 13; // font size of a label in pixels
export const BROAD = 0.55; // width of a letter as a share of the font size
const [NARROW, LINE, VISIBLE] = [560, 2, 4];
const [BETWEEN, ARROW, HEADING, TURNED, MORE] = [26, 80, 27, 92, 40];

/** The panels of a step with their sizes, and the scale of the step. In a narrow space, the panels are stacked instead of side by side. @param {Walk} walk @param {Step} step @param {number} head @param {Room} room */
export function arrange(walk, step, head, room) {
  const groups = scene(walk, step, head, !isNarrow(room));
  const scale = fit(walk, groups, room);
  const isTight = groups.some(
    (group) =>
      group.top.length > 1 &&
      (extent(walk, group, scale).wide > room.wide ||
        group.results.some(({ wide }) => wide < VISIBLE)),
  );
  if (!isTight) return { groups, scale };
  const stacked = scene(walk, step, head, false);
  return { groups: stacked, scale: fit(walk, stacked, room) };
}

/** Whether the space is too narrow for matrices side by side, as on a phone. @param {Room} room */
export const isNarrow = ({ wide }) => wide < NARROW;

/** Set the size of each panel; return the scale. @param {Walk} walk @param {Group[]} groups @param {Room} room */
function fit(walk, groups, room) {
  if (isNarrow(room)) {
    for (const group of groups) {
      if (group.isProduct) setWidths(walk, group, room.wide, 1);
      else for (const panel of panels(group)) setOwnWidth(walk, panel, room.wide);
      setHeights(walk, group, room.high, 1);
    }
    return 1;
  }
  for (const scale of SCALES) {
    const each = { wide: room.wide, high: room.high / groups.length };
    for (const group of groups) {
      setWidths(walk, group, each.wide, scale);
      setHeights(walk, group, each.high, scale);
    }
    if (scale === 1) break;
    const areFull = groups.every((group) => panels(group).every((panel) => isFull(panel, scale)));
    const extents = groups.map((group) => extent(walk, group, scale));
    const wide = Math.max(0, ...extents.map((each) => each.wide));
    const high = extents.reduce((sum, each) => sum + each.high, 0);
    if (areFull && wide <= room.wide && high <= room.high) return scale;
  }
  return 1;
}

/** Whether the left panels are the heads of a single stage. @param {Group} group */
export const isOneStage = ({ left }) => left.length > 1 && left[0].stage === left[1].stage;

/** @param {Group} group */
const panels = ({ left, top, results }) => [...left, ...top, ...results];

/** Whether a panel shows its numbers in the font size of the scale. @param {Panel} panel @param {number} scale */
const isFull = (panel, scale) =>
  panel.wide >= panel.room * scale - 1 && panel.high >= (panel.role === "top" ? 21 : 23) * scale;

/** Number of drawn columns. @param {Panel[]} some */
const countColumns = (some) => some.reduce((sum, { columns }) => sum + columns.length, 0);

/** @param {Panel[]} some */
const width = (some) => some.reduce((sum, { wide, columns }) => sum + wide * columns.length, 0);

/** @param {Panel[]} some */
const height = (some) => Math.max(0, ...some.map(({ rows, high }) => rows.length * high));

/** Width of everything beside and between the matrices, in pixels. @param {Walk} walk @param {Group} group @param {number} scale */
function beside(walk, group, scale) {
  const { isProduct, left, top, results } = group;
  const names = (/** @type {Panel[]} */ some) =>
    some.reduce((sum, panel) => sum + margin(walk, panel, scale) + BETWEEN, 0);
  if (isProduct) return names([left[0], ...top.slice(1)]) + LINE;
  if (!left.length) return names(results);
  const gaps = (isOneStage(group) ? BETWEEN : ARROW) * (left.length - 1);
  return names([left[0]]) + gaps + ARROW * results.length;
}

/** Height of everything above and below the matrices, in pixels. @param {Walk} walk @param {Group} group @param {number} scale */
function headings(walk, group, scale) {
  const above = Math.max(0, labelHeight(walk, group) - HEADING);
  return (group.isProduct ? 3 * HEADING : 2 * HEADING) * scale + above + MORE;
}

/** Height of rotated column labels in pixels; 0 if all labels fit without rotation.
 * @param {Walk} walk @param {Group} group */
export function labelHeight(walk, { isProduct, left, top, results }) {
  const named = (isProduct ? top : [...left, ...results]).filter((panel) =>
    ["tokens", "memory", "vocabulary"].includes(panel.stage.axes[panel.turned ? 0 : 1]),
  );
  const size = (/** @type {Panel} */ panel) => longest(walk, panel) * FONT * BROAD;
  if (named.every((panel) => size(panel) <= panel.wide - 4)) return 0;
  return Math.min(TURNED, Math.max(...named.map(size)) + 22);
}

/** Number of letters in the longest column label. @param {Walk} walk @param {Panel} panel */
export const longest = (walk, { stage, columns, turned }) =>
  longestOf(walk, stage, turned ? 0 : 1, columns);

/** Number of letters in the longest label. @param {Walk} walk @param {Stage} stage @param {0 | 1} axis @param {(number | null)[]} indices */
const longestOf = (walk, stage, axis, indices) =>
  Math.max(...indices.map((i) => (i === null ? 1 : [...label(walk, stage, axis, i)].length)));

/** @param {Walk} walk @param {Group} group @param {number} scale @returns {Room} */
function extent(walk, group, scale) {
  const { isProduct, left, top, results } = group;
  const all = [...left, ...results];
  return {
    wide: width(all) + beside(walk, group, scale),
    high: height(all) + (isProduct ? height(top) : 0) + headings(walk, group, scale),
  };
}

/** Set the column width of a panel that has a line to itself. @param {Walk} walk @param {Panel} panel @param {number} wide */
function setOwnWidth(walk, panel, wide) {
  const each = (wide - margin(walk, panel, 1) - LINE) / panel.columns.length;
  const thin = Math.max(NARROWEST, Math.min(THIN, Math.floor(each * 4) / 4));
  const size = [panel.room, panel.brief, panel.small].find((needed) => needed <= each);
  panel.wide = size ?? Math.min(thin, panel.room);
}

/** Set the column widths of a group. @param {Walk} walk @param {Group} group @param {number} wide @param {number} scale */
function setWidths(walk, group, wide, scale) {
  const { isProduct, left, top, results } = group;
  const upper = isProduct ? top : [];
  const all = [...left, ...results];
  const room = Math.max(160, wide - beside(walk, group, scale));
  const tryDigits = (/** @type {[Digits, Digits]} */ [ofResults, ofLeft]) => {
    results.forEach((panel, i) => {
      panel.wide = widthFor(ofResults, panel, ...(upper[i] ? [upper[i]] : [])) * scale;
    });
    for (const panel of left) panel.wide = widthFor(ofLeft, panel) * scale;
    return width(all) <= room;
  };
  if (TRIES.slice(0, upper.length < 2 ? 4 : 3).some(tryDigits)) return copyWidths(upper, results);
  tryDigits(TRIES[0]);
  const narrow = (/** @type {Panel[]} */ some, /** @type {number} */ rest) => {
    const each = Math.floor((rest / countColumns(some)) * 4) / 4;
    for (const panel of some) panel.wide = Math.max(NARROWEST, Math.min(panel.wide, THIN, each));
  };
  const isTight = () => width(all) > room && room - width(results) <= 2 * countColumns(left);
  if (isTight() && upper.length < 2)
    for (const panel of results) if (Number.isFinite(panel.small)) panel.wide = panel.small;
  if (width(all) > room && !isTight()) narrow(left, room - width(results));
  if (width(all) > room) {
    const share = (isProduct ? FAVOUR : 1) * countColumns(results);
    narrow(results, (room * share) / (share + countColumns(left)));
    if (left.length) narrow(left, room - width(results));
  }
  copyWidths(upper, results);
}

/** Give each factor above a result the result's column width. @param {Panel[]} upper @param {Panel[]} results */
function copyWidths(upper, results) {
  upper.forEach((panel, i) => {
    panel.wide = results[i].wide;
  });
}

/** Column width in pixels for numbers with these digits, or with all if two decimals are not enough.
 * @param {Digits} digits @param {Panel[]} some */
const widthFor = (digits, ...some) =>
  Math.max(...some.map((panel) => (Number.isFinite(panel[digits]) ? panel[digits] : panel.room)));

/** Set the row heights of a group. @param {Walk} walk @param {Group} group @param {number} high @param {number} scale */
function setHeights(walk, group, high, scale) {
  const { isProduct, left, top, results } = group;
  const upper = isProduct ? top : [];
  const all = [...left, ...results];
  const rows = Math.max(...all.map((panel) => panel.rows.length));
  const inner = Math.max(0, ...upper.map((panel) => panel.rows.length));
  const room = high - headings(walk, group, scale);
  let row = (rows <= FEW ? 30 : 22) * scale;
  let above = (inner <= FEW ? 26 : 14) * scale;
  if (rows * row + inner * above > room) {
    const smallest = inner <= FEW ? 20 : 150 / inner;
    above = Math.min(above, Math.max(smallest, (room - rows * row) / Math.max(1, inner)));
  }
  if (rows * row + inner * above > room) {
    const readable = all.every(fits) ? 19 : 13;
    const smallest = rows <= TYPED ? readable : Math.max(2, 300 / rows);
    row = Math.min(row, Math.max(smallest, (room - inner * above) / rows));
  }
  const rounded = (/** @type {number} */ size) => Math.max(0.5, Math.floor(size * 4) / 4);
  for (const panel of all) panel.high = rounded(row);
  for (const panel of upper) panel.high = rounded(above);
}

/** Width of the row labels in pixels. @param {Walk} walk @param {Panel} panel @param {number} scale */
export function margin(walk, panel, scale) {
  const axis = panel.turned ? 1 : 0;
  const letters = longestOf(walk, panel.stage, axis, panel.rows);
  return Math.min(116, Math.max(24, letters * 7.8 + 14)) * scale;
}
