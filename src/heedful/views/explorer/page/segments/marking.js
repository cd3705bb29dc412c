// Marking a piece of the text: by dragging, by shift and the arrow keys, by two taps.
import { html, useRef } from "../html.js";

/** @import { State } from "../state.js" */
/** @import { Reads, Run, Segment } from "./segments.js" */

const EDGE = 18; // pixels at the end of a box where dragging scrolls it

/**
 * What a text does so that it can be marked; nothing where it is not to be.
 * @param {State} state @param {Reads | null} reads which text it is
 * @param {(event: Event) => number | null} tokenOf under the pointer
 */
export function useMarking(state, reads, tokenOf) {
  const from = useRef(/** @type {number | null} */ (null));
  const { selection } = state.segments;
  const is = state.pane.value === "segments" && reads !== null;
  const now = selection.value?.reads === reads ? selection.value : null;
  const choose = (/** @type {number} */ one, /** @type {number} */ other) => {
    if (reads) selection.value = { reads, from: Math.min(one, other), to: Math.max(one, other) };
  };
  /** Up to a token, from where it began. @param {number} at @param {number} begun */
  const extend = (at, begun) => {
    from.current ??= begun;
    choose(from.current, at);
  };
  const drag = {
    onPointerDown: (/** @type {PointerEvent} */ event) => {
      if (event.pointerType === "touch" || event.button || event.shiftKey) return;
      from.current = tokenOf(event);
      selection.value = null;
    },
    onPointerMove: (/** @type {PointerEvent} */ event) => {
      const at = tokenOf(event);
      if (!(event.buttons & 1) || event.pointerType === "touch" || from.current === null) return;
      if (at !== null && (at !== from.current || selection.peek())) choose(from.current, at);
      scroll(event);
    },
  };
  return {
    is,
    now,
    extend,
    drag: is ? drag : {},
    /** A click that marks: with shift, or of a finger. @param {MouseEvent} event @param {number} at @param {number | null} chosen */
    click(event, at, chosen) {
      const isFinger = /** @type {PointerEvent} */ (event).pointerType === "touch";
      if (!is || !(event.shiftKey || isFinger)) return false;
      if (isFinger && !now) from.current = null;
      extend(at, event.shiftKey ? (chosen ?? at) : at);
      return true;
    },
    /** What a key does with what is chosen: Enter marks it, Escape lets it go. @param {string} key */
    key(key) {
      if (!is || !now || !reads || (key !== "Enter" && key !== "Escape")) return false;
      if (key === "Enter") state.segments.add(reads, [[now.from, now.to + 1]]);
      else selection.value = null;
      from.current = null;
      return true;
    },
    /** The next extension begins anew. */
    leave() {
      from.current = null;
    },
    isIn: (/** @type {number} */ at) => Boolean(is && now && at >= now.from && at <= now.to),
  };
}

/** What is chosen, and a button that makes a segment of it. @param {{state: State}} given */
export function MarkIt({ state }) {
  const now = state.segments.selection.value;
  if (!now || state.pane.value !== "segments") return null;
  const { reads, from, to } = now;
  return html`<span class="mark-it"><button type="button" class="main" onClick=${() => state.segments.add(reads, [[from, to + 1]])}>Mark tokens ${from.toLocaleString("en")} to ${to.toLocaleString("en")}</button>
    <button type="button" class="plain" aria-label="Choose nothing" onClick=${() => (state.segments.selection.value = null)}>×</button></span>`;
}

/** A box that is dragged beyond its end follows. @param {PointerEvent} event */
function scroll(event) {
  const target = /** @type {HTMLElement} */ (event.currentTarget);
  let box = /** @type {HTMLElement | null} */ (target);
  while (box && box.scrollHeight <= box.clientHeight) box = box.parentElement;
  if (!box || box.matches(".page")) return;
  const { top, bottom } = box.getBoundingClientRect();
  if (event.clientY > bottom - EDGE) box.scrollTop += EDGE;
  else if (event.clientY < top + EDGE) box.scrollTop -= EDGE;
}

/** Which segments begin, and which are, at each token of a window. @param {Segment[]} segments @param {number} first @param {number} end */
export function marksOf(segments, first, end) {
  /** @type {Map<number, Segment[]>} */
  const inside = new Map();
  /** @type {Map<number, Segment[]>} */
  const begins = new Map();
  /** @param {Map<number, Segment[]>} to @param {number} at @param {Segment} one */
  const add = (to, at, one) => to.set(at, [...(to.get(at) ?? []), one]);
  for (const one of segments)
    for (const [a, b] of one.runs) {
      if (b <= first || a >= end) continue;
      add(begins, Math.max(a, first), one);
      for (let at = Math.max(a, first); at < Math.min(b, end); at++) add(inside, at, one);
    }
  return { inside, begins };
}

/** The name of a segment where it begins. @param {Segment} one @param {number} at */
export const tag = (one, at) =>
  html`<span class="segment-tag" key=${`segment ${one.id} ${at}`} role="presentation" style=${`--segment:var(--segment-${one.colour})`}>${one.name}</span>`;

/** The lines over a token, one above the other, each of its lane. @param {Segment[]} segments */
export function lines(segments) {
  const highest = Math.max(...segments.map((one) => one.lane));
  const found = [];
  for (let lane = 0; lane <= highest; lane++) {
    const own = segments.find((one) => one.lane === lane);
    const colour = own ? `var(--segment-${own.colour})` : "var(--ground)";
    found.push(`0 ${-2 - 4 * lane}px 0 ${colour}`, `0 ${-4 - 4 * lane}px 0 var(--ground)`);
  }
  return found.slice(0, -1).join(", ");
}
