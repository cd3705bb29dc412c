// What is shown, as the words of an address, and back. What is not understood is passed over.
import { batch } from "./html.js";
import { asWords, fromWords } from "./segments/segments.js";
import { TABS, WHOLE } from "./state.js";

/** @import { State } from "./state.js" */

/** What can be gone back to. @param {State} state */
export const headOf = (state) => `${state.at.value} ${state.head.value}`;

/** @param {State} state */
export function written(state) {
  const { x, y, scale } = state.view.value;
  const [cell, held, second] = [state.cell.value, state.held.value, state.second.value];
  /** @type {Record<string, string>} */
  const words = { call: state.at.value.join("."), head: String(state.head.value) };
  if (scale) words.view = [x, y, scale].map((n) => +n.toPrecision(7)).join(",");
  // a cell that is only pointed at is not worth an address
  if (cell && state.pinned.value) {
    words.cell = `${cell.query},${cell.key}`;
    words.pinned = "1";
  }
  if (held.query !== null) words.row = String(held.query);
  if (held.key !== null) words.column = String(held.key);
  if (state.reduce.value !== "max") words.reduce = state.reduce.value;
  if (state.colours.value !== "sqrt") words.colours = state.colours.value;
  if (!state.sink.value) words.sink = "0";
  if (state.profile.value !== "row") words.profile = state.profile.value;
  if (state.tab.value !== "map") words.tab = state.tab.value;
  if (state.pane.value !== state.firstPane) words.pane = state.pane.value;
  const { source, target } = state.segments.kept.value[state.segments.key.value] ?? {};
  if (source) words.marks = asWords(source);
  if (target?.length) words.written = asWords(target);
  if (second) words.beside = `${second.at.join(".")}.${second.head}`;
  if (state.theme.value) words.theme = state.theme.value;
  return new URLSearchParams(words).toString();
}

/** @param {State} state @param {string} text */
export function read(state, text) {
  const words = new URLSearchParams(text);
  const numbers = (/** @type {string} */ name, /** @type {string} */ separator) =>
    words.has(name) ? (words.get(name) ?? "").split(separator).map(whole) : [];
  /** @template {string} T @param {string} name @param {T[]} known @param {T} else_ */
  const oneOf = (name, known, else_) => known.find((one) => one === words.get(name)) ?? else_;
  batch(() => {
    const at = numbers("call", ".");
    const head = whole(words.get("head"));
    state.choose(state.has(at) ? at : state.at.value, head);
    const [, N, M] = state.call.value.shape;
    const beside = numbers("beside", ".");
    state.second.value = null;
    if (state.has(beside.slice(0, 3))) state.sides[1].choose(beside.slice(0, 3), beside[3]);
    state.view.value = viewOf(words.get("view"));
    const [query, key] = numbers("cell", ",");
    const is = query < N && key < M;
    state.cell.value = is ? { query, key } : null;
    state.pinned.value = is && words.get("pinned") === "1";
    const [row, column] = [whole(words.get("row")), whole(words.get("column"))];
    state.held.value = { query: row < N ? row : null, key: column < M ? column : null };
    state.reduce.value = oneOf("reduce", ["max", "mean"], "max");
    state.colours.value = oneOf("colours", ["sqrt", "linear", "log"], "sqrt");
    state.sink.value = words.get("sink") !== "0";
    state.profile.value = oneOf("profile", ["row", "column"], "row");
    state.tab.value = oneOf("tab", TABS, "map");
    const pane = state.tab.value === "segments" ? "segments" : state.firstPane;
    state.pane.value = oneOf("pane", ["weight", "segments"], pane);
    const { segments } = state;
    const source = fromWords(words.get("marks") ?? "", segments.size("source"));
    const target = fromWords(words.get("written") ?? "", segments.size("target"), source.length);
    if (words.has("marks")) segments.put({ source, target });
    state.theme.value = oneOf("theme", ["", "light", "dark"], "");
  });
}

/** A whole number from 0, or NaN. @param {string | null} text */
function whole(text) {
  return text !== null && /^\d{1,9}$/.test(text) ? Number(text) : Number.NaN;
}

/** @param {string | null} text */
function viewOf(text) {
  const [x, y, scale] = (text ?? "").split(",").map(Number);
  return scale > 0 && Number.isFinite(x + y + scale) ? { x, y, scale } : WHOLE;
}
