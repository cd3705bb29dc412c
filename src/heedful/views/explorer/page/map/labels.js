// The names of tokens along a map's edges: of every token where there is room, else round places.

/** @import { Axis } from "../types.js" */
/** @import { Place } from "./viewport.js" */

/**
 * One name at an edge. Rows have theirs to the left, columns above, turned by a quarter.
 * @typedef {object} Label
 * @property {Axis} axis
 * @property {number} at the token's place
 * @property {string} name cut to the room; empty where only the place is told
 * @property {string} number
 * @property {number} size of the name, in pixels
 * @property {number} x where the label ends towards the map, in CSS pixels
 * @property {number} y
 * @property {boolean} isTurned
 * @property {"" | "chosen" | "held"} is
 */

/**
 * How wide a text is, for a font.
 * @callback Measure
 * @param {string} text
 * @param {number} size
 * @returns {number}
 */

const LINE = 11; // pixels that a line of names needs
const APART = { queries: 30, keys: 58 }; // pixels between places that are told alone
const NAME = 12; // the size of a name at most
export const NUMBER = 10;
const GAP = 7; // between a label and the map
const LONGEST = 60; // letters that are tried

/**
 * @param {Place} place
 * @param {(axis: Axis, at: number) => string | null | undefined} name undefined: not known yet
 * @param {Record<Axis, {chosen: number | null, held: number | null}>} marked
 * @param {Measure} measure @param {{left: number, top: number}} names pixels for them
 * @returns {Label[]}
 */
export function labelsOf(place, name, marked, measure, names) {
  return [
    ...along("queries", place, name, marked, measure, names.left),
    ...along("keys", place, name, marked, measure, names.top),
  ];
}

/** @param {Axis} axis @param {Place} place @param {any} name @param {any} marked @param {Measure} measure @param {number} room @returns {Label[]} */
function along(axis, place, name, marked, measure, room) {
  const isRow = axis === "queries";
  const tokens = place.shape[isRow ? 0 : 1];
  const size = Math.min(NAME, Math.max(LINE, place.scale) - 0.5);
  const first = isRow ? place.y : place.x;
  const pixels = isRow ? place.high : place.wide;
  const [start, end] = [
    Math.ceil(first - 0.5),
    Math.min(tokens, first + pixels / place.scale - 0.5),
  ];
  const { step, isNamed } = stepOf(axis, place.scale);
  const wide = measure(count(Math.max(0, Math.ceil(end) - 1)), NUMBER);
  const middle = (/** @type {number} */ at) =>
    (isRow ? place.top : place.left) + (at + 0.5 - first) * place.scale;
  const edge = (isRow ? place.left : place.top) - GAP;
  /** @param {number} at @param {boolean} hasName @param {"" | "chosen" | "held"} is */
  const made = (at, hasName, is) => {
    const known = hasName ? name(axis, at) : null;
    const left = room - GAP - wide - 16;
    return {
      axis,
      at,
      is,
      name: known === undefined ? "…" : known === null ? "" : fitted(known, left, measure, size),
      number: count(at),
      size,
      x: isRow ? edge : middle(at),
      y: isRow ? middle(at) : edge,
      isTurned: !isRow && (hasName || is !== ""),
    };
  };
  const special = /** @type {const} */ (["held", "chosen"])
    .map((is) => ({ is, at: marked[axis][is] }))
    .filter(({ at }) => at !== null && at >= first - 0.5 && at < end + 0.5)
    .map(({ is, at }) => made(at, true, is))
    .filter((one, i, all) => !all.slice(i + 1).some((other) => other.at === one.at));
  const free = (/** @type {number} */ at) =>
    special.every((one) => Math.abs(middle(at) - middle(one.at)) >= (isNamed || isRow ? LINE : 30));
  const found = [];
  for (let at = Math.max(0, Math.ceil(start / step) * step); at < end; at += step)
    if (free(at)) found.push(made(at, isNamed, ""));
  return [...found, ...special];
}

/** Every how many tokens one is told, and whether by its name. @param {Axis} axis @param {number} scale */
export function stepOf(axis, scale) {
  if (scale >= LINE) return { step: 1, isNamed: true };
  const least = APART[axis] / scale;
  const ten = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= least) ?? ten * 10;
  return { step: Math.max(1, step), isNamed: false };
}

export const count = (/** @type {number} */ at) => at.toLocaleString("en");

const letters = new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** As much of a name as there is room for, an ellipsis at its end. @param {string} name @param {number} room @param {Measure} measure @param {number} [size] */
export const fitted = (name, room, measure, size = NAME) =>
  cutTo(name, room, (text) => measure(text, size));

/** @param {string} name @param {number} room @param {(text: string) => number} measure */
function cutTo(name, room, measure) {
  if (name.length < 4 * LONGEST && measure(name) <= room) return isolated(name);
  const parts = Array.from(letters.segment(name.slice(0, 4 * LONGEST)), (one) => one.segment);
  let [most, least] = [Math.min(parts.length, LONGEST), 1];
  while (least < most) {
    const middle = Math.ceil((least + most) / 2);
    if (measure(`${parts.slice(0, middle).join("")}…`) <= room) least = middle;
    else most = middle - 1;
  }
  return isolated(`${parts.slice(0, least).join("")}…`);
}

/** So that the direction of its script does not move what stands beside it. */
const isolated = (/** @type {string} */ text) => `\u2068${text}\u2069`;

/**
 * Draw labels.
 * @param {CanvasRenderingContext2D} context @param {Label[]} labels
 * @param {{text: string, quiet: string, mark: string, held: string, ground: string}} ink
 * @param {Measure} measure
 */
export function drawLabels(context, labels, ink, measure) {
  context.textBaseline = "middle";
  const numbers = Math.max(
    0,
    ...labels.filter((one) => one.name).map((one) => measure(one.number, NUMBER)),
  );
  for (const label of labels) {
    context.save();
    context.translate(label.x, label.y);
    if (label.axis === "keys" && label.isTurned) context.rotate(-Math.PI / 2);
    // the map is to the right of a row's label and, turned, to the left of a column's
    const toLeft = label.axis === "queries";
    const number = measure(label.number, NUMBER);
    const name = label.name ? measure(label.name, label.size) : 0;
    const gap = label.name ? 5 : 0;
    if (label.is) {
      const wide = (label.name ? Math.max(number, numbers) : number) + gap + name + 8;
      context.fillStyle = label.is === "held" ? ink.held : ink.mark;
      context.beginPath();
      const high = label.size + 2;
      context.roundRect(toLeft ? -wide + 4 : -4, -high / 2, wide, high, 3);
      context.fill();
    }
    context.font = font(NUMBER);
    context.fillStyle = label.is ? ink.ground : label.name ? ink.quiet : ink.text;
    if (label.axis === "keys" && !label.isTurned) {
      context.textAlign = "center";
      context.fillText(label.number, 0, -5);
    } else {
      context.textAlign = toLeft ? "right" : "left";
      context.fillText(label.number, 0, 0);
      if (label.name) {
        context.font = font(label.size);
        context.fillStyle = label.is ? ink.ground : ink.text;
        const room = Math.max(number, numbers) + gap;
        context.fillText(label.name, toLeft ? -room : room, 0);
      }
    }
    context.restore();
  }
}

export const font = (/** @type {number} */ size) => `${size}px system-ui, sans-serif`;

/** How wide texts are, remembered. @param {CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D} context @returns {Measure} */
export function measuring(context) {
  /** @type {Map<string, number>} */
  const known = new Map();
  return (text, size) => {
    const id = `${size} ${text}`;
    let wide = known.get(id);
    if (wide === undefined) {
      if (known.size > 8000) known.clear();
      context.font = font(size);
      wide = context.measureText(text).width;
      known.set(id, wide);
    }
    return wide;
  };
}

/** A token's name; nothing where it has none, "…" while it is not known. @param {any} tokens @param {string} where @param {Axis} axis @param {number} at */
export function nameOf(tokens, where, axis, at) {
  const name = tokens.name(where, axis, at);
  return name === undefined ? "…" : (name ?? "");
}
