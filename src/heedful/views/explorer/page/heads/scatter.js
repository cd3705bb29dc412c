// A scatter plot of all heads on two of their scores.
import { Term } from "../glossary.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { prepareCanvas, useKeyboardCursor, useWidth } from "../list_navigation.js";
import { plural } from "../number_format.js";
import { choose, isChosen } from "./grid.js";
import {
  DELTA,
  headText,
  isSame,
  KINDS,
  scaleEnd,
  scoreNames,
  scoreText,
  UNBOUNDED,
} from "./scores.js";

/** @import { State } from "../state.js" */
/** @import { HeadEntry } from "./scores.js" */
/** @typedef {{entry: HeadEntry, x: number, y: number}} Point */
/** @typedef {{from: number, to: number, low: number, high: number, ticks: number[]}} Axis from the score `low` at the pixel `from` to `high` at `to` */

const HIGH = 186;
const NEAR = 7; // maximum pixels between the pointer and a point that it selects

/** @param {{state: State, entries: HeadEntry[], complete: boolean, point: (entries: HeadEntry[]) => void, id: string}} props complete: whether all scores are computed */
export function Scatter({ state, entries, complete, point, id }) {
  const [names, setNames] = useState(["previous", state.about.ablation ? DELTA : "sink"]);
  state.activeTheme.value; // read here, so that a change of the theme redraws
  const [hovered, setHovered] = useState(/** @type {HeadEntry[]} */ ([]));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const wide = useWidth(canvas, 280);
  const across = axis(entries, names[0], 34, wide - 10);
  const up = axis(entries, names[1], HIGH - 22, 8);
  /** @type {Point[]} */
  const points = entries
    .filter((entry) => names.every((name) => Number.isFinite(entry.values[name])))
    .map((entry) => ({
      entry,
      x: place(across, entry.values[names[0]]),
      y: place(up, entry.values[names[1]]),
    }));
  const entriesNear = (/** @type {PointerEvent | MouseEvent} */ event) => {
    const from = /** @type {HTMLElement} */ (canvas.current).getBoundingClientRect();
    const [x, y] = [event.clientX - from.left, event.clientY - from.top];
    const far = (/** @type {Point} */ point) => Math.hypot(point.x - x, point.y - y);
    const near = points.filter((point) => far(point) <= NEAR).sort((a, b) => far(a) - far(b));
    return near.map(({ entry }) => entry);
  };
  const hover = (/** @type {HeadEntry[]} */ entries) => {
    const isUnchanged = entries.every((entry, n) => isSame(entry, hovered[n]));
    if (entries.length === hovered.length && isUnchanged) return;
    setHovered(entries);
    point(entries);
  };
  const start = (points.find(({ entry }) => isChosen(entry, state)) ?? points[0])?.entry ?? null;
  const { cursor, handlers } = useKeyboardCursor(
    start,
    (key, entry) => destination(key, points, entry),
    (entry) => point(entry ? [entry] : []),
    (entry) => choose(state, entry),
  );
  const focused = cursor.value;
  const now = points.find(({ entry }) => focused && isSame(entry, focused))?.entry ?? start;
  useEffect(() => {
    if (canvas.current) draw(canvas.current, points, [across, up], state, focused, hovered);
  });
  const pick = (/** @type {number} */ n, /** @type {string} */ label) =>
    html`<select aria-label=${label} value=${names[n]} onChange=${(/** @type {Event} */ e) => setNames(names.map((name, i) => (i === n ? /** @type {HTMLSelectElement} */ (e.target).value : name)))}>${scoreNames(state.about).map((name) => html`<option value=${name}>${name}</option>`)}</select>`;
  const missing = entries.length - points.length;
  return html`<div class="scatter">
    <div class="axes">${pick(1, "Vertical axis")} <span class="quiet">against</span> ${pick(0, "Horizontal axis")}</div>
    <div role="listbox" tabindex="0" class="points" aria-label=${`Heads as points, ${names[1]} against ${names[0]}`} aria-activedescendant=${now ? id : undefined} ...${handlers}>
      <canvas ref=${canvas} aria-hidden="true" style=${`height:${HIGH}px`} onPointerMove=${(/** @type {PointerEvent} */ e) => hover(entriesNear(e))} onPointerLeave=${() => hover([])}
        onClick=${(/** @type {MouseEvent} */ e) => {
          const entries = entriesNear(e);
          const next = entries.findIndex((entry) => isChosen(entry, state)) + 1; // each click selects the next
          if (entries.length) choose(state, entries[next % entries.length]);
        }}></canvas>
      <span class="hidden" role="option" id=${id} aria-selected=${now ? isChosen(now, state) : false}>${now ? `${headText(now, names[0])}, ${names[1]} ${scoreText(names[1], now.values[names[1]])}` : "no head"}</span>
    </div>
    ${missing && complete ? html`<p class="quiet">${plural(missing, "head has", "heads have")} no ${Term(names.find((name) => entries.some((entry) => !Number.isFinite(entry.values[name]))) ?? "")} score.</p>` : null}</div>`;
}

/** The pixel of a score. @param {Axis} axis @param {number} value */
const place = ({ from, to, low, high }, value) =>
  from + ((value - low) / (high - low)) * (to - from);

/** The axis of a score from 0 to 1, or between round numbers if the score is unbounded. @param {HeadEntry[]} entries @param {string} name @param {number} from @param {number} to @returns {Axis} */
function axis(entries, name, from, to) {
  if (!UNBOUNDED.includes(name))
    return { from, to, low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1] };
  const largest = scaleEnd(entries, name);
  const ten = 10 ** Math.floor(Math.log10(largest));
  const step = [0.2, 0.5, 1, 2].map((n) => n * ten).find((size) => largest / size <= 5) ?? ten;
  const steps = (/** @type {number} */ sign) =>
    Math.max(
      0,
      ...entries.map(({ values }) => Math.ceil((values[name] * sign) / step - 1e-9) || 0),
    );
  const least = steps(-1);
  const most = steps(1) || (least ? 0 : 1); // without any score, the axis has one step
  const ticks = Array.from(
    { length: most + least + 1 },
    (_, n) => +((n - least) * step).toPrecision(6),
  );
  return { from, to, low: -least * step, high: most * step, ticks };
}

/** The head of the next point in the direction of a key; points at the same place are visited in turn. @param {string} key @param {Point[]} points @param {HeadEntry | undefined} now */
function destination(key, points, now) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: -1, ArrowDown: 1 }[key];
  if (!step) return null;
  const along = key === "ArrowRight" || key === "ArrowLeft" ? "x" : "y";
  const order = [...points].sort((a, b) => a[along] - b[along]);
  return order[order.findIndex(({ entry }) => isSame(entry, now)) + step]?.entry ?? now ?? null;
}

/** @param {HTMLCanvasElement} canvas @param {Point[]} points @param {[Axis, Axis]} axes @param {State} state @param {HeadEntry | null} cursor @param {HeadEntry[]} hovered */
function draw(canvas, points, [across, up], state, cursor, hovered) {
  const wide = canvas.clientWidth;
  const { context, ink } = prepareCanvas(canvas, wide, HIGH);
  context.font = "11px system-ui, sans-serif";
  for (const axis of [across, up])
    axis.ticks.forEach((tick, n) => {
      const [pixel, text] = [place(axis, tick), String(tick).replace("-", "−")];
      context.fillStyle = ink(tick ? "line" : "quiet");
      if (axis === across) context.fillRect(Math.round(pixel), up.to, 1, up.from - up.to + 1);
      else context.fillRect(across.from, Math.round(pixel), across.to - across.from + 1, 1);
      context.fillStyle = ink("quiet");
      context.textBaseline = axis === across ? "top" : "middle";
      const isRight = axis === up || (n && n === axis.ticks.length - 1);
      context.textAlign = isRight ? "right" : "center";
      if (axis === across) context.fillText(text, Math.min(pixel, wide - 2), up.from + 6);
      else context.fillText(text, across.from - 5, pixel);
    });
  for (const { entry, x, y } of points) {
    context.globalAlpha = 0.8;
    context.fillStyle = KINDS[entry.kind] ?? ink("quiet");
    context.beginPath();
    context.arc(x, y, KINDS[entry.kind] ? 4.5 : 2.5, 0, 7);
    context.fill();
    context.globalAlpha = 1;
  }
  for (const { entry, x, y } of points) {
    const mark = isChosen(entry, state)
      ? "mark"
      : isSame(entry, cursor)
        ? "link"
        : hovered.some((other) => isSame(entry, other))
          ? "text"
          : "";
    if (!mark) continue;
    context.strokeStyle = ink(mark);
    context.lineWidth = mark === "text" ? 1 : 2;
    context.beginPath();
    context.arc(x, y, 7, 0, 7);
    context.stroke();
  }
}
