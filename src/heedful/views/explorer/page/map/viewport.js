// How a map lies in its canvas: its frame, how large a cell is, which cells are in view; what moves it.
import { WHOLE } from "../state.js";

/** @import { State } from "../state.js" */
/** @import { Cell, View } from "../types.js" */

/**
 * All lengths are CSS pixels, `x` and `y` cells. The frame is what of the canvas the cells may
 * take; `wide` and `high` are what they do take.
 * @typedef {object} Place
 * @property {number} x the left key, with a fraction
 * @property {number} y the upper query
 * @property {number} scale pixels a cell
 * @property {number} whole the scale at which all is in view
 * @property {number} left of the frame
 * @property {number} top
 * @property {[number, number]} room the frame's width and height
 * @property {number} wide
 * @property {number} high
 * @property {[number, number]} shape queries, keys
 */

const LARGEST = 96; // pixels a cell
const THINNEST = 8; // pixels of a map's shorter side, below which all at once is of no use
const MARGIN = 10;

/** Pixels for the names of tokens, left and above. @param {number} width @param {number} height */
export function gutter(width, height) {
  const held = (/** @type {number} */ n, /** @type {number} */ most) =>
    Math.max(64, Math.min(most, n));
  return { left: held(width * 0.21, 120), top: held(height * 0.17, 112) };
}

/**
 * @param {View} view @param {[number, number]} shape queries, keys
 * @param {number} width @param {number} height of the canvas @param {number} ratio device pixels
 * @returns {Place}
 */
export function placed(view, [N, M], width, height, ratio) {
  const names = gutter(width, height);
  const free = [
    Math.max(40, width - names.left - MARGIN),
    Math.max(40, height - names.top - MARGIN),
  ];
  const whole = wholeScale(N, M, free, ratio);
  const scale = view.scale
    ? Math.min(Math.max(LARGEST, whole), Math.max(view.scale, whole))
    : whole;
  // a frame that does not change while one zooms: that of the whole map, at least a square
  const square = Math.min(free[0], free[1]);
  const frame = (/** @type {number} */ size, /** @type {number} */ most) =>
    Math.min(most, Math.max(size * whole, Math.min(square, size * scale)));
  const room = /** @type {[number, number]} */ ([frame(M, free[0]), frame(N, free[1])]);
  /** @param {number} at @param {number} size @param {number} pixels */
  const held = (at, size, pixels) => Math.max(0, Math.min(at, size - pixels / scale));
  const [x, y] = view.scale ? [held(view.x, M, room[0]), held(view.y, N, room[1])] : [0, 0];
  const middle = (/** @type {number} */ left) => Math.round(Math.max(0, left) / 2);
  return {
    x,
    y,
    scale,
    whole,
    room,
    shape: [N, M],
    left: Math.round(names.left) + middle(free[0] - room[0]),
    top: Math.round(names.top) + middle(free[1] - room[1]),
    wide: Math.min(room[0], (M - x) * scale),
    high: Math.min(room[1], (N - y) * scale),
  };
}

/** The scale of the whole map, of whole device pixels where that costs little. @param {number} N @param {number} M @param {number[]} free @param {number} ratio */
function wholeScale(N, M, free, ratio) {
  const fit = Math.min(free[0] / M, free[1] / N, 120);
  if (fit * Math.min(N, M) < THINNEST && fit < 14) return Math.min(14, THINNEST * 2);
  const pixels = fit * ratio * 2 ** levelOf(fit, ratio); // of a pixel of a tile
  const even = Math.floor(pixels) / ratio / 2 ** levelOf(fit, ratio);
  return even > 0.9 * fit ? even : fit;
}

/** The level at which a pixel of a tile is at least one of the screen. */
export function levelOf(/** @type {number} */ scale, /** @type {number} */ ratio) {
  return Math.max(0, Math.ceil(-Math.log2(scale * ratio) - 1e-6));
}

/** The cell under a place of the canvas, or null. @param {Place} place @returns {Cell | null} */
export function cellAt(place, /** @type {number} */ x, /** @type {number} */ y) {
  const inside =
    x >= place.left && y >= place.top && x < place.left + place.wide && y < place.top + place.high;
  if (!inside) return null;
  const { key, query } = tokensAt(place, x, y);
  return key < place.shape[1] && query < place.shape[0] ? { query, key } : null;
}

/** The row and the column at a place of the canvas, wherever it is. @param {Place} place */
export function tokensAt(place, /** @type {number} */ x, /** @type {number} */ y) {
  return {
    query: Math.floor((y - place.top) / place.scale + place.y),
    key: Math.floor((x - place.left) / place.scale + place.x),
  };
}

/** Where a cell's left upper corner is. @param {Place} place @param {Cell} cell */
export function cornerOf(place, cell) {
  return [
    place.left + (cell.key - place.x) * place.scale,
    place.top + (cell.query - place.y) * place.scale,
  ];
}

/** Ranges of queries and of keys in view. @param {Place} place @returns {[[number, number], [number, number]]} */
export function inView(place) {
  /** @param {number} first @param {number} pixels @param {number} size */
  const range = (first, pixels, size) =>
    /** @type {[number, number]} */ ([
      Math.max(0, Math.floor(first + 1e-6)),
      Math.min(size, Math.ceil(first + pixels / place.scale - 1e-6)),
    ]);
  return [range(place.y, place.high, place.shape[0]), range(place.x, place.wide, place.shape[1])];
}

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
