// The weight under the pointer beside it, and the chosen one in words for a screen reader.

import { html, useEffect, useState } from "../html.js";
import { weighed } from "../number_format.js";
import { count, nameOf } from "./labels.js";
import { cornerOf } from "./viewport.js";

/** @import { State } from "../state.js" */
/** @import { Asked, Cell } from "../types.js" */
/** @import { Painter } from "./painter.js" */

const WIDE = 210; // pixels of the box at most
const PAUSE = 250; // milliseconds until a screen reader is told

/** @param {{state: State, painter: Painter, tokens: any, weight: Asked}} given */
export function Readout({ state, painter, tokens, weight }) {
  const hover = state.hover.value;
  const cell = hover?.cell ?? state.cell.value;
  state.view.value; // the box moves with the map
  if (!cell) return null;
  const { side, canvas } = painter;
  const mine = hover?.side === side;
  const [x, y] = mine ? [hover.x, hover.y] : besides(painter, cell);
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (x < 0 || y < 0 || x > width || y > height) return null;
  const left = x + 16 + WIDE > width ? Math.max(4, x - 16 - WIDE) : x + 16;
  const place = `${x + 16 + WIDE > width ? `right:${Math.max(4, width - x + 14)}px` : `left:${left}px`};${y + 90 > height ? `bottom:${height - y + 14}px` : `top:${y + 16}px`}`;
  const where = side.where.value;
  const pixel = painter.pixelAt(cell);
  const [amount, word] = weightAt(painter, cell, weight);
  return html`<div class=${mine ? "readout" : "readout still"} style=${place} aria-hidden="true">
    <b>${amount}</b>${word ? html` <small>${word}</small>` : null}
    <div><small>query ${count(cell.query)}</small> <bdi>${nameOf(tokens, where, "queries", cell.query)}</bdi></div>
    <div><small>key ${count(cell.key)}</small> <bdi>${nameOf(tokens, where, "keys", cell.key)}</bdi></div>
    ${pixel && (pixel.bounds || pixel.cells > 1) ? html`<small>${pixel.bounds ? "at most" : `${pixel.cells} × ${pixel.cells} here, ${state.reduce.value}:`} ${told(pixel.value)}${pixel.bounds || pixel.word === "exact" ? "" : `, ${pixel.word}`}</small>` : null}
  </div>`;
}

/** The lower right corner of a cell. @param {Painter} painter @param {Cell} cell */
function besides(painter, cell) {
  const { place } = painter;
  const [x, y] = cornerOf(place, cell);
  const inside =
    x >= place.left - 1 &&
    y >= place.top - 1 &&
    x < place.left + place.wide &&
    y < place.top + place.high;
  return inside ? [x + place.scale / 2, y + place.scale / 2] : [-1, -1];
}

/**
 * The weight as a tile has it exactly, else as it was answered; "…" while it is not known. Beside it
 * the word for a number that is not exact.
 * @param {Painter} painter @param {Cell} cell @param {Asked} weight
 */
function weightAt(painter, cell, weight) {
  const value = painter.valueAt(cell);
  if (value !== undefined) return [told(value), ""];
  const { asked, weights, seen, word, failed } = weight.value ?? {};
  const is =
    asked?.queries === `${cell.query}-${cell.query + 1}` &&
    asked.keys === `${cell.key}-${cell.key + 1}` &&
    asked.head === painter.side.head.value &&
    asked.call === painter.side.where.value;
  if (!is) return ["…", ""];
  if (failed) return ["not in this file", ""];
  if (!seen.data[0]) return ["hidden", ""];
  return [weighed(weights.data[0]), word === "exact" ? "" : word];
}

const told = (/** @type {number | undefined} */ value) =>
  value === undefined ? "…" : Number.isNaN(value) ? "hidden" : weighed(value);

/** What the map shows at the chosen cell, as words. @param {{state: State, painter: Painter, tokens: any, weight: Asked}} given */
export function Told({ state, painter, tokens, weight }) {
  const [text, setText] = useState("");
  const cell = state.cell.value;
  const where = state.where.value;
  const now = cell
    ? `query ${cell.query} '${nameOf(tokens, where, "queries", cell.query)}', key ${cell.key} '${nameOf(tokens, where, "keys", cell.key)}': ${weightAt(painter, cell, weight).filter(Boolean).join(", ")}`
    : "";
  useEffect(() => {
    const timer = setTimeout(() => setText(now), PAUSE);
    return () => clearTimeout(timer);
  }, [now]);
  return html`<div class="hidden" role="status" aria-live="polite" data-told>${text}</div>`;
}
