// The profile: the row or column of the selected cell as a curve, with the tokens at the pointer.
import { Choice } from "../controls.js";
import { Precision } from "../glossary.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { prepareCanvas } from "../list_navigation.js";
import { formatWeight } from "../number_format.js";
import { textOf } from "../tokens.js";
import { count, nameOf } from "./labels.js";
import { reveal } from "./viewport.js";

/** @import { State } from "../state.js" */
/** @import { Axis, LiveAnswer, Signal } from "../types.js" */
/** @import { Painter } from "./painter.js" */

const AROUND = 6; // tokens on each side of the pointer's token

/** The index of the largest value in each of at most `count` pieces of equal length. @param {Float32Array} data @param {number} count */
export function peaks(data, count) {
  const size = Math.max(1, data.length / count);
  const result = new Int32Array(Math.ceil(data.length / size));
  for (let piece = 0; piece < result.length; piece++) {
    const end = Math.min(data.length, Math.ceil((piece + 1) * size));
    let best = Math.ceil(piece * size);
    for (let i = best + 1; i < end; i++)
      if (data[i] > data[best] || Number.isNaN(data[best])) best = i; // any value replaces a NaN
    result[piece] = Math.min(best, data.length - 1);
  }
  return result;
}

/** @param {{state: State, painter: Signal<Painter | null>, row: LiveAnswer, column: LiveAnswer, tokens: any}} props */
export function Profile({ state, painter, row, column, tokens }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [hovered, setHovered] = useState(/** @type {number | null} */ (null));
  const isRow = state.profile.value === "row";
  const answer = (isRow ? row : column).value;
  const cell = state.cell.value;
  state.activeTheme.value; // read here, so that a change of the theme redraws
  const [, N, M] = state.call.value.shape;
  const mark = cell ? (isRow ? cell.key : cell.query) : 0;
  const line = cell ? (isRow ? cell.query : cell.key) : 0;
  const { call, heads, at } = answer?.request ?? {};
  const isSameHead =
    textOf(call ?? "") === textOf(state.callId.value) && heads === state.head.value;
  const isGrowing =
    textOf(call ?? "") === textOf(state.callId.value) && call !== state.callId.value;
  const isCurrent = cell && isSameHead && at === line;
  const weights = answer?.weights?.data;
  // until the next curve arrives, the previous one stays, but without numbers
  /** @type {Float32Array | undefined} */
  const data = cell && (weights?.length === (isRow ? M : N) || isGrowing) ? weights : undefined;
  const current = isCurrent ? data : undefined;
  const focusPlace = hovered !== null && hovered < (data?.length ?? 0) ? hovered : mark;
  const highlighted = state.highlighted.value[isRow ? "key" : "query"];
  useEffect(() => draw(canvas.current, data, mark, focusPlace, highlighted));
  const callId = state.callId.value;
  const [axis, otherAxis] = /** @type {[Axis, Axis]} */ (
    isRow ? ["queries", "keys"] : ["keys", "queries"]
  );
  const placeUnder = (/** @type {any} */ event) => {
    if (!data || !canvas.current) return null;
    const box = canvas.current.getBoundingClientRect();
    const best = peaks(data, Math.max(1, Math.floor(box.width)));
    const piece = Math.floor(((event.clientX - box.left) / box.width) * best.length);
    return best[Math.max(0, Math.min(best.length - 1, piece))];
  };
  const go = (/** @type {number | null} */ place) => {
    if (place === null || !cell) return;
    const target = isRow ? { query: cell.query, key: place } : { query: place, key: cell.key };
    state.selectCell(target, true);
    if (painter.value) reveal(state, painter.value.place, target);
  };
  return html`<section class="profile" aria-label="Profile of the row or column">
    <div class="line"><${Choice} label="Row or column" options=${[["row", "what it attends to"], ["column", "what attends to it"]]} selected=${state.profile.value} choose=${(/** @type {"row" | "column"} */ name) => (state.profile.value = name)} />
      ${cell ? html`<span class="token"><bdi>${nameOf(tokens, callId, axis, line)}</bdi> <small>${count(line)}${current ? largestText(current) : ""}</small>${current ? html` <${Precision} answer=${answer} />` : null}</span>` : html`<span class="quiet">select a cell</span>`}
      ${isCurrent && answer?.failed ? html`<span class="wrong" title=${answer.failed}>${answer.failed}</span>` : null}
      ${data ? html`<${Around} tokens=${tokens} callId=${callId} axis=${otherAxis} data=${data} isCurrent=${Boolean(current)} index=${focusPlace} go=${go} />` : null}</div>
    <canvas ref=${canvas} aria-hidden="true" onPointerMove=${(/** @type {any} */ e) => setHovered(placeUnder(e))} onPointerLeave=${() => setHovered(null)} onClick=${(/** @type {any} */ e) => go(placeUnder(e))}></canvas></section>`;
}

/** The largest weight, as text. @param {Float32Array} data */
const largestText = (data) =>
  data.some(Number.isNaN)
    ? " · not a number"
    : ` · largest ${formatWeight(data.reduce((largest, weight) => Math.max(largest, weight || 0), 0))}`;

/** A token with its weight, and the tokens around it. @param {any} props */
function Around({ tokens, callId, axis, data, isCurrent, index, go }) {
  const from = Math.max(0, index - AROUND);
  const label = (/** @type {number} */ i) => html`<bdi>${tokens.label(callId, axis, i)}</bdi> `;
  const places = [...data.subarray(from, index + AROUND + 1).keys()].map((i) => from + i);
  return html`<span class="around"><span class="before">${places.filter((i) => i < index).map(label)}</span>
    <button class="plain" title="Select this cell" onClick=${() => go(index)}><bdi>${nameOf(tokens, callId, axis, index)}</bdi> <small>${count(index)}</small> <b>${isCurrent ? formatWeight(data[index]) : "…"}</b></button>
    <span class="after">${places.filter((i) => i > index).map(label)}</span></span>`;
}

/** @param {HTMLCanvasElement | null} canvas @param {Float32Array | undefined | null} data @param {number} mark @param {number} focusPlace @param {number | null} highlighted */
function draw(canvas, data, mark, focusPlace, highlighted) {
  if (!canvas) return;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const { context, ink } = prepareCanvas(canvas, width, height);
  if (!data || !width) return;
  const best = peaks(data, Math.max(1, Math.floor(width)));
  const largest = best.reduce((weight, i) => Math.max(weight, data[i] || 0), 1e-12);
  const wide = width / best.length;
  best.forEach((place, i) => {
    const isBroken = Number.isNaN(data[place]);
    const high = isBroken ? height : (data[place] / largest) * (height - 5);
    const isShown =
      place === focusPlace || (wide <= 1 && focusPlace >= place && focusPlace < best[i + 1]);
    context.fillStyle = ink(isShown ? "mark" : isBroken ? "nan" : "curve");
    context.fillRect(i * wide, height - high, Math.max(1, wide - (wide > 6 ? 1 : 0)), high);
  });
  context.fillStyle = ink("link");
  const xOf = (/** @type {number} */ place) => ((place + 0.5) / data.length) * width;
  if (highlighted !== null) context.fillRect(xOf(highlighted) - 0.5, 0, 1, height);
  context.fillStyle = ink("mark");
  const x = xOf(mark);
  context.beginPath();
  context.moveTo(x - 4, 0);
  context.lineTo(x + 4, 0);
  context.lineTo(x, 5);
  context.fill();
}
