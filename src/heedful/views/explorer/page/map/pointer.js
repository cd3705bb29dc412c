// Mouse, pen and touch on a map: point, drag, pinch, tap, wheel.
import { pan, tokensAt, zoom } from "./viewport.js";

/** @import { State } from "../state.js" */
/** @import { Painter } from "./painter.js" */

const TAP_TOLERANCE = 4; // pixels that a finger may move during a tap

/**
 * Handle pointer events of a canvas; return a function that stops this.
 * @param {HTMLCanvasElement} canvas @param {State} state @param {Painter} painter
 * @param {boolean} wheel whether the wheel always zooms, or only while the map has the focus
 */
export function followPointer(canvas, state, painter, wheel) {
  /** @type {Map<number, number[]>} the point of each finger */
  const fingers = new Map();
  let travel = 0;
  const pointOf = (/** @type {MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  /** @type {Record<string, (event: any) => void>} */
  const handlers = {
    pointerdown(/** @type {PointerEvent} */ event) {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      canvas.focus({ preventScroll: true });
      if (!fingers.size) travel = 0;
      fingers.set(event.pointerId, pointOf(event));
    },
    pointermove(/** @type {PointerEvent} */ event) {
      const now = pointOf(event);
      const before = fingers.get(event.pointerId);
      if (!before) {
        hover(state, painter, now);
        return;
      }
      fingers.set(event.pointerId, now);
      travel += Math.hypot(now[0] - before[0], now[1] - before[1]);
      const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
      if (other) pinch(state, painter, before, now, other);
      else if (travel > TAP_TOLERANCE) {
        state.hover.value = null;
        canvas.style.cursor = "grabbing";
        pan(state, painter.place, now[0] - before[0], now[1] - before[1]);
      }
    },
    pointerup(/** @type {PointerEvent} */ event) {
      canvas.style.cursor = "";
      const isTap = fingers.delete(event.pointerId) && travel <= TAP_TOLERANCE && !fingers.size;
      if (isTap) tap(state, painter, pointOf(event));
    },
    pointercancel(/** @type {PointerEvent} */ event) {
      fingers.delete(event.pointerId);
      canvas.style.cursor = "";
    },
    pointerleave() {
      state.hover.value = null;
    },
    wheel(/** @type {WheelEvent} */ event) {
      const { activeElement } = /** @type {Document | ShadowRoot} */ (canvas.getRootNode());
      if (!wheel && !event.ctrlKey && activeElement !== canvas) return; // the wheel scrolls the surrounding page
      event.preventDefault();
      const [x, y] = pointOf(event);
      const amount = event.deltaY * (event.deltaMode === 1 ? 18 : 1);
      if (event.shiftKey) pan(state, painter.place, -(event.deltaX || event.deltaY), 0);
      else zoom(state, painter.place, Math.exp(-amount * (event.ctrlKey ? 0.01 : 0.0018)), x, y);
      state.hover.value = null;
    },
    dblclick(/** @type {MouseEvent} */ event) {
      const [x, y] = pointOf(event);
      zoom(state, painter.place, 2.5, x, y);
    },
  };
  for (const [name, handler] of Object.entries(handlers))
    canvas.addEventListener(name, handler, { passive: false });
  return () => {
    for (const name of Object.keys(handlers)) canvas.removeEventListener(name, handlers[name]);
  };
}

/** Set the hovered cell; select it unless a cell is pinned. @param {State} state @param {Painter} painter @param {number[]} now */
function hover(state, painter, [x, y]) {
  const cell = painter.cellAt(x, y);
  state.hover.value = cell && { cell, x, y, side: painter.side };
  if (cell && !state.pinned.value) state.selectCell(cell, false);
}

/** Zoom and pan with two fingers, so that the content between the fingers stays between them. @param {State} state @param {Painter} painter @param {number[]} before @param {number[]} now @param {number[]} other */
function pinch(state, painter, before, now, other) {
  state.hover.value = null;
  const distance = (/** @type {number[]} */ [x, y]) =>
    Math.max(8, Math.hypot(x - other[0], y - other[1]));
  pan(state, painter.place, (now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
  const [x, y] = [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2];
  zoom(state, painter.place, distance(now) / distance(before), x, y);
}

/** Pin or unpin a cell by a tap; highlight a row or column by a tap on its label. @param {State} state @param {Painter} painter @param {number[]} now */
function tap(state, painter, [x, y]) {
  const { place } = painter;
  const cell = painter.cellAt(x, y);
  if (cell) {
    const now = state.cell.value;
    const isSame = state.pinned.value && now?.query === cell.query && now.key === cell.key;
    state.selectCell(cell, !isSame);
    return;
  }
  const { query, key } = tokensAt(place, x, y);
  const isRow = x < place.left && y >= place.top && y < place.top + place.high;
  if (isRow) state.toggleHighlight("query", query);
  else if (y < place.top && x >= place.left && x < place.left + place.wide)
    state.toggleHighlight("key", key);
  else state.pinned.value = false;
}
