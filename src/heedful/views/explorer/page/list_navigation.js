// Lists that the keyboard walks through, and canvases that are as wide as what they stand in.
import { signal, useLayoutEffect, useState } from "./html.js";

/** @import { Signal } from "./types.js" */

/** Where the keyboard is in a list: nowhere at first. It is a signal, as keys may come faster than drawings. @template T @returns {Signal<T | null>} */
export const useCursor = () => useState(() => signal(/** @type {T | null} */ (null)))[0];

/**
 * A cursor, and what its list hears: keys move it, Enter and space choose.
 * @template T
 * @param {T | null} start where it is before it moves
 * @param {(key: string, now: T, event: KeyboardEvent) => T | null} moved where a key leads; null: it is none that moves
 * @param {(at: T | null) => void} point what the keyboard points at now
 * @param {(at: T) => void} choose
 */
export function useWalk(start, moved, point, choose) {
  const cursor = /** @type {Signal<T | null>} */ (useCursor());
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    const now = cursor.peek() ?? start;
    if (now === null || now === undefined) return;
    const to = moved(event.key, now, event);
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
  return { cursor, on: { onKeyDown, onBlur } };
}

/** How wide an element is, as it changes. @param {{current: HTMLElement | null}} element @param {number} first */
export function useWidth(element, first) {
  const [wide, setWide] = useState(first);
  useLayoutEffect(() => {
    const size = new ResizeObserver(() => element.current && setWide(element.current.clientWidth));
    if (element.current) size.observe(element.current);
    return () => size.disconnect();
  }, []);
  return wide;
}

/** The nearest of some places above or below one; itself where there is none. @param {{x: number, y: number}[]} places @param {number} now @param {number} down 1 or −1 */
export function nearest(places, now, down) {
  const { x, y } = places[now];
  let [best, least] = [now, Number.POSITIVE_INFINITY];
  places.forEach((place, n) => {
    const lower = (place.y - y) * down;
    const far = lower * 1000 + Math.abs(place.x - x);
    if (lower > 4 && far < least) [best, least] = [n, far];
  });
  return best;
}

/**
 * A canvas made ready to be drawn into, in CSS pixels, with the colours of the page by their names.
 * @param {HTMLCanvasElement} canvas @param {number} wide @param {number} high
 */
export function prepared(canvas, wide, high) {
  const ratio = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(wide * ratio), Math.round(high * ratio)];
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  const look = getComputedStyle(canvas);
  const ink = (/** @type {string} */ name) => look.getPropertyValue(`--${name}`).trim();
  return { context, ink };
}
