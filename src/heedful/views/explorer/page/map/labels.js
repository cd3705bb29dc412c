// Labels along a map's edges: names of all tokens if there is room, otherwise round indices.

import { edgeOf } from "./viewport.js";

/** @import { Axis } from "../types.js" */
/** @import { Place } from "./viewport.js" */

/**
 * A label at an edge: left of a row, or above a column. The name of a column is rotated by 90°.
 * @typedef {object} Label
 * @property {Axis} axis
 * @property {number} index the token's index
 * @property {string} name truncated to fit; empty if only the index is shown
 * @property {string} number the index as text
 * @property {number} size the font size of the name, in pixels
 * @property {number} x the place of the label's end next to the map, in CSS pixels
 * @property {number} y
 * @property {boolean} isTurned
 * @property {"" | "chosen" | "highlighted"} kind
 */

/** Measures the width of a text at a font size. @typedef {(text: string, size: number) => number} Measure */

const LINE = 11; // minimum pixels between the labels of neighbouring tokens
const APART = { queries: 30, keys: 58 }; // minimum pixels between labels of round indices
const NAME = 12; // the largest font size of a name
export const NUMBER = 10; // the font size of an index
const GAP = 7; // pixels between a label and the map
const LONGEST = 60; // maximum number of characters of a truncated name

/**
 * @param {Place} place @param {(axis: Axis, index: number) => string | null | undefined} name undefined: not loaded yet
 * @param {Record<Axis, {chosen: number | null, highlighted: number | null}>} marked
 * @param {Measure} measure @param {{left: number, top: number}} gutters pixels for the labels
 */
export function labelsOf(place, name, marked, measure, gutters) {
  return [
    ...along("queries", place, name, marked, measure, gutters.left),
    ...along("keys", place, name, marked, measure, gutters.top),
  ];
}

/** @param {Axis} axis @param {Place} place @param {any} name @param {any} marked @param {Measure} measure @param {number} room @returns {Label[]} */
function along(axis, place, name, marked, measure, room) {
  const isRow = axis === "queries";
  const size = Math.min(NAME, Math.max(LINE, place.scale) - 0.5);
  const { first, tokens, start, length, across } = edgeOf(place, axis);
  const end = Math.min(tokens, first + length / place.scale - 0.5);
  const { step, isNamed } = stepOf(axis, place.scale);
  const numberWidth = measure(count(Math.max(0, Math.ceil(end) - 1)), NUMBER);
  const middle = (/** @type {number} */ index) => start + (index + 0.5 - first) * place.scale;
  const visible = Array.from(
    { length: isRow || !isNamed ? 0 : Math.max(0, Math.ceil(end) - Math.ceil(first - 0.5)) },
    (_, i) => name(axis, Math.ceil(first - 0.5) + i),
  );
  const isWide =
    visible.length > 0 && visible.every((full) => full && measure(full, size) + 6 <= place.scale);
  /** @param {number} index @param {boolean} hasName @param {"" | "chosen" | "highlighted"} kind */
  const label = (index, hasName, kind) => {
    const full = hasName ? name(axis, index) : null;
    const available = room - GAP - numberWidth - 16;
    return {
      axis,
      index,
      kind,
      name:
        full === undefined
          ? "…"
          : full === null
            ? ""
            : truncate(full, isWide ? place.scale : available, measure, size),
      number: count(index),
      size,
      x: isRow ? across - GAP : middle(index),
      y: isRow ? middle(index) : across - GAP,
      isTurned: !isRow && !isWide && (hasName || kind !== ""),
    };
  };
  const special = /** @type {const} */ (["highlighted", "chosen"])
    .map((kind) => ({ kind, index: marked[axis][kind] }))
    .filter(({ index }) => index !== null && index >= first - 0.5 && index < end + 0.5)
    .map(({ kind, index }) => label(index, true, kind))
    .filter(({ index }, i, all) => !all.slice(i + 1).some((other) => other.index === index));
  const apart = isNamed || isRow ? LINE : 30;
  const isFree = (/** @type {number} */ index) =>
    special.every((other) => Math.abs(middle(index) - middle(other.index)) >= apart);
  const labels = [];
  const from = Math.max(0, Math.ceil(Math.ceil(first - 0.5) / step) * step);
  for (let index = from; index < end; index += step)
    if (isFree(index)) labels.push(label(index, isNamed, ""));
  return [...labels, ...special];
}

/** The distance between labels, in tokens, and whether they are names. @param {Axis} axis @param {number} scale */
export function stepOf(axis, scale) {
  if (scale >= LINE) return { step: 1, isNamed: true };
  const smallest = APART[axis] / scale;
  const ten = 10 ** Math.floor(Math.log10(smallest));
  const step = [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= smallest) ?? ten * 10;
  return { step: Math.max(1, step), isNamed: false };
}

export const count = (/** @type {number} */ index) => index.toLocaleString("en");

const graphemes = new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** Truncate a name to the available pixels, with an ellipsis. @param {string} name @param {number} room @param {Measure} measure @param {number} size */
export function truncate(name, room, measure, size) {
  if (name.length < 4 * LONGEST && measure(name, size) <= room) return isolated(name);
  const parts = Array.from(graphemes.segment(name.slice(0, 4 * LONGEST)), ({ segment }) => segment);
  let [low, high] = [1, Math.min(parts.length, LONGEST)];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (measure(`${parts.slice(0, middle).join("")}…`, size) <= room) low = middle;
    else high = middle - 1;
  }
  return isolated(`${parts.slice(0, low).join("")}…`);
}

/** Isolate a text, so that its direction does not affect the text around it. */
const isolated = (/** @type {string} */ text) => `\u2068${text}\u2069`;

/** Draw labels. @param {CanvasRenderingContext2D} context @param {Label[]} labels @param {import("../types.js").Ink} ink @param {Measure} measure */
export function drawLabels(context, labels, ink, measure) {
  context.textBaseline = "middle";
  const widths = labels.map(({ name, number }) => (name ? measure(number, NUMBER) : 0));
  const numbers = Math.max(0, ...widths);
  for (const label of labels) {
    context.save();
    context.translate(label.x, label.y);
    if (label.axis === "keys" && label.isTurned) context.rotate(-Math.PI / 2);
    // the map is to the right of a row's label and, after the rotation, to the left of a column's label
    const toLeft = label.axis === "queries";
    const number = measure(label.number, NUMBER);
    const name = label.name ? measure(label.name, label.size) : 0;
    const gap = label.name ? 5 : 0;
    const isCentred = label.axis === "keys" && !label.isTurned;
    if (label.kind && isCentred) {
      context.fillStyle = label.kind === "highlighted" ? ink.highlight : ink.mark;
      context.beginPath();
      context.roundRect(-name / 2 - 3, -2 * label.size - 4, name + 6, 2 * label.size + 6, 3);
      context.fill();
    } else if (label.kind) {
      const wide = (label.name ? Math.max(number, numbers) : number) + gap + name + 8;
      context.fillStyle = label.kind === "highlighted" ? ink.highlight : ink.mark;
      context.beginPath();
      const high = label.size + 2;
      context.roundRect(toLeft ? -wide + 4 : -4, -high / 2, wide, high, 3);
      context.fill();
    }
    context.font = font(NUMBER);
    context.fillStyle = label.kind ? ink.ground : label.name ? ink.quiet : ink.text;
    if (isCentred) {
      context.textAlign = "center";
      context.fillText(label.number, 0, label.name ? -label.size - 5 : -5);
      context.font = font(label.size);
      context.fillStyle = label.kind ? ink.ground : ink.text;
      context.fillText(label.name, 0, -5);
    } else {
      context.textAlign = toLeft ? "right" : "left";
      context.fillText(label.number, 0, 0);
      if (label.name) {
        context.font = font(label.size);
        context.fillStyle = label.kind ? ink.ground : ink.text;
        const room = Math.max(number, numbers) + gap;
        context.fillText(label.name, toLeft ? -room : room, 0);
      }
    }
    context.restore();
  }
}

export const font = (/** @type {number} */ size) => `${size}px system-ui, sans-serif`;

/** A cached measurement of text widths. @param {CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D} context @returns {Measure} */
export function measuring(context) {
  /** @type {Map<string, number>} */
  const cache = new Map();
  return (text, size) => {
    const id = `${size} ${text}`;
    if (cache.size > 8000) cache.clear();
    if (!cache.has(id)) {
      context.font = font(size);
      cache.set(id, context.measureText(text).width);
    }
    return cache.get(id) ?? 0;
  };
}

/** A token's name; "" if it has none, "…" while it is loading. @param {any} tokens @param {string} callId @param {Axis} axis @param {number} index */
export function nameOf(tokens, callId, axis, index) {
  const name = tokens.name(callId, axis, index);
  return name === undefined ? "…" : (name ?? "");
}
