// The row or the column of the chosen cell as a curve over the whole text, and the text around it.
import { Choice } from "../controls.js";
import { Word } from "../glossary.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { prepared } from "../list_navigation.js";
import { weighed } from "../number_format.js";
import { count, nameOf } from "./labels.js";
import { reveal } from "./viewport.js";

/** @import { State } from "../state.js" */
/** @import { Asked, Axis, Signal } from "../types.js" */
/** @import { Painter } from "./painter.js" */

const AROUND = 6; // tokens to each side

/**
 * The place of the largest number of each of some pieces of equal length; `count` at most.
 * @param {Float32Array} data @param {number} count
 */
export function peaks(data, count) {
  const size = Math.max(1, data.length / count);
  const found = new Int32Array(Math.ceil(data.length / size));
  for (let piece = 0; piece < found.length; piece++) {
    const end = Math.min(data.length, Math.ceil((piece + 1) * size));
    let best = Math.ceil(piece * size);
    for (let i = best + 1; i < end; i++)
      if (data[i] > data[best] || Number.isNaN(data[best])) best = i; // NaN: not looked at yet
    found[piece] = Math.min(best, data.length - 1);
  }
  return found;
}

/** @param {{state: State, painter: Signal<Painter | null>, row: Asked, column: Asked, tokens: any}} given */
export function Profile({ state, painter, row, column, tokens }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [over, setOver] = useState(/** @type {number | null} */ (null));
  const isRow = state.profile.value === "row";
  const answer = (isRow ? row : column).value;
  const at = state.cell.value;
  state.worn.value; // it is drawn in other colours then
  const [, N, M] = state.call.value.shape;
  const mark = at ? (isRow ? at.key : at.query) : 0;
  const own = at ? (isRow ? at.query : at.key) : 0;
  const { call, heads, at: of } = answer?.asked ?? {};
  const fits = at && call === state.where.value && heads === state.head.value && of === own;
  const found = answer?.weights?.data;
  // the curve before stays until the next one comes; its numbers do not
  /** @type {Float32Array | undefined} */
  const data = at && found?.length === (isRow ? M : N) ? found : undefined;
  const known = fits ? data : undefined;
  const shown = over !== null && data && over < data.length ? over : mark;
  const held = state.held.value[isRow ? "key" : "query"];
  useEffect(() => draw(canvas.current, data, mark, shown, held));
  const where = state.where.value;
  const [mine, others] = /** @type {[Axis, Axis]} */ (
    isRow ? ["queries", "keys"] : ["keys", "queries"]
  );
  const under = (/** @type {any} */ event) => {
    if (!data || !canvas.current) return null;
    const box = canvas.current.getBoundingClientRect();
    const best = peaks(data, Math.max(1, Math.floor(box.width)));
    const at = Math.floor(((event.clientX - box.left) / box.width) * best.length);
    return best[Math.max(0, Math.min(best.length - 1, at))];
  };
  const go = (/** @type {number | null} */ place) => {
    if (place === null || !at) return;
    const cell = isRow ? { query: at.query, key: place } : { query: place, key: at.key };
    state.look(cell, true);
    if (painter.value) reveal(state, painter.value.place, cell);
  };
  return html`<section class="profile" aria-label="Profile of the row or column">
    <div class="line"><${Choice} label="Row or column" ways=${[["row", "where it looks"], ["column", "who looks at it"]]} now=${state.profile.value} choose=${(/** @type {"row" | "column"} */ way) => (state.profile.value = way)} />
      ${at ? html`<span class="who"><bdi>${nameOf(tokens, where, mine, own)}</bdi> <small>${count(own)}${known ? told(known) : ""}</small>${known ? html` <${Word} answer=${answer} />` : null}</span>` : html`<span class="quiet">choose a cell</span>`}
      ${fits && answer?.failed ? html`<span class="wrong" title=${answer.failed}>${answer.failed}</span>` : null}
      ${data ? html`<${Around} tokens=${tokens} where=${where} axis=${others} data=${data} known=${Boolean(known)} at=${shown} go=${go} />` : null}</div>
    <canvas ref=${canvas} aria-hidden="true" onPointerMove=${(/** @type {any} */ e) => setOver(under(e))} onPointerLeave=${() => setOver(null)} onClick=${(/** @type {any} */ e) => go(under(e))}></canvas></section>`;
}

/** The largest of a line. @param {Float32Array} data */
const told = (data) =>
  ` · largest ${weighed(data.reduce((before, one) => Math.max(before, one || 0), 0))}`;

/** Some tokens to both sides, and the weight of the middle one. @param {any} given */
function Around({ tokens, where, axis, data, known, at, go }) {
  const from = Math.max(0, at - AROUND);
  const places = Array.from(
    { length: Math.min(data.length, at + AROUND + 1) - from },
    (_, i) => from + i,
  );
  return html`<span class="around"><span class="before">${places.filter((i) => i < at).map((i) => html`<bdi>${tokens.label(where, axis, i)}</bdi> `)}</span>
    <button class="plain" title="Go there" onClick=${() => go(at)}><bdi>${nameOf(tokens, where, axis, at)}</bdi> <small>${count(at)}</small> <b>${known ? weighed(data[at]) : "…"}</b></button>
    <span class="after">${places.filter((i) => i > at).map((i) => html`<bdi>${tokens.label(where, axis, i)}</bdi> `)}</span></span>`;
}

/** @param {HTMLCanvasElement | null} canvas @param {Float32Array | undefined | null} data @param {number} mark @param {number} shown @param {number | null} held */
function draw(canvas, data, mark, shown, held) {
  if (!canvas) return;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const { context, ink } = prepared(canvas, width, height);
  if (!data || !width) return;
  const best = peaks(data, Math.max(1, Math.floor(width)));
  const most = best.reduce((most, i) => Math.max(most, data[i] || 0), 1e-12);
  const wide = width / best.length;
  best.forEach((place, i) => {
    const high = (data[place] / most) * (height - 5);
    const isShown =
      place === shown ||
      (i < best.length - 1 && shown >= place && shown < best[i + 1] && wide <= 1);
    context.fillStyle = ink(isShown ? "mark" : "curve");
    context.fillRect(i * wide, height - high, Math.max(1, wide - (wide > 6 ? 1 : 0)), high);
  });
  context.fillStyle = ink("link");
  if (held !== null) context.fillRect(((held + 0.5) / data.length) * width - 0.5, 0, 1, height);
  context.fillStyle = ink("mark");
  const x = ((mark + 0.5) / data.length) * width;
  context.beginPath();
  context.moveTo(x - 4, 0);
  context.lineTo(x + 4, 0);
  context.lineTo(x, 5);
  context.fill();
}
