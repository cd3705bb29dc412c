// Segments at the edges of a map: a band beside their queries and above their keys, with its name.
import { fitted, font, NUMBER, count as number, stepOf } from "./labels.js";

/** @import { Segment } from "../segments/segments.js" */
/** @import { Axis, Ink } from "../types.js" */
/** @import { Measure } from "./labels.js" */
/** @import { Place } from "./place.js" */

const WIDE = 4; // pixels of a band
const NAME = 10.5;
const OUTER = 7; // pixels from the outer edge of tokens' names to the middle of a segment's
const ABOVE = 25; // from the map, where tokens have no names

/**
 * @param {CanvasRenderingContext2D} context @param {Place} place
 * @param {Record<Axis, Segment[]>} segments @param {Ink} ink @param {Measure} measure
 * @param {{left: number, top: number}} names pixels that the labels have
 */
export function drawBands(context, place, segments, ink, measure, names) {
  for (const axis of /** @type {Axis[]} */ (["queries", "keys"]))
    for (const one of segments[axis])
      for (const run of one.runs) {
        const isRow = axis === "queries";
        const first = isRow ? place.y : place.x;
        const pixels = isRow ? place.high : place.wide;
        const [from, to] = run.map((at) =>
          Math.max(0, Math.min(pixels, (at - first) * place.scale)),
        );
        if (to <= from) continue;
        const size = Math.max(1.5, to - from - (to - from > 6 ? 1 : 0)); // neighbours stay apart
        const off = -WIDE - 1 - one.lane * (WIDE + 1);
        context.fillStyle = ink.segments[one.colour];
        if (isRow) context.fillRect(place.left + off, place.top + from, WIDE, size);
        else context.fillRect(place.left + from, place.top + off, size, WIDE);
        if (one.lane === 0 && size > 20)
          name(context, place, axis, one, from, size, ink, measure, names);
      }
}

/** A name outside of the labels, along its band. @param {CanvasRenderingContext2D} context @param {Place} place @param {Axis} axis @param {Segment} one @param {number} from @param {number} size @param {Ink} ink @param {Measure} measure @param {{left: number, top: number}} names */
function name(context, place, axis, one, from, size, ink, measure, names) {
  const text = fitted(one.name, size - 6, measure, NAME);
  if (text.replace(/[\u2068\u2069…]/g, "").length < Math.min(2, one.name.length)) return;
  context.save();
  const { isNamed } = stepOf(axis, place.scale);
  const numbers = measure(number(place.shape[0] - 1), NUMBER) + 20;
  const beside = axis === "queries" ? numbers : ABOVE;
  const off = isNamed ? names[axis === "queries" ? "left" : "top"] - OUTER : beside;
  const middle = from + size / 2;
  if (axis === "queries") context.translate(place.left - off, place.top + middle);
  else context.translate(place.left + middle, place.top - off);
  if (axis === "queries") context.rotate(-Math.PI / 2);
  context.font = font(NAME);
  context.fillStyle = ink.segments[one.colour];
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, 0, 0);
  context.restore();
}
