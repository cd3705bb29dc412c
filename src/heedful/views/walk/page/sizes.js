// How large the cells of a step's matrices are: as large as there is room for, and with numbers in
// them where these fit, first in the result.
import { fits } from "./scene.js";
import { label } from "./stages.js";

/** @import { Group, Panel } from "./scene.js" */
/** @import { Walk } from "./types.js" */
/** @typedef {{wide: number, high: number}} Room pixels */

const SCALES = [1.75, 1.6, 1.45, 1.3, 1.15, 1];
const [LEAST, THIN, FEW] = [1, 44, 12];
const [BETWEEN, ARROW, HEADING, TURNED, MORE] = [26, 80, 27, 50, 40];

/** Give each panel its size; how much larger than usual that is. @param {Walk} walk @param {Group[]} groups @param {Room} room */
export function fit(walk, groups, room) {
  for (const scale of SCALES) {
    const each = { wide: room.wide, high: room.high / groups.length };
    for (const group of groups) {
      across(walk, group, each.wide, scale);
      down(group, each.high, scale);
    }
    if (scale === 1) break;
    const isWhole = groups.every((group) => panels(group).every((one) => isFull(one, scale)));
    const used = groups.map((group) => extent(walk, group, scale));
    const wide = Math.max(0, ...used.map((one) => one.wide));
    const high = used.reduce((sum, one) => sum + one.high, 0);
    if (isWhole && wide <= room.wide && high <= room.high) return scale;
  }
  return 1;
}

/** Whether one stage stands there head by head. @param {Group} group */
export const areHeads = ({ left }) => left.length > 1 && left[0].stage === left[1].stage;

/** @param {Group} group */
const panels = ({ left, top, made }) => [...left, ...top, ...made];

/** Whether numbers stand in a panel as large as they should be. @param {Panel} panel @param {number} scale */
const isFull = (panel, scale) =>
  panel.wide >= panel.room * scale - 1 && panel.high >= (panel.role === "top" ? 21 : 23) * scale;

/** Columns that are drawn. @param {Panel[]} some */
const places = (some) => some.reduce((sum, one) => sum + one.columns.length, 0);

/** @param {Panel[]} some */
const width = (some) => some.reduce((sum, one) => sum + one.wide * one.columns.length, 0);

/** @param {Panel[]} some */
const depth = (some) => Math.max(0, ...some.map((one) => one.rows.length * one.high));

/** Pixels beside and between the matrices. @param {Walk} walk @param {Group} group @param {number} scale */
function beside(walk, group, scale) {
  const { falk, left, top, made } = group;
  const names = (/** @type {Panel[]} */ some) =>
    some.reduce((sum, one) => sum + margin(walk, one, scale) + BETWEEN, 0);
  if (falk) return names([left[0], ...top.slice(1)]) + BETWEEN;
  if (!left.length) return names(made);
  const heads = areHeads(group) ? BETWEEN * (left.length - 1) : ARROW * (left.length - 1);
  return names([left[0]]) + heads + ARROW * made.length;
}

/** Pixels above and below the matrices. @param {Group} group @param {number} scale */
function headings({ falk, left, top, made }, scale) {
  const isTurned = (falk ? top : [...left, ...made]).some(
    ({ wide, stage }) => wide < 40 && stage.axes.some((axis) => axis !== "width"),
  );
  return (falk ? 3 * HEADING : 2 * HEADING) * scale + (isTurned ? TURNED : 0) + MORE;
}

/** @param {Walk} walk @param {Group} group @param {number} scale @returns {Room} */
function extent(walk, group, scale) {
  const { falk, left, top, made } = group;
  const all = [...left, ...made];
  return {
    wide: width(all) + beside(walk, group, scale),
    high: depth(all) + (falk ? depth(top) : 0) + headings(group, scale),
  };
}

/** The width of columns. @param {Walk} walk @param {Group} group @param {number} wide @param {number} scale */
function across(walk, group, wide, scale) {
  const { falk, left, top, made } = group;
  const upper = falk ? top : [];
  made.forEach((one, i) => {
    one.wide = Math.max(one.room, upper[i]?.room ?? 0) * scale;
  });
  for (const one of left) one.wide = one.room * scale;
  const all = [...left, ...made];
  const room = Math.max(160, wide - beside(walk, group, scale));
  const thin = (/** @type {Panel[]} */ some, /** @type {number} */ rest) => {
    const each = Math.floor((rest / places(some)) * 4) / 4;
    for (const one of some) one.wide = Math.max(LEAST, Math.min(one.wide, THIN, each));
  };
  const isTight = () => width(all) > room && room - width(made) <= 2 * places(left);
  if (isTight() && upper.length < 2)
    for (const one of made) if (Number.isFinite(one.least)) one.wide = one.least;
  if (width(all) > room && !isTight()) thin(left, room - width(made));
  if (width(all) > room) {
    thin(made, (room / places(all)) * places(made));
    if (left.length) thin(left, room - width(made));
  }
  upper.forEach((one, i) => {
    one.wide = made[i].wide;
  });
}

/** The height of rows. @param {Group} group @param {number} high @param {number} scale */
function down(group, high, scale) {
  const { falk, left, top, made } = group;
  const upper = falk ? top : [];
  const all = [...left, ...made];
  const rows = Math.max(...all.map((one) => one.rows.length));
  const inner = Math.max(0, ...upper.map((one) => one.rows.length));
  const room = high - headings(group, scale);
  let row = (rows <= FEW ? 30 : 22) * scale;
  let above = (inner <= FEW ? 26 : 14) * scale;
  if (rows * row + inner * above > room) {
    const least = inner <= FEW ? 20 : 150 / inner;
    above = Math.min(above, Math.max(least, (room - rows * row) / Math.max(1, inner)));
  }
  if (rows * row + inner * above > room) {
    const small = all.every(fits) ? 19 : 13;
    const least = rows <= 30 ? small : Math.max(2, 300 / rows);
    row = Math.min(row, Math.max(least, (room - inner * above) / rows));
  }
  const even = (/** @type {number} */ size) => Math.max(0.5, Math.floor(size * 4) / 4);
  for (const one of all) one.high = even(row);
  for (const one of upper) one.high = even(above);
}

/** Pixels for the names of rows. @param {Walk} walk @param {Panel} panel @param {number} scale */
export function margin(walk, panel, scale) {
  const axis = panel.turned ? 1 : 0;
  const lengths = panel.rows.map((at) =>
    at === null ? 1 : [...label(walk, panel.stage, axis, at)].length,
  );
  return Math.min(116, Math.max(24, Math.max(...lengths) * 7.8 + 14)) * scale;
}
