// All heads as points on two of their scores.

import { Term } from "../glossary.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { prepared, useWalk, useWidth } from "../list_navigation.js";
import { choose, isMine } from "./grid.js";
import { KINDS, OPEN, SCORES, same, spoken } from "./scores.js";

/** @import { State } from "../state.js" */
/** @import { One } from "./scores.js" */
/** @typedef {{one: One, x: number, y: number}} Point */
/** @typedef {{from: number, to: number, low: number, most: number, ticks: number[], name: string}} Axis pixels, and numbers */

const HIGH = 186;
const NEAR = 7; // pixels around the pointer

/** @param {{state: State, shown: One[], whole: boolean, point: (ones: One[]) => void, id: string}} given whole: all scores are known */
export function Scatter({ state, shown, whole, point, id }) {
  const [names, setNames] = useState(["previous", "sink"]);
  state.worn.value; // it is drawn in other colours then
  const [over, setOver] = useState(/** @type {One[]} */ ([]));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const wide = useWidth(canvas, 280);
  const across = axis(shown, names[0], 34, wide - 10);
  const up = axis(shown, names[1], HIGH - 22, 8);
  const place = (/** @type {Axis} */ on, /** @type {number} */ value) =>
    on.from + ((value - on.low) / (on.most - on.low)) * (on.to - on.from);
  /** @type {Point[]} */
  const points = shown
    .filter((one) => names.every((name) => Number.isFinite(one.values[name])))
    .map((one) => ({
      one,
      x: place(across, one.values[names[0]]),
      y: place(up, one.values[names[1]]),
    }));
  const near = (/** @type {PointerEvent | MouseEvent} */ event) => {
    const from = /** @type {HTMLElement} */ (canvas.current).getBoundingClientRect();
    const [x, y] = [event.clientX - from.left, event.clientY - from.top];
    const far = (/** @type {Point} */ one) => Math.hypot(one.x - x, one.y - y);
    const found = points.filter((one) => far(one) <= NEAR).sort((a, b) => far(a) - far(b));
    return found.map(({ one }) => one);
  };
  const look = (/** @type {One[]} */ found) => {
    if (found.length === over.length && found.every((one, n) => same(one, over[n]))) return;
    setOver(found);
    point(found);
  };
  const start = (points.find(({ one }) => isMine(one, state)) ?? points[0])?.one ?? null;
  const { cursor, on } = useWalk(
    start,
    (key, one) => moved(key, points, one),
    (one) => point(one ? [one] : []),
    (one) => choose(state, one),
  );
  const held = cursor.value;
  const now = points.find(({ one }) => held && same(one, held))?.one ?? start;
  useEffect(() => {
    if (canvas.current) draw(canvas.current, points, [across, up], state, held, over);
  });
  const pick = (/** @type {number} */ n, /** @type {string} */ label) =>
    html`<select aria-label=${label} value=${names[n]} onChange=${(/** @type {Event} */ e) => setNames(names.map((name, i) => (i === n ? /** @type {HTMLSelectElement} */ (e.target).value : name)))}>${SCORES.map((name) => html`<option value=${name}>${name}</option>`)}</select>`;
  const left = shown.length - points.length;
  return html`<div class="scatter">
    <div class="axes">${pick(1, "upwards")} <span class="quiet">against</span> ${pick(0, "across")}</div>
    <div role="listbox" tabindex="0" class="points" aria-label=${`Heads as points, ${names[1]} against ${names[0]}`} aria-activedescendant=${now ? id : undefined} ...${on}>
      <canvas ref=${canvas} aria-hidden="true" style=${`height:${HIGH}px`} onPointerMove=${(/** @type {PointerEvent} */ e) => look(near(e))} onPointerLeave=${() => look([])}
        onClick=${(/** @type {MouseEvent} */ e) => {
          const found = near(e);
          const next = found.findIndex((one) => isMine(one, state)) + 1; // the next of several
          if (found.length) choose(state, found[next % found.length]);
        }}></canvas>
      <span class="hidden" role="option" id=${id} aria-selected=${now ? isMine(now, state) : false}>${now ? `${spoken(now, names[0])}, ${names[1]} ${now.values[names[1]].toFixed(2)}` : "no head"}</span>
    </div>
    ${left && whole ? html`<p class="quiet">${left.toLocaleString("en")} of the heads have no ${Term(names.find((name) => shown.some((one) => !Number.isFinite(one.values[name]))) ?? "score")} here.</p>` : null}</div>`;
}

/** An axis of a score: shares go to 1, others to a round number. @param {One[]} shown @param {string} name @param {number} from @param {number} to @returns {Axis} */
function axis(shown, name, from, to) {
  if (!OPEN.includes(name))
    return { from, to, low: 0, most: 1, ticks: [0, 0.25, 0.5, 0.75, 1], name };
  const largest = Math.max(...shown.map((one) => one.values[name] || 0), 1e-6);
  const ten = 10 ** Math.floor(Math.log10(largest));
  const step = [0.2, 0.5, 1, 2].map((one) => one * ten).find((one) => largest / one <= 5) ?? ten;
  const count = Math.ceil(largest / step - 1e-9);
  const ticks = Array.from({ length: count + 1 }, (_, n) => +(n * step).toPrecision(6));
  return { from, to, low: 0, most: count * step, ticks, name };
}

/** The next point to the right, left, above or below; among equal ones in their order. @param {string} key @param {Point[]} points @param {One | undefined} now */
function moved(key, points, now) {
  const by = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: -1, ArrowDown: 1 }[key];
  if (!by) return null;
  const along = key === "ArrowRight" || key === "ArrowLeft" ? "x" : "y";
  const order = [...points].sort((a, b) => a[along] - b[along]);
  return order[order.findIndex(({ one }) => same(one, now)) + by]?.one ?? now ?? null;
}

/**
 * @param {HTMLCanvasElement} canvas @param {Point[]} points @param {[Axis, Axis]} axes
 * @param {State} state @param {One | null} cursor @param {One[]} over
 */
function draw(canvas, points, [across, up], state, cursor, over) {
  const wide = canvas.clientWidth;
  const { context, ink } = prepared(canvas, wide, HIGH);
  context.font = "11px system-ui, sans-serif";
  context.lineWidth = 1;
  const line = (/** @type {number[]} */ [x, y, x2, y2]) => {
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, Math.round(y) + 0.5);
    context.lineTo(Math.round(x2) + 0.5, Math.round(y2) + 0.5);
    context.stroke();
  };
  for (const on of [across, up])
    on.ticks.forEach((tick, n) => {
      const at = on.from + ((tick - on.low) / (on.most - on.low)) * (on.to - on.from);
      context.strokeStyle = ink(n ? "line" : "quiet");
      line(on === across ? [at, up.from, at, up.to] : [across.from, at, across.to, at]);
      context.fillStyle = ink("quiet");
      context.textBaseline = on === across ? "top" : "middle";
      context.textAlign = on === up ? "right" : n && n === on.ticks.length - 1 ? "right" : "center";
      if (on === across) context.fillText(String(tick), Math.min(at, wide - 2), up.from + 6);
      else context.fillText(String(tick), across.from - 5, at);
    });
  for (const { one, x, y } of points) {
    context.globalAlpha = 0.8;
    context.fillStyle = KINDS[one.kind] ?? ink("quiet");
    context.beginPath();
    if (KINDS[one.kind]) context.arc(x, y, 4.5, 0, 7);
    else context.arc(x, y, 2.5, 0, 7);
    context.fill();
    context.globalAlpha = 1;
  }
  for (const { one, x, y } of points) {
    const mark = isMine(one, state)
      ? "mark"
      : same(one, cursor)
        ? "link"
        : over.some((other) => same(one, other))
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
