// Keyboard shortcuts of the page. Controls declare theirs in `aria-keyshortcuts`.
import { Term } from "./glossary.js";
import { html, useEffect, useRef } from "./html.js";
import { reveal, zoomAtCell } from "./map/viewport.js";
import { FULL_VIEW, TABS } from "./state.js";
import { step } from "./text/find.js";

/** @import { Painter } from "./map/painter.js" */
/** @import { State } from "./state.js" */

const HELP = [
  ["← ↑ → ↓", "move the cell"],
  ["PgUp PgDn Home End", "move up or down by a screen; to the first or last key of the row"],
  ["shift + ← →", "go to the previous, next head"],
  ["[  ]", "go to the previous, next layer"],
  ["+  −  0", "zoom in, zoom out, show the full map"],
  ["p", "pin or unpin the cell"],
  ["r  c", "highlight the row or the column of the cell"],
  ["s", "list the strongest weights in view"],
  ["/  n  shift + n", "find a token; go to the next, previous match"],
  ["a", "switch the profile between row and column"],
  ["b", "open or close a second map beside the first"],
  ["m", "mark segments; see how they attend to each other"],
  ["shift + ← ↑ → ↓ Enter", "in the text: select tokens, then mark them"],
  ["v  w", "open the menu View; the menu Save"],
  ["t", "go to the next part: heads, map, text, weight, segments"],
  ["Esc", "deselect the cell"],
  ["?", "show this help"],
];
const GENERATION = [
  ["g", "type a prompt"],
  ["y", "stop, go on"],
  ["x", "open the sampling options"],
];
const REMOVAL = [["z  e", "take the selected head or cell away, or put it back"]];
const TRAINING = [[",  .", "go to the previous, next recorded training step"]];
/** Elements that handle all keys themselves, and those that handle arrows and space. */
const TYPED = "input:not([type=checkbox], [type=range]), textarea, dialog, [popover]";
const MOVED = "input, select";
/** @type {Record<string, [number, number]>} */
const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/**
 * Listen for keys; return a function that stops this.
 * @param {EventTarget} target receives the key events @param {State} state
 * @param {() => Painter | null} painter @param {() => HTMLElement | null} page
 */
export function listen(target, state, painter, page) {
  const plain = keyActions(state, painter, page);
  const on = (/** @type {any} */ event) => {
    const from = /** @type {HTMLElement | undefined} */ (event.composedPath()[0]);
    if (from?.closest?.(TYPED) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (from?.matches?.(MOVED) && (MOVES[event.key] || event.key.length > 1 || event.key === " "))
      return;
    if (event.key === "Escape" && page()?.querySelector(":popover-open")) return; // the popover closes first
    const move = MOVES[event.key];
    if (move && event.shiftKey) switchHead(state, move[1] || move[0]);
    else if (move) moveCell(state, painter(), move);
    else if (plain[event.key]) plain[event.key]();
    else if (!shortcut(page(), event.key)) return;
    event.preventDefault();
  };
  target.addEventListener("keydown", on);
  return () => target.removeEventListener("keydown", on);
}

/** Click or focus the control that has a key as its shortcut; return whether there is one. @param {HTMLElement | null} page @param {string} key */
function shortcut(page, key) {
  if (key.length !== 1 || !page) return false;
  const control = /** @type {HTMLElement | null} */ (
    page.querySelector(`[aria-keyshortcuts="${CSS.escape(key)}"]`)
  );
  if (control?.matches("input, textarea")) control.focus();
  else control?.click();
  return Boolean(control);
}

/** The actions of single keys. @param {State} state @param {() => Painter | null} painter @param {() => HTMLElement | null} page @returns {Record<string, () => void>} */
function keyActions(state, painter, page) {
  const zoom = (/** @type {number} */ factor) => () => {
    const mapPainter = painter();
    if (mapPainter) zoomAtCell(state, mapPainter.place, factor);
  };
  const highlight = (/** @type {"query" | "key"} */ axis) => () => {
    const cell = state.cell.value;
    if (cell) state.toggleHighlight(axis, cell[axis]);
  };
  return {
    p: () => (state.pinned.value = Boolean(state.cell.value) && !state.pinned.value),
    r: highlight("query"),
    c: highlight("key"),
    n: () => step(state, painter(), 1),
    N: () => step(state, painter(), -1),
    a: () => (state.profile.value = state.profile.value === "row" ? "column" : "row"),
    t: () => openNextPart(state, page()),
    "[": () => switchLayer(state, -1),
    "]": () => switchLayer(state, 1),
    "+": zoom(2),
    "=": zoom(2),
    "-": zoom(0.5),
    0: () => (state.view.value = FULL_VIEW),
    PageUp: () => moveCell(state, painter(), [-1, 0], true),
    PageDown: () => moveCell(state, painter(), [1, 0], true),
    Home: () => moveToKey(state, painter(), 0),
    End: () => moveToKey(state, painter(), Number.POSITIVE_INFINITY),
    Escape: () => {
      state.largeHeads.value = false;
      state.cell.value = null;
      state.pinned.value = false;
    },
  };
}

/** Move the cell, and keep it in view. @param {State} state @param {Painter | null} painter @param {[number, number]} step down, right */
function moveCell(state, painter, [down, right], isScreen = false) {
  if (!painter) return;
  const { place } = painter;
  const visible = Math.max(1, Math.floor((Math.min(place.wide, place.high) / place.scale) * 0.8));
  const step = isScreen ? visible : Math.max(1, Math.round(6 / place.scale)); // a step of at least 6 pixels
  const now = state.cell.value;
  const middle = {
    query: Math.floor(place.y + place.high / place.scale / 2),
    key: Math.floor(place.x + Math.min(place.wide, place.high) / place.scale / 2),
  };
  const to = now ? { query: now.query + down * step, key: now.key + right * step } : middle;
  selectInView(state, painter, to);
}

/** @param {State} state @param {Painter | null} painter @param {number} key */
function moveToKey(state, painter, key) {
  const { kind, first } = state.call.value;
  const query = state.cell.value?.query ?? 0;
  const last = kind === "causal" ? query + first : Number.POSITIVE_INFINITY;
  if (painter) selectInView(state, painter, { query, key: Math.min(key, last) });
}

/** @param {State} state @param {Painter} painter @param {import("./types.js").Cell} to */
function selectInView(state, painter, to) {
  const cell = state.clamp(to);
  state.hover.value = null;
  state.selectCell(cell, true);
  reveal(state, painter.place, cell);
}

/** @param {State} state @param {number} step 1 or −1 */
function switchHead(state, step) {
  const { heads } = state.call.value;
  const nextHead = heads[heads.indexOf(state.head.value) + step];
  if (nextHead !== undefined) state.show(state.path.value[2], nextHead);
}

/** @param {State} state @param {number} step 1 or −1 */
function switchLayer(state, step) {
  state.show(state.path.value[2] + step, state.head.value);
}

/** Open the next part of the page and focus its first control. */
function openNextPart(/** @type {State} */ state, /** @type {HTMLElement | null} */ page) {
  state.openTab(TABS[(TABS.indexOf(state.tab.value) + 1) % TABS.length]);
  const part = page?.querySelector(`[data-part="${state.tab.value}"]`);
  requestAnimationFrame(() =>
    /** @type {HTMLElement | null} */ (
      part?.querySelector("canvas[tabindex], button, select, [tabindex]")
    )?.focus(),
  );
}

/** What the parts of the page show, and the list of all shortcuts. @param {{close: () => void, canGenerate: boolean, hasSteps: boolean, canRemove: boolean}} props */
export function Help({ close, canGenerate, hasSteps, canRemove }) {
  const all = [canGenerate ? GENERATION : [], hasSteps ? TRAINING : [], HELP].flat();
  if (canRemove) all.splice(-3, 0, ...REMOVAL);
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => box.current?.showModal(), []);
  return html`<dialog ref=${box} onClose=${close} aria-label="How to use the page"><h2 tabindex="-1" autofocus>How to use the page</h2>
    <p>Each small picture on the left is the attention map of a ${Term("head")}; click it to see the head in the middle. There, each ${Term("row")} is a query token and each ${Term("column")} a key token, and the colour of a cell shows the ${Term("weight")}. On the right is the calculation of the weight of the selected cell, down to single products.</p>
    <p>Drag to move the map; use the wheel or two fingers to zoom. Click a cell to pin it, or a token at the edge to highlight its row or column. Point at a word with a dotted underline to see its definition. Drag the lines between the parts to resize them; ⤢ enlarges the small pictures, ☆ keeps a head in the address. <b>Beside</b> compares two maps, and their difference.</p><h3>Keys</h3><dl>${all.map(([keys, action]) => html`<div><dt>${keys}</dt><dd>${action}</dd></div>`)}</dl>
    <form method="dialog"><button>close</button></form></dialog>`;
}
