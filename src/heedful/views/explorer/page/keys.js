// Everything by keyboard.
import { html, useEffect, useRef } from "./html.js";
import { choose, reveal, zoom } from "./map.js";

const help = [
  ["← ↑ → ↓", "move the cell"],
  ["shift + ← →", "the head before, the next one"],
  ["[  ]", "the layer before, the next one"],
  ["+  −  0", "zoom in, out, to the whole"],
  ["p", "pin the cell"],
  ["/", "find a token"],
  ["t", "text, map or heads"],
  ["Esc", "let the cell go"],
  ["?", "these keys"],
];

/** Listen until what is returned is called. */
export function listen(state, painter, helped) {
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const does = {
    p: () => (state.pinned.value = Boolean(state.cell.value) && !state.pinned.value),
    "/": () => document.getElementById("find")?.focus(),
    "?": helped,
    "[": () => layer(state, -1),
    "]": () => layer(state, 1),
    "+": () => around(state, painter(), 2),
    "=": () => around(state, painter(), 2),
    "-": () => around(state, painter(), 0.5),
    0: () => (state.view.value = { x: 0, y: 0, scale: 0 }),
    t: () =>
      (state.tab.value = { map: "text", text: "heads", heads: "map" }[state.tab.value] ?? "map"),
    Escape: () => {
      state.cell.value = null;
      state.pinned.value = false;
    },
  };
  const on = (event) => {
    const typing = event.target.closest?.("input, select, textarea, dialog");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const move = moves[event.key];
    if (move && event.shiftKey) head(state, move[1] || move[0]);
    else if (move) go(state, painter(), move);
    else if (does[event.key]) does[event.key]();
    else return;
    event.preventDefault();
  };
  addEventListener("keydown", on);
  return () => removeEventListener("keydown", on);
}

function go(state, painter, [down, right]) {
  const [, N, M] = state.call.value.shape;
  const now = state.cell.value;
  const step = Math.max(1, Math.round(6 / painter.place.scale)); // so that a step can be seen
  const to = now
    ? { query: clamp(now.query + down * step, N), key: clamp(now.key + right * step, M) }
    : {
        query: clamp(Math.floor(N / 2), N),
        key: clamp(Math.floor(N / 2) + state.call.value.first, M),
      };
  choose(state, to);
  state.pinned.value = true;
  reveal(painter, to);
}

const clamp = (at, size) => Math.max(0, Math.min(size - 1, at));

function head(state, by) {
  const heads = state.call.value.heads;
  const next = heads[heads.indexOf(state.head.value) + by];
  if (next !== undefined) state.head.value = next;
}

function layer(state, by) {
  const call = state.at.value[2] + by;
  if (state.calls.value[call]) state.show(call, state.head.value);
}

function around(state, painter, factor) {
  const cell = state.cell.value;
  const { x, y, scale } = painter.place;
  const at = cell
    ? [96 + (cell.key + 0.5 - x) * scale, 84 + (cell.query + 0.5 - y) * scale]
    : [painter.canvas.clientWidth / 2, painter.canvas.clientHeight / 2];
  zoom(painter, factor, at[0], at[1]);
}

/** All keys, in a box. */
export function Help({ close }) {
  const box = useRef(null);
  useEffect(() => box.current.showModal(), []);
  return html`<dialog ref=${box} onClose=${close}><h2>Keys</h2><dl>${help.map(([keys, does]) => html`<div><dt>${keys}</dt><dd>${does}</dd></div>`)}</dl>
    <form method="dialog"><button autofocus>close</button></form></dialog>`;
}
