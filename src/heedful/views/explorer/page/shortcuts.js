// Everything by keyboard. Controls that have a key say so themselves (aria-keyshortcuts).

import { html, useEffect, useRef } from "./html.js";
import { reveal, zoomThere } from "./map/viewport.js";
import { TABS, WHOLE } from "./state.js";
import { step } from "./text/find.js";

/** @import { Painter } from "./map/painter.js" */
/** @import { State } from "./state.js" */

const HELP = [
  ["← ↑ → ↓", "move the cell"],
  ["PgUp PgDn Home End", "by a screen; to the row's first and last key"],
  ["shift + ← →", "the head before, the next one"],
  ["[  ]", "the layer before, the next one"],
  ["+  −  0", "zoom in, out, to the whole"],
  ["p", "pin the cell, let it go"],
  ["r  c", "hold its row, its column"],
  ["s", "the strongest weights in view"],
  ["/  n  shift + n", "find a token, the next, the one before"],
  ["a", "the profile of the row or of the column"],
  ["b", "a second map beside this one"],
  ["m", "mark segments, and see who reads which"],
  ["shift + ← ↑ → ↓ Enter", "in the text: choose a piece, and mark it"],
  ["v  w", "how it looks; what can be saved"],
  ["t", "the next part: heads, map, text, weight, segments"],
  ["Esc", "let the cell go"],
  ["?", "these keys"],
];
const GROWS = [
  ["g", "type a prompt to be continued"],
  ["y", "stop adding tokens, go on"],
  ["x", "how the next token is chosen"],
];
const LEARNS = [[",  .", "an earlier step of training, a later one"]];
const OWN = "input, select, textarea, dialog, [popover]"; // what has keys of its own
/** @type {Record<string, [number, number]>} */
const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/**
 * Listen until what is returned is called.
 * @param {EventTarget} target where keys are listened for @param {State} state
 * @param {() => Painter | null} painter @param {() => HTMLElement | null} page
 */
export function listen(target, state, painter, page) {
  const plain = simple(state, painter, page);
  const on = (/** @type {any} */ event) => {
    const from = /** @type {HTMLElement | undefined} */ (event.composedPath()[0]);
    if (from?.closest?.(OWN) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && page()?.querySelector(":popover-open")) return; // closes that first
    const move = MOVES[event.key];
    if (move && event.shiftKey) head(state, move[1] || move[0]);
    else if (move) go(state, painter(), move);
    else if (plain[event.key]) plain[event.key]();
    else if (!shortcut(page(), event.key)) return;
    event.preventDefault();
  };
  target.addEventListener("keydown", on);
  return () => target.removeEventListener("keydown", on);
}

/** Use the control that has a key. @param {HTMLElement | null} page @param {string} key */
function shortcut(page, key) {
  if (key.length !== 1 || !page) return false;
  const control = /** @type {HTMLElement | null} */ (
    page.querySelector(`[aria-keyshortcuts="${CSS.escape(key)}"]`)
  );
  if (control?.matches("input, textarea")) control.focus();
  else control?.click();
  return Boolean(control);
}

/** What single keys do. @param {State} state @param {() => Painter | null} painter @param {() => HTMLElement | null} page @returns {Record<string, () => void>} */
function simple(state, painter, page) {
  const zoom = (/** @type {number} */ factor) => () => {
    const one = painter();
    if (one) zoomThere(state, one.place, factor);
  };
  const hold = (/** @type {"query" | "key"} */ axis) => () => {
    const cell = state.cell.value;
    if (cell) state.hold(axis, cell[axis]);
  };
  return {
    p: () => (state.pinned.value = Boolean(state.cell.value) && !state.pinned.value),
    r: hold("query"),
    c: hold("key"),
    n: () => step(state, painter(), 1),
    N: () => step(state, painter(), -1),
    a: () => (state.profile.value = state.profile.value === "row" ? "column" : "row"),
    t: () => next(state, page()),
    "[": () => layer(state, -1),
    "]": () => layer(state, 1),
    "+": zoom(2),
    "=": zoom(2),
    "-": zoom(0.5),
    0: () => (state.view.value = WHOLE),
    PageUp: () => go(state, painter(), [-1, 0], true),
    PageDown: () => go(state, painter(), [1, 0], true),
    Home: () => end(state, painter(), 0),
    End: () => end(state, painter(), Number.POSITIVE_INFINITY),
    Escape: () => {
      state.cell.value = null;
      state.pinned.value = false;
    },
  };
}

/** Move the cell, and keep it in view. @param {State} state @param {Painter | null} painter @param {[number, number]} by */
function go(state, painter, [down, right], isScreen = false) {
  if (!painter) return;
  const { place } = painter;
  const seen = Math.max(1, Math.floor((Math.min(place.wide, place.high) / place.scale) * 0.8));
  const step = isScreen ? seen : Math.max(1, Math.round(6 / place.scale)); // so that it can be seen
  const now = state.cell.value;
  const middle = {
    query: Math.floor(place.y + place.high / place.scale / 2),
    key: Math.floor(place.x + Math.min(place.wide, place.high) / place.scale / 2),
  };
  const to = now ? { query: now.query + down * step, key: now.key + right * step } : middle;
  look(state, painter, to);
}

/** @param {State} state @param {Painter | null} painter @param {number} key */
function end(state, painter, key) {
  const { kind, first } = state.call.value;
  const query = state.cell.value?.query ?? 0;
  const last = kind === "causal" ? query + first : Number.POSITIVE_INFINITY;
  if (painter) look(state, painter, { query, key: Math.min(key, last) });
}

/** @param {State} state @param {Painter} painter @param {import("./types.js").Cell} to */
function look(state, painter, to) {
  const cell = state.inside(to);
  state.hover.value = null;
  state.look(cell, true);
  reveal(state, painter.place, cell);
}

/** @param {State} state @param {number} by */
function head(state, by) {
  const { heads } = state.call.value;
  const next = heads[heads.indexOf(state.head.value) + by];
  if (next !== undefined) state.show(state.at.value[2], next);
}

/** @param {State} state @param {number} by */
function layer(state, by) {
  state.show(state.at.value[2] + by, state.head.value);
}

/** The next part of the page: shown where parts are tabs, and its first control has the focus. */
function next(/** @type {State} */ state, /** @type {HTMLElement | null} */ page) {
  state.turn(TABS[(TABS.indexOf(state.tab.value) + 1) % TABS.length]);
  const part = page?.querySelector(`[data-part="${state.tab.value}"]`);
  requestAnimationFrame(() =>
    /** @type {HTMLElement | null} */ (
      part?.querySelector("canvas[tabindex], button, select, [tabindex]")
    )?.focus(),
  );
}

/** All keys, in a box. @param {{close: () => void, tour: () => void, grows: boolean, learns: boolean}} given */
export function Help({ close, tour, grows, learns }) {
  const all = [...(grows ? GROWS : []), ...(learns ? LEARNS : []), ...HELP];
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => box.current?.showModal(), []);
  return html`<dialog ref=${box} onClose=${close} aria-label="All keys"><h2>Keys</h2><dl>${all.map(([keys, does]) => html`<div><dt>${keys}</dt><dd>${does}</dd></div>`)}</dl>
    <p class="quiet">Drag to move, wheel or two fingers to zoom, click a cell to pin it, a token at the edge to hold its row or column.</p>
    <form method="dialog"><button onClick=${tour}>the first steps again</button> <button autofocus>close</button></form></dialog>`;
}
