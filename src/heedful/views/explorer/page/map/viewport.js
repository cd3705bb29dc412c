// The geometry of a map in its canvas: frame, scale, visible cells, pan and zoom.
import { FULL_VIEW } from "../state.js";

/** @import { State } from "../state.js" */
/** @import { Axis, Cell, View } from "../types.js" */

/**
 * Lengths are in CSS pixels, `x` and `y` in cells. The frame is the part of the canvas for the map;
 * the cells take `wide` × `high` pixels of it.
 * @typedef {object} Place
 * @property {number} x the left key, fractional
 * @property {number} y the upper query
 * @property {number} scale pixels per cell
 * @property {number} fitScale the scale at which the full map is visible
 * @property {number} left edge of the frame
 * @property {number} top
 * @property {[number, number]} room the frame's width and height
 * @property {number} wide
 * @property {number} high
 * @property {[number, number]} shape queries, keys
 */

export const READABLE = 14; // pixels per cell at which tokens have names
const LARGEST = 96; // pixels per cell
const THINNEST = 8; // minimum pixels of the full map's shorter side; with less, a part is shown
const MARGIN = 10;

/** Pixels for labels, left of the map and above it. @param {number} width @param {number} height */
export function gutter(width, height) {
  const clamped = (/** @type {number} */ n, /** @type {number} */ maximum) =>
    Math.max(64, Math.min(maximum, n));
  return { left: clamped(width * 0.21, 120), top: clamped(height * 0.17, 112) };
}

/** The place of a map in its canvas. @param {View} view @param {[number, number]} shape queries, keys @param {number} width @param {number} height of the canvas @param {number} ratio device pixels per CSS pixel @returns {Place} */
export function placed(view, [N, M], width, height, ratio) {
  const gutters = gutter(width, height);
  const free = [width - gutters.left, height - gutters.top].map((n) => Math.max(40, n - MARGIN));
  const fitScale = fitScaleOf(N, M, free, ratio);
  const scale = Math.min(Math.max(LARGEST, fitScale), Math.max(view.scale, fitScale));
  // the frame is never smaller than the full map at `fitScale`; a zoomed map may fill a square
  const square = Math.min(free[0], free[1]);
  const frame = (/** @type {number} */ size, /** @type {number} */ maximum) =>
    Math.min(maximum, Math.max(size * fitScale, Math.min(square, size * scale)));
  const room = /** @type {[number, number]} */ ([frame(M, free[0]), frame(N, free[1])]);
  /** @param {number} first @param {number} size @param {number} pixels */
  const clamped = (first, size, pixels) => Math.max(0, Math.min(first, size - pixels / scale));
  const [x, y] = [clamped(view.x, M, room[0]), clamped(view.y, N, room[1])];
  const half = (/** @type {number} */ rest) => Math.round(Math.max(0, rest) / 2);
  return {
    x,
    y,
    scale,
    fitScale,
    room,
    shape: [N, M],
    left: Math.round(gutters.left) + half(free[0] - room[0]),
    top: Math.round(gutters.top) + half(free[1] - room[1]),
    wide: Math.min(room[0], (M - x) * scale),
    high: Math.min(room[1], (N - y) * scale),
  };
}

/** The scale at which the full map is visible, rounded to whole device pixels if that is close. @param {number} N @param {number} M @param {number[]} free @param {number} ratio */
function fitScaleOf(N, M, free, ratio) {
  const fit = Math.min(free[0] / M, free[1] / N, 120);
  if (fit * Math.min(N, M) < THINNEST && fit < 14) return Math.min(14, THINNEST * 2);
  const pixels = fit * ratio * 2 ** levelOf(fit, ratio); // device pixels per pixel of a tile
  const even = Math.floor(pixels) / ratio / 2 ** levelOf(fit, ratio);
  return even > 0.9 * fit ? even : fit;
}

/** The finest level at which a pixel of a tile covers at least one device pixel. */
export function levelOf(/** @type {number} */ scale, /** @type {number} */ ratio) {
  return Math.max(0, Math.ceil(-Math.log2(scale * ratio) - 1e-6));
}

/** The cell at a point of the canvas, or null. @param {Place} place @returns {Cell | null} */
export function cellAt(place, /** @type {number} */ x, /** @type {number} */ y) {
  const inside =
    x >= place.left && y >= place.top && x < place.left + place.wide && y < place.top + place.high;
  if (!inside) return null;
  const cell = tokensAt(place, x, y);
  return cell.key < place.shape[1] && cell.query < place.shape[0] ? cell : null;
}

/** The row and the column at a point of the canvas, possibly outside the map. @param {Place} place */
export function tokensAt(place, /** @type {number} */ x, /** @type {number} */ y) {
  return {
    query: Math.floor((y - place.top) / place.scale + place.y),
    key: Math.floor((x - place.left) / place.scale + place.x),
  };
}

/** The upper left corner of a cell. @param {Place} place @param {Cell} cell */
export const cornerOf = ({ left, top, x, y, scale }, { query, key }) => [
  left + (key - x) * scale,
  top + (query - y) * scale,
];

/** The middle of a cell; null if it is not visible. @param {Place} place @param {Cell} cell */
export function middleOf(place, cell) {
  const [x, y] = cornerOf(place, cell).map((edge) => edge + place.scale / 2);
  return cellAt(place, x, y) && [x, y];
}

/** A map along an axis: its first token and number of tokens, its start and length in pixels, and its position across the axis. @param {Place} place @param {Axis} axis */
export const edgeOf = ({ x, y, left, top, wide, high, shape: [N, M] }, axis) =>
  axis === "queries"
    ? { first: y, tokens: N, start: top, length: high, across: left }
    : { first: x, tokens: M, start: left, length: wide, across: top };

/** The visible ranges of queries and keys. @param {Place} place */
export function inView(place) {
  const range = (/** @type {Axis} */ axis) => {
    const { first, tokens, length } = edgeOf(place, axis);
    const end = Math.min(tokens, Math.ceil(first + length / place.scale - 1e-6));
    return /** @type {[number, number]} */ ([Math.max(0, Math.floor(first + 1e-6)), end]);
  };
  return [range("queries"), range("keys")];
}

/** Zoom around a fixed point of the canvas. @param {State} state @param {Place} place @param {number} factor @param {number} x @param {number} y */
export function zoom(state, place, factor, x, y) {
  const scale = Math.min(Math.max(LARGEST, place.fitScale), place.scale * factor);
  const shift = (/** @type {number} */ pixels) => pixels / place.scale - pixels / scale;
  state.view.value =
    scale <= place.fitScale * 1.001
      ? FULL_VIEW
      : { x: place.x + shift(x - place.left), y: place.y + shift(y - place.top), scale };
}

/** Zoom around the selected cell if it is visible, otherwise around the middle. @param {State} state @param {Place} place */
export function zoomAtCell(state, place, /** @type {number} */ factor) {
  const { left, top, wide, high } = place;
  const middle = state.cell.value && middleOf(place, state.cell.value);
  const [x, y] = middle ?? [left + wide / 2, top + high / 2];
  zoom(state, place, factor, x, y);
}

/** Move by pixels. @param {State} state @param {Place} place */
export function pan(state, place, /** @type {number} */ right, /** @type {number} */ down) {
  const { x, y, scale, shape, room } = place;
  const isFullyVisible = shape[1] * scale <= room[0] + 1 && shape[0] * scale <= room[1] + 1;
  if (!isFullyVisible) state.view.value = { x: x - right / scale, y: y - down / scale, scale };
}

/** Move the view so that a cell is visible, with at least `scale` pixels per cell. @param {State} state @param {Place} place */
export function reveal(state, place, /** @type {Cell} */ cell, scale = 0) {
  const target = Math.max(scale, place.scale);
  /** @param {number} n @param {number} first @param {number} pixels */
  const inside = (n, first, pixels) => n >= first && n + 1 <= first + pixels / place.scale;
  const isVisible =
    inside(cell.key, place.x, place.room[0]) && inside(cell.query, place.y, place.room[1]);
  if (isVisible && target === place.scale) return;
  state.view.value = {
    x: cell.key + 0.5 - place.room[0] / target / 2,
    y: cell.query + 0.5 - place.room[1] / target / 2,
    scale: target,
  };
}
