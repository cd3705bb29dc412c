// Selection of tokens to mark as a segment: by dragging, by shift + arrow keys, or by two taps.
import { html, useRef } from "../html.js";

/** @import { State } from "../state.js" */
/** @import { Segment, TextRole } from "./segments.js" */

const MOVED = 5; // pixels of a drag inside a token that select it
const EDGE = 18; // pixels at the edge of a box in which dragging scrolls it

/** The event handlers with which a text can be marked; inactive unless the segment pane is open. @param {State} state @param {TextRole | null} role of the text; null: it cannot be marked @param {(event: Event) => number | null} tokenOf returns the token under the pointer */
export function useMarking(state, role, tokenOf) {
  const from = useRef(/** @type {number | null} */ (null));
  const startX = useRef(0);
  const { selection } = state.segments;
  const isActive = state.pane.value === "segments" && role !== null;
  const current = selection.value?.role === role ? selection.value : null;
  const select = (/** @type {number} */ a, /** @type {number} */ b) => {
    if (role) selection.value = { role, from: Math.min(a, b), to: Math.max(a, b) };
  };
  /** Extend the selection to a token; without a selection, begin one at `start`. @param {number} token @param {number} start */
  const extend = (token, start) => {
    from.current ??= start;
    select(from.current, token);
  };
  const drag = {
    onDblClick: (/** @type {MouseEvent} */ event) => {
      const token = tokenOf(event);
      if (token !== null) select(token, token);
    },
    onPointerDown: (/** @type {PointerEvent} */ event) => {
      if (event.pointerType === "touch" || event.button || event.shiftKey) return;
      from.current = tokenOf(event);
      startX.current = event.clientX;
      selection.value = null;
    },
    onPointerMove: (/** @type {PointerEvent} */ event) => {
      const token = tokenOf(event);
      if (!(event.buttons & 1) || event.pointerType === "touch" || from.current === null) return;
      const isDragged = Math.abs(event.clientX - startX.current) > MOVED;
      const isMoved = token !== from.current || selection.peek() || isDragged;
      if (token !== null && isMoved) select(from.current, token);
      scroll(event);
    },
  };
  return {
    isActive,
    extend,
    drag: isActive ? drag : {},
    /** Select by shift-click or by touch; return whether the click was used. @param {MouseEvent} event @param {number} token @param {number | null} chosen */
    click(event, token, chosen) {
      const isFinger = /** @type {PointerEvent} */ (event).pointerType === "touch";
      if (!isActive || !(event.shiftKey || isFinger)) return false;
      if (isFinger && !current) from.current = null;
      extend(token, event.shiftKey ? (chosen ?? token) : token);
      return true;
    },
    /** Mark the selection (Enter) or clear it (Escape); return whether the key was used. @param {string} key */
    key(key) {
      if (!isActive || !current || !role || (key !== "Enter" && key !== "Escape")) return false;
      if (key === "Enter") state.segments.add(role, [[current.from, current.to + 1]]);
      else selection.value = null;
      from.current = null;
      return true;
    },
    /** Make the next extension begin a new selection. */
    restart() {
      from.current = null;
    },
    isSelected: (/** @type {number} */ n) =>
      Boolean(isActive && current && n >= current.from && n <= current.to),
  };
}

/** A button that marks the selected tokens as a segment. @param {{state: State}} props */
export function MarkSelection({ state }) {
  const selection = state.segments.selection.value;
  if (!selection || state.pane.value !== "segments") return null;
  const { role, from, to } = selection;
  return html`<span class="mark-it"><button type="button" class="main" onClick=${() => state.segments.add(role, [[from, to + 1]])}>Mark tokens ${from.toLocaleString("en")} to ${to.toLocaleString("en")}</button>
    <button type="button" class="plain" aria-label="Clear the selection" onClick=${() => (state.segments.selection.value = null)}>×</button></span>`;
}

/** Scroll a box when the pointer is dragged beyond its edge. @param {PointerEvent} event */
function scroll(event) {
  let box = /** @type {HTMLElement | null} */ (event.currentTarget);
  while (box && box.scrollHeight <= box.clientHeight) box = box.parentElement;
  if (!box || box.matches(".page")) return;
  const { top, bottom } = box.getBoundingClientRect();
  if (event.clientY > bottom - EDGE) box.scrollTop += EDGE;
  else if (event.clientY < top + EDGE) box.scrollTop -= EDGE;
}

/** For each token of a window, the segments that begin at it and the segments that contain it. @param {Segment[]} segments @param {number} first @param {number} end */
export function marksOf(segments, first, end) {
  const [inside, begins] = [0, 1].map(() => new Map());
  const add = (/** @type {Map<number, Segment[]>} */ map, token, segment) =>
    map.set(token, [...(map.get(token) ?? []), segment]);
  for (const segment of segments)
    for (const [a, b] of segment.runs) {
      if (b <= first || a >= end) continue;
      add(begins, Math.max(a, first), segment);
      for (let i = Math.max(a, first); i < Math.min(b, end); i++) add(inside, i, segment);
    }
  return { inside, begins };
}

/** The label of a segment before its first token. @param {Segment} segment @param {number} token */
export const tag = (segment, token) =>
  html`<span class="segment-tag" key=${`segment ${segment.id} ${token}`} role="presentation" style=${`--segment:var(--segment-${segment.colour})`}>${segment.name}</span>`;

/** The lines above a token, one per lane, as a CSS box-shadow. @param {Segment[]} segments */
export function lines(segments) {
  const upward = segments.toSorted((a, b) => a.lane - b.lane);
  const shadows = upward.flatMap(({ lane, colour }) => [
    `0 ${-4 * lane}px 0 var(--ground)`, // below the line
    `0 ${-2 - 4 * lane}px 0 var(--segment-${colour})`,
  ]);
  return shadows.join(", ");
}
