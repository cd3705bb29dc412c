// Marks on a map: the chosen cell, rows and columns that are held, tokens that were found.
import { cornerOf } from "./place.js";

/** @import { State } from "../state.js" */
/** @import { Cell, Ink } from "../types.js" */
/** @import { Place } from "./place.js" */

/** @typedef {CanvasRenderingContext2D} Context */

/** All marks. @param {Context} context @param {Place} place @param {State} state @param {Ink} ink */
export function drawMarks(context, place, state, ink) {
  const { cell, held, pinned } = state;
  context.save();
  context.beginPath();
  context.rect(place.left - 4, place.top - 4, place.wide + 8, place.high + 8); // a box stands out
  context.clip();
  if (held.value.query !== null) band(context, place, "query", held.value.query, ink.held, 0.9);
  if (held.value.key !== null) band(context, place, "key", held.value.key, ink.held, 0.9);
  if (cell.value) {
    band(context, place, "query", cell.value.query, ink.mark, 0.5);
    band(context, place, "key", cell.value.key, ink.mark, 0.5);
    box(context, place, ink, cell.value, pinned.value ? 2 : 1.5);
  }
  context.restore();
  found(context, place, state, ink);
}

/** Two lines along a row or a column. @param {Context} context @param {Place} place @param {"query" | "key"} axis @param {number} at @param {string} colour @param {number} alpha */
function band(context, place, axis, at, colour, alpha) {
  const isRow = axis === "query";
  const first = isRow
    ? place.top + (at - place.y) * place.scale
    : place.left + (at - place.x) * place.scale;
  const size = Math.max(place.scale, 2);
  const [start, end] = isRow
    ? [place.top, place.top + place.high]
    : [place.left, place.left + place.wide];
  if (first + size < start || first > end) return;
  context.globalAlpha = alpha;
  context.fillStyle = colour;
  for (const side of [first - 0.5, first + size - 0.5])
    if (isRow) context.fillRect(place.left, side, place.wide, 1);
    else context.fillRect(side, place.top, 1, place.high);
  context.globalAlpha = 1;
}

/** @param {Context} context @param {Place} place @param {Ink} ink @param {Cell} cell */
function box(context, place, ink, cell, /** @type {number} */ line) {
  const [x, y] = cornerOf(place, cell);
  const isOut = x + place.scale < place.left || y + place.scale < place.top;
  if (isOut || x > place.left + place.wide || y > place.top + place.high) return;
  const size = Math.max(place.scale, 5);
  const off = (size - place.scale) / 2;
  context.lineWidth = line + 2;
  context.strokeStyle = ink.ground;
  context.strokeRect(x - off - line / 2, y - off - line / 2, size + line, size + line);
  context.lineWidth = line;
  context.strokeStyle = ink.mark;
  context.strokeRect(x - off - line / 2, y - off - line / 2, size + line, size + line);
}

/** Small marks at the edge for tokens that were searched for. @param {Context} context @param {Place} place @param {State} state @param {Ink} ink */
function found(context, place, state, ink) {
  const now = state.found.value;
  if (!now) return;
  const isRow = now.axis === "queries";
  const first = isRow ? place.y : place.x;
  const length = (isRow ? place.high : place.wide) / place.scale;
  now.places.forEach((at, i) => {
    if (at + 1 <= first || at >= first + length) return;
    const middle = (at + 0.5 - first) * place.scale;
    const size = i === now.at ? 6 : 4;
    context.fillStyle = ink.found;
    context.beginPath();
    const [x, y] = isRow ? [place.left, place.top + middle] : [place.left + middle, place.top];
    context.moveTo(x, y);
    context.lineTo(isRow ? x - size : x - size * 0.7, isRow ? y - size * 0.7 : y - size);
    context.lineTo(isRow ? x - size : x + size * 0.7, isRow ? y + size * 0.7 : y - size);
    context.fill();
  });
}
