// The weight at the pointer, and an announcement of the selected cell for screen readers.
import { html, useEffect, useState } from "../html.js";
import { formatWeight } from "../number_format.js";
import { count, nameOf } from "./labels.js";
import { middleOf } from "./viewport.js";

/** @import { State } from "../state.js" */
/** @import { Cell, LiveAnswer } from "../types.js" */
/** @import { Painter } from "./painter.js" */

const WIDE = 210; // the largest width of the box in pixels
const PAUSE = 250; // milliseconds before an announcement

/** @param {{state: State, painter: Painter, tokens: any, weight: LiveAnswer}} props */
export function Readout({ state, painter, tokens, weight }) {
  const hover = state.hover.value;
  const cell = hover?.cell ?? state.cell.value;
  state.view.value; // read here, because the box moves with the map
  if (!cell) return null;
  const { side, canvas } = painter;
  const isHovered = hover?.side === side;
  const point = isHovered ? [hover.x, hover.y] : middleOf(painter.place, cell);
  if (!point) return null;
  const [x, y] = point;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const place = `${x + 16 + WIDE > width ? `right:${Math.max(4, width - x + 14)}px` : `left:${x + 16}px`};${y + 90 > height ? `bottom:${height - y + 14}px` : `top:${y + 16}px`}`;
  const callId = side.callId.value;
  const pixel = painter.pixelAt(cell);
  const [amount, word] = weightAt(painter, cell, weight);
  return html`<div class=${isHovered ? "readout" : "readout still"} style=${place} aria-hidden="true">
    <b>${amount}</b>${word ? html` <small>${word}</small>` : null}
    <div><small>query ${count(cell.query)}</small> <bdi>${nameOf(tokens, callId, "queries", cell.query)}</bdi></div>
    <div><small>key ${count(cell.key)}</small> <bdi>${nameOf(tokens, callId, "keys", cell.key)}</bdi></div>
    ${pixel && (pixel.bounds || pixel.cells > 1) ? html`<small>${pixel.bounds ? "at most" : `${state.reduce.value} over ${pixel.cells} × ${pixel.cells} cells:`} ${weightText(pixel.value)}${pixel.bounds || pixel.precision === "exact" ? "" : `, ${pixel.precision}`}</small>` : null}
  </div>`;
}

/** The weight as text (from an exact tile or the answer; "…" while it is loading), and its precision if it is not exact. @param {Painter} painter @param {Cell} cell @param {LiveAnswer} weight */
function weightAt(painter, cell, weight) {
  const value = painter.valueAt(cell);
  if (value !== undefined) return [weightText(value), ""];
  const { request, weights, seen, word, failed } = weight.value ?? {};
  const isCurrent =
    request?.queries === `${cell.query}-${cell.query + 1}` &&
    request.keys === `${cell.key}-${cell.key + 1}` &&
    request.head === painter.side.head.value &&
    request.call === painter.side.callId.value;
  if (!isCurrent) return ["…", ""];
  if (failed) return ["not available", ""];
  if (!seen.data[0]) return ["masked", ""];
  return [formatWeight(weights.data[0]), word === "exact" ? "" : word];
}

const weightText = (/** @type {number | undefined} */ value) =>
  value === undefined ? "…" : Number.isNaN(value) ? "masked" : formatWeight(value);

/** Announce the selected cell and its weight. @param {{state: State, painter: Painter, tokens: any, weight: LiveAnswer}} props */
export function Announcement({ state, painter, tokens, weight }) {
  const [text, setText] = useState("");
  const cell = state.cell.value;
  const callId = state.callId.value;
  const announcement = cell
    ? `query ${cell.query} '${nameOf(tokens, callId, "queries", cell.query)}', key ${cell.key} '${nameOf(tokens, callId, "keys", cell.key)}': ${weightAt(painter, cell, weight).filter(Boolean).join(", ")}`
    : "";
  useEffect(() => {
    const timer = setTimeout(() => setText(announcement), PAUSE);
    return () => clearTimeout(timer);
  }, [announcement]);
  return html`<div class="hidden" role="status" aria-live="polite" data-announcement>${text}</div>`;
}
