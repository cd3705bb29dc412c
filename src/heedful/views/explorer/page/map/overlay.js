// Marks on a map: the selected cell, highlighted rows and columns, matches of a search, segments.
import { font, NUMBER, count as number, stepOf, truncate } from "./labels.js";
import { cornerOf, edgeOf } from "./viewport.js";

/** @import { Segment } from "../segments/segments.js" */
/** @import { State } from "../state.js" */
/** @import { Axis, Cell, Ink } from "../types.js" */
/** @import { Measure } from "./labels.js" */
/** @import { Place } from "./viewport.js" */

/** @typedef {CanvasRenderingContext2D} Context */

/** Draw all marks except segments. @param {Context} context @param {Place} place @param {State} state @param {Ink} ink */
export function drawMarks(context, place, state, ink) {
  const { cell, highlighted, pinned } = state;
  context.save();
  context.beginPath();
  context.rect(place.left - 4, place.top - 4, place.wide + 8, place.high + 8); // room for the outline of a cell
  context.clip();
  const { query, key } = highlighted.value;
  if (query !== null) band(context, place, "queries", query, ink.highlight, 0.9);
  if (key !== null) band(context, place, "keys", key, ink.highlight, 0.9);
  if (cell.value) {
    band(context, place, "queries", cell.value.query, ink.mark, 0.5);
    band(context, place, "keys", cell.value.key, ink.mark, 0.5);
    outlineCell(context, place, ink, cell.value, pinned.value ? 2 : 1.5);
  }
  context.restore();
  drawMatches(context, place, state, ink);
}

/** Draw two lines along a row or a column. @param {Context} context @param {Place} place @param {Axis} axis @param {number} index @param {string} colour @param {number} alpha */
function band(context, place, axis, index, colour, alpha) {
  const { first, start, length } = edgeOf(place, axis);
  const from = start + (index - first) * place.scale;
  const size = Math.max(place.scale, 2);
  if (from + size < start || from > start + length) return;
  context.globalAlpha = alpha;
  context.fillStyle = colour;
  for (const side of [from - 0.5, from + size - 0.5])
    if (axis === "queries") context.fillRect(place.left, side, place.wide, 1);
    else context.fillRect(side, place.top, 1, place.high);
  context.globalAlpha = 1;
}

/** Outline a cell. @param {Context} context @param {Place} place @param {Ink} ink @param {Cell} cell */
function outlineCell(context, place, ink, cell, /** @type {number} */ line) {
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

/** Draw small marks at the edge for the matches of a search. @param {Context} context @param {Place} place @param {State} state @param {Ink} ink */
function drawMatches(context, place, state, ink) {
  const matches = state.matches.value;
  if (!matches) return;
  const { first, start, length, across } = edgeOf(place, matches.axis);
  const isRow = matches.axis === "queries";
  context.fillStyle = ink.match;
  matches.places.forEach((token, i) => {
    if (token + 1 <= first || token >= first + length / place.scale) return;
    const middle = start + (token + 0.5 - first) * place.scale;
    const size = i === matches.current ? 6 : 4;
    const [low, high, off] = [middle - size * 0.7, middle + size * 0.7, across - size];
    context.beginPath();
    context.moveTo(isRow ? across : middle, isRow ? middle : across);
    context.lineTo(isRow ? off : low, isRow ? low : off);
    context.lineTo(isRow ? off : high, isRow ? high : off);
    context.fill();
  });
}

const WIDE = 4; // pixels of a segment's band
const NAME = 10.5; // font size
const OUTER = 7; // pixels from the outer edge of token names to the middle of a segment's name
const ABOVE = 25; // pixels from the map to a segment's name above it, if tokens have no names

/** Draw the bands and names of segments. @param {Context} context @param {Place} place @param {Record<Axis, Segment[]>} segments @param {Ink} ink @param {Measure} measure @param {{left: number, top: number}} gutters pixels for the labels */
export function drawBands(context, place, segments, ink, measure, gutters) {
  for (const axis of /** @type {Axis[]} */ (["queries", "keys"]))
    for (const segment of segments[axis])
      for (const run of segment.runs) {
        const { first, start, length, across } = edgeOf(place, axis);
        const [from, to] = run.map(
          (token) => start + Math.max(0, Math.min(length, (token - first) * place.scale)),
        );
        if (to <= from) continue;
        const size = Math.max(1.5, to - from - (to - from > 6 ? 1 : 0)); // a gap between neighbours
        const off = across - WIDE - 1 - segment.lane * (WIDE + 1);
        context.fillStyle = ink.segments[segment.colour];
        if (axis === "queries") context.fillRect(off, from, WIDE, size);
        else context.fillRect(from, off, size, WIDE);
        if (segment.lane === 0 && size > 20)
          drawName(context, place, axis, segment, from, size, ink, measure, gutters);
      }
}

/** Draw a segment's name outside the labels, along its band. @param {CanvasRenderingContext2D} context @param {Place} place @param {Axis} axis @param {Segment} segment @param {number} from @param {number} size @param {Ink} ink @param {Measure} measure @param {{left: number, top: number}} gutters */
function drawName(context, place, axis, segment, from, size, ink, measure, gutters) {
  const text = truncate(segment.name, size - 6, measure, NAME);
  if (text.replace(/[\u2068\u2069…]/g, "").length < Math.min(2, segment.name.length)) return;
  context.save();
  const { isNamed } = stepOf(axis, place.scale);
  const numbers = measure(number(place.shape[0] - 1), NUMBER) + 20;
  const isRow = axis === "queries";
  const unnamedOffset = isRow ? numbers : ABOVE;
  const off = isNamed ? gutters[isRow ? "left" : "top"] - OUTER : unnamedOffset;
  const middle = from + size / 2;
  if (isRow) context.translate(place.left - off, middle);
  else context.translate(middle, place.top - off);
  if (isRow) context.rotate(-Math.PI / 2);
  context.font = font(NAME);
  context.fillStyle = ink.segments[segment.colour];
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, 0, 0);
  context.restore();
}
