// How large the cells of a step's matrices are: as large as there is room for, and with numbers in
// them where these fit, first in the result.
import { fits, scene } from "./scene.js";
import { label } from "./stages.js";

/** @import { Group, Panel } from "./scene.js" */
/** @import { Step, Walk } from "./types.js" */
/** @typedef {{wide: number, high: number}} Room pixels */

const SCALES = [1.75, 1.6, 1.45, 1.3, 1.15, 1];
const [LEAST, THIN, FEW] = [1, 44, 12];
const TYPED = 40; // rows of a sentence that is typed: their names are seen
const FAVOUR = 4; // columns of a product are so much wider than those of what is multiplied
/** @typedef {"room" | "brief" | "least"} Digits all; two decimals; these in small letters */
/** @type {[Digits, Digits][]} of results, and of what they are made of */
const TRIES = [
  ["room", "room"],
  ["room", "brief"],
  ["brief", "brief"],
  ["least", "least"],
];
export const LETTERS = 13; // pixels of a name's letters
export const BROAD = 0.55; // how broad these are, of their size
const [NARROW, LINE, SEEN] = [560, 2, 4];
const [BETWEEN, ARROW, HEADING, TURNED, MORE] = [26, 80, 27, 92, 40];

/**
 * The panels of a step, each with its size, and how much larger than usual they are. In a narrow room
 * what stands side by side elsewhere is stacked.
 * @param {Walk} walk @param {Step} step @param {number} head @param {Room} room
 */
export function arranged(walk, step, head, room) {
  const groups = scene(walk, step, head, !isNarrow(room));
  const scale = fit(walk, groups, room);
  const isTight = groups.some(
    (group) =>
      group.top.length > 1 &&
      (extent(walk, group, scale).wide > room.wide || group.made.some((one) => one.wide < SEEN)),
  );
  if (!isTight) return { groups, scale };
  const apart = scene(walk, step, head, false);
  return { groups: apart, scale: fit(walk, apart, room) };
}

/** Whether there is no room for matrices side by side: on a phone. @param {Room} room */
export const isNarrow = ({ wide }) => wide < NARROW;

/** Give each panel its size; how much larger than usual that is. @param {Walk} walk @param {Group[]} groups @param {Room} room */
function fit(walk, groups, room) {
  if (isNarrow(room)) {
    for (const group of groups) {
      if (group.falk) across(walk, group, room.wide, 1);
      else for (const one of panels(group)) alone(walk, one, room.wide);
      down(walk, group, room.high, 1);
    }
    return 1;
  }
  for (const scale of SCALES) {
    const each = { wide: room.wide, high: room.high / groups.length };
    for (const group of groups) {
      across(walk, group, each.wide, scale);
      down(walk, group, each.high, scale);
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
  if (falk) return names([left[0], ...top.slice(1)]) + LINE;
  if (!left.length) return names(made);
  const heads = areHeads(group) ? BETWEEN * (left.length - 1) : ARROW * (left.length - 1);
  return names([left[0]]) + heads + ARROW * made.length;
}

/** Pixels above and below the matrices. @param {Walk} walk @param {Group} group @param {number} scale */
function headings(walk, group, scale) {
  const above = Math.max(0, namesAbove(walk, group) - HEADING);
  return (group.falk ? 3 * HEADING : 2 * HEADING) * scale + above + MORE;
}

/** Pixels above a group's matrices for names of columns that stand on their side, as one of them
 * would not fit: then all do. 0 where all fit. @param {Walk} walk @param {Group} group */
export function namesAbove(walk, { falk, left, top, made }) {
  const named = (falk ? top : [...left, ...made]).filter((panel) =>
    ["tokens", "memory", "vocabulary"].includes(panel.stage.axes[panel.turned ? 0 : 1]),
  );
  const size = (/** @type {Panel} */ panel) => longest(walk, panel) * LETTERS * BROAD;
  if (named.every((panel) => size(panel) <= panel.wide - 4)) return 0;
  return Math.min(TURNED, Math.max(...named.map(size)) + 22);
}

/** Letters of the longest name of a column. @param {Walk} walk @param {Panel} panel */
export const longest = (walk, { stage, columns, turned }) =>
  Math.max(
    ...columns.map((at) => (at === null ? 1 : [...label(walk, stage, turned ? 0 : 1, at)].length)),
  );

/** @param {Walk} walk @param {Group} group @param {number} scale @returns {Room} */
function extent(walk, group, scale) {
  const { falk, left, top, made } = group;
  const all = [...left, ...made];
  return {
    wide: width(all) + beside(walk, group, scale),
    high: depth(all) + (falk ? depth(top) : 0) + headings(walk, group, scale),
  };
}

/** The width of a panel's columns that stands in its own line. @param {Walk} walk @param {Panel} panel @param {number} wide */
function alone(walk, panel, wide) {
  const each = (wide - margin(walk, panel, 1) - LINE) / panel.columns.length;
  const thin = Math.max(LEAST, Math.min(THIN, Math.floor(each * 4) / 4));
  const found = [panel.room, panel.brief, panel.least].find((one) => one <= each);
  panel.wide = found ?? Math.min(thin, panel.room);
}

/** The width of columns. @param {Walk} walk @param {Group} group @param {number} wide @param {number} scale */
function across(walk, group, wide, scale) {
  const { falk, left, top, made } = group;
  const upper = falk ? top : [];
  const all = [...left, ...made];
  const room = Math.max(160, wide - beside(walk, group, scale));
  const write = (/** @type {[Digits, Digits]} */ [ofMade, ofLeft]) => {
    made.forEach((one, i) => {
      one.wide = numbered(ofMade, one, ...(upper[i] ? [upper[i]] : [])) * scale;
    });
    for (const one of left) one.wide = numbered(ofLeft, one) * scale;
    return width(all) <= room;
  };
  if (TRIES.slice(0, upper.length < 2 ? 4 : 3).some(write)) return aligned(upper, made);
  write(TRIES[0]);
  const thin = (/** @type {Panel[]} */ some, /** @type {number} */ rest) => {
    const each = Math.floor((rest / places(some)) * 4) / 4;
    for (const one of some) one.wide = Math.max(LEAST, Math.min(one.wide, THIN, each));
  };
  const isTight = () => width(all) > room && room - width(made) <= 2 * places(left);
  if (isTight() && upper.length < 2)
    for (const one of made) if (Number.isFinite(one.least)) one.wide = one.least;
  if (width(all) > room && !isTight()) thin(left, room - width(made));
  if (width(all) > room) {
    const share = (falk ? FAVOUR : 1) * places(made);
    thin(made, (room * share) / (share + places(left)));
    if (left.length) thin(left, room - width(made));
  }
  aligned(upper, made);
}

/** Columns of a factor above its results are as wide as these. @param {Panel[]} upper @param {Panel[]} made */
function aligned(upper, made) {
  upper.forEach((one, i) => {
    one.wide = made[i].wide;
  });
}

/** Pixels of a column in which the numbers of some panels are written with so many digits, or with
 * all where fewer do not do. @param {Digits} digits @param {Panel[]} some */
const numbered = (digits, ...some) =>
  Math.max(...some.map((one) => (Number.isFinite(one[digits]) ? one[digits] : one.room)));

/** The height of rows. @param {Walk} walk @param {Group} group @param {number} high @param {number} scale */
function down(walk, group, high, scale) {
  const { falk, left, top, made } = group;
  const upper = falk ? top : [];
  const all = [...left, ...made];
  const rows = Math.max(...all.map((one) => one.rows.length));
  const inner = Math.max(0, ...upper.map((one) => one.rows.length));
  const room = high - headings(walk, group, scale);
  let row = (rows <= FEW ? 30 : 22) * scale;
  let above = (inner <= FEW ? 26 : 14) * scale;
  if (rows * row + inner * above > room) {
    const least = inner <= FEW ? 20 : 150 / inner;
    above = Math.min(above, Math.max(least, (room - rows * row) / Math.max(1, inner)));
  }
  if (rows * row + inner * above > room) {
    const small = all.every(fits) ? 19 : 13;
    const least = rows <= TYPED ? small : Math.max(2, 300 / rows);
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
