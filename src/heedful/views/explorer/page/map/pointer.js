// Mouse, pen and fingers on a map: point, drag, pinch, tap, wheel.
import { pan, tokensAt, zoom } from "./viewport.js";

/** @import { State } from "../state.js" */
/** @import { Painter } from "./painter.js" */

const STILL = 4; // pixels that a finger may move and still tap

/**
 * Follow the pointer on a canvas; ends that.
 * @param {HTMLCanvasElement} canvas @param {State} state @param {Painter} painter
 * @param {boolean} wheel whether the wheel is the map's without its having the focus
 */
export function pointed(canvas, state, painter, wheel) {
  /** @type {Map<number, number[]>} where each finger is */
  const down = new Map();
  let moved = 0;
  const at = (/** @type {MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  /** @type {Record<string, (event: any) => void>} */
  const on = {
    pointerdown(/** @type {PointerEvent} */ event) {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      canvas.focus({ preventScroll: true });
      if (!down.size) moved = 0;
      down.set(event.pointerId, at(event));
    },
    pointermove(/** @type {PointerEvent} */ event) {
      const now = at(event);
      const before = down.get(event.pointerId);
      if (!before) {
        hover(state, painter, now);
        return;
      }
      down.set(event.pointerId, now);
      moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
      const other = [...down].find(([id]) => id !== event.pointerId)?.[1];
      if (other) pinch(state, painter, before, now, other);
      else if (moved > STILL) {
        state.hover.value = null;
        canvas.style.cursor = "grabbing";
        pan(state, painter.place, now[0] - before[0], now[1] - before[1]);
      }
    },
    pointerup(/** @type {PointerEvent} */ event) {
      canvas.style.cursor = "";
      const isTap = down.delete(event.pointerId) && moved <= STILL && !down.size;
      if (isTap) tap(state, painter, at(event));
    },
    pointercancel(/** @type {PointerEvent} */ event) {
      down.delete(event.pointerId);
      canvas.style.cursor = "";
    },
    pointerleave() {
      state.hover.value = null;
    },
    wheel(/** @type {WheelEvent} */ event) {
      const { activeElement } = /** @type {Document | ShadowRoot} */ (canvas.getRootNode());
      if (!wheel && !event.ctrlKey && activeElement !== canvas) return; // what is around scrolls
      event.preventDefault();
      const [x, y] = at(event);
      const amount = event.deltaY * (event.deltaMode === 1 ? 18 : 1);
      if (event.shiftKey) pan(state, painter.place, -(event.deltaX || event.deltaY), 0);
      else zoom(state, painter.place, Math.exp(-amount * (event.ctrlKey ? 0.01 : 0.0018)), x, y);
      state.hover.value = null;
    },
    dblclick(/** @type {MouseEvent} */ event) {
      const [x, y] = at(event);
      zoom(state, painter.place, 2.5, x, y);
    },
  };
  for (const [name, does] of Object.entries(on))
    canvas.addEventListener(name, does, { passive: false });
  return () => {
    for (const [name, does] of Object.entries(on)) canvas.removeEventListener(name, does);
  };
}

/** What the pointer is over is told, and looked at while nothing is pinned. @param {State} state @param {Painter} painter @param {number[]} now */
function hover(state, painter, [x, y]) {
  const cell = painter.cellAt(x, y);
  state.hover.value = cell && { cell, x, y, side: painter.side };
  if (cell && !state.pinned.value) state.look(cell, false);
}

/** Two fingers: what is between them stays between them. @param {State} state @param {Painter} painter @param {number[]} before @param {number[]} now @param {number[]} other */
function pinch(state, painter, before, now, other) {
  state.hover.value = null;
  const apart = (/** @type {number[]} */ one) =>
    Math.max(8, Math.hypot(one[0] - other[0], one[1] - other[1]));
  pan(state, painter.place, (now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
  const [x, y] = [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2];
  zoom(state, painter.place, apart(now) / apart(before), x, y);
}

/** A tap on a cell pins it, on a token's name holds its row or column. @param {State} state @param {Painter} painter @param {number[]} now */
function tap(state, painter, [x, y]) {
  const { place } = painter;
  const cell = painter.cellAt(x, y);
  if (cell) {
    const now = state.cell.value;
    const isSame = state.pinned.value && now?.query === cell.query && now.key === cell.key;
    state.look(cell, !isSame);
    return;
  }
  const { query, key } = tokensAt(place, x, y);
  if (x < place.left && y >= place.top && y < place.top + place.high) state.hold("query", query);
  else if (y < place.top && x >= place.left && x < place.left + place.wide) state.hold("key", key);
  else state.pinned.value = false;
}
