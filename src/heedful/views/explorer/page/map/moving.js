// What moves the view: dragging, zooming around a place, bringing a cell into view.
import { WHOLE } from "../state.js";

/** @import { State } from "../state.js" */
/** @import { Cell } from "../types.js" */
/** @import { Place } from "./place.js" */

/** Zoom around a place of the canvas, which stays where it is. @param {State} state @param {Place} place @param {number} factor @param {number} x @param {number} y */
export function zoom(state, place, factor, x, y) {
  const scale = place.scale * factor;
  if (scale <= place.whole * 1.001) {
    state.view.value = WHOLE;
    return;
  }
  const held = Math.min(Math.max(96, place.whole), scale);
  const [left, top] = [x - place.left, y - place.top];
  state.view.value = {
    x: left / place.scale + place.x - left / held,
    y: top / place.scale + place.y - top / held,
    scale: held,
  };
}

/** Zoom around the chosen cell, or the middle. @param {State} state @param {Place} place */
export function zoomThere(state, place, /** @type {number} */ factor) {
  const cell = state.cell.value;
  const at = cell
    ? [(cell.key + 0.5 - place.x) * place.scale, (cell.query + 0.5 - place.y) * place.scale]
    : [place.wide / 2, place.high / 2];
  const inside = at[0] >= 0 && at[1] >= 0 && at[0] <= place.wide && at[1] <= place.high;
  const [x, y] = inside ? at : [place.wide / 2, place.high / 2];
  zoom(state, place, factor, place.left + x, place.top + y);
}

/** Move by pixels. @param {State} state @param {Place} place */
export function pan(state, place, /** @type {number} */ right, /** @type {number} */ down) {
  if (isWhole(place)) return;
  state.view.value = {
    x: place.x - right / place.scale,
    y: place.y - down / place.scale,
    scale: place.scale,
  };
}

const isWhole = (/** @type {Place} */ place) =>
  place.shape[1] * place.scale <= place.room[0] + 1 &&
  place.shape[0] * place.scale <= place.room[1] + 1;

/** Bring a cell into view, at a scale at which it can be seen. @param {State} state @param {Place} place */
export function reveal(state, place, /** @type {Cell} */ cell, scale = 0) {
  const wanted = Math.max(scale, place.scale);
  /** @param {number} at @param {number} first @param {number} pixels */
  const inside = (at, first, pixels) => at >= first && at + 1 <= first + pixels / place.scale;
  const isSeen =
    inside(cell.key, place.x, place.room[0]) && inside(cell.query, place.y, place.room[1]);
  if (isSeen && wanted === place.scale) return;
  state.view.value = {
    x: cell.key + 0.5 - place.room[0] / wanted / 2,
    y: cell.query + 0.5 - place.room[1] / wanted / 2,
    scale: wanted,
  };
}
