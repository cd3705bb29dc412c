// Keyboard navigation of lists, and canvases that follow the width of their element.
import { signal, useLayoutEffect, useState } from "./html.js";

/** @import { Signal } from "./types.js" */

/** The place of the keyboard cursor in a list, initially null. A signal, because keys may arrive faster than frames. @template T @returns {Signal<T | null>} */
export const useCursor = () => useState(() => signal(/** @type {T | null} */ (null)))[0];

/**
 * A cursor with the event handlers of its list: keys move it, Enter and space choose.
 * @template T
 * @param {T | null} start the place before the first move
 * @param {(key: string, now: T, event: KeyboardEvent) => T | null} destination returns the new place of the cursor, or null for a key that does not move it
 * @param {(place: T | null) => void} point called with the place under the cursor
 * @param {(place: T) => void} choose
 */
export function useKeyboardCursor(start, destination, point, choose) {
  const cursor = /** @type {Signal<T | null>} */ (useCursor());
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    const now = cursor.peek() ?? start;
    if (now === null || now === undefined) return;
    const to = destination(event.key, now, event);
    if (to !== null) {
      cursor.value = to;
      point(to);
    } else if (event.key === "Enter" || event.key === " ") choose(now);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const onBlur = () => {
    cursor.value = null;
    point(null);
  };
  return { cursor, handlers: { onKeyDown, onBlur } };
}

/** The width of an element, as a state. @param {{current: HTMLElement | null}} element @param {number} first before it is measured */
export function useWidth(element, first) {
  const [width, setWidth] = useState(first);
  useLayoutEffect(() => {
    const size = new ResizeObserver(() => element.current && setWidth(element.current.clientWidth));
    if (element.current) size.observe(element.current);
    return () => size.disconnect();
  }, []);
  return width;
}

/** The index of the nearest place above or below a place; its own index if there is none. @param {{x: number, y: number}[]} places @param {number} now @param {number} down 1 or −1 */
export function nearest(places, now, down) {
  const { x, y } = places[now];
  let [best, smallest] = [now, Number.POSITIVE_INFINITY];
  places.forEach((place, n) => {
    const lower = (place.y - y) * down;
    const far = lower * 1000 + Math.abs(place.x - x);
    if (lower > 4 && far < smallest) [best, smallest] = [n, far];
  });
  return best;
}

/**
 * Prepare a canvas for drawing in CSS pixels. Its `ink` function returns a named colour of the page.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} high
 */
export function prepareCanvas(canvas, width, high) {
  const ratio = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(high * ratio)];
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  const style = getComputedStyle(canvas);
  const ink = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim();
  return { context, ink };
}
