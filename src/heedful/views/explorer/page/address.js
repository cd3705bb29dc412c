// Converts the page's state to address parameters and back. Invalid parameters are ignored.
import { batch } from "./html.js";
import { integer } from "./number_format.js";
import { PANES } from "./panes.js";
import { fromParameter, toParameter } from "./segments/segments.js";
import { FULL_VIEW, TABS } from "./state.js";

/** @import { State } from "./state.js" */

/** The part of the state whose changes add entries to the browser's history. @param {State} state */
export const historyStep = (state) =>
  `${state.path.value} ${state.head.value} ${state.removed.value}`;

/** The state as address parameters. @param {State} state */
export function toAddress(state) {
  const { x, y, scale } = state.view.value;
  const [cell, lines, second] = [state.cell.value, state.highlighted.value, state.second.value];
  /** @type {Record<string, string>} */
  const params = { call: state.path.value.join("."), head: String(state.head.value) };
  if (scale) params.view = [x, y, scale].map((n) => +n.toPrecision(7)).join(",");
  // only a pinned cell is part of the address
  if (cell && state.pinned.value) {
    params.cell = `${cell.query},${cell.key}`;
    params.pinned = "1";
  }
  if (lines.query !== null) params.row = String(lines.query);
  if (lines.key !== null) params.column = String(lines.key);
  if (state.reduce.value !== "max") params.reduce = state.reduce.value;
  if (state.colours.value !== "sqrt") params.colours = state.colours.value;
  if (!state.sink.value) params.sink = "0";
  if (state.profile.value !== "row") params.profile = state.profile.value;
  if (state.tab.value !== "map") params.tab = state.tab.value;
  if (state.pane.value !== state.firstPane) params.pane = state.pane.value;
  const { source, target } = state.segments.byText.value[state.segments.key.value] ?? {};
  if (source) params.marks = toParameter(source);
  if (target?.length) params.written = toParameter(target);
  if (second) params.beside = `${second.path.join(".")}.${second.head}`;
  const sizes = PANES.map((pane) => state.panes.value[pane] ?? "");
  if (sizes.join("")) params.sizes = sizes.join(",");
  if (state.isValueWeighted.value) params.values = "1";
  if (state.stars.value.length) params.stars = state.stars.value.join(",");
  if (state.removed.value.length) params.without = state.removed.value.join(",");
  if (second && state.isSubtracted.value) params.difference = "1";
  if (state.theme.value) params.theme = state.theme.value;
  return new URLSearchParams(params).toString();
}

/** Set the state from address parameters. @param {State} state @param {string} text */
export function fromAddress(state, text) {
  const params = new URLSearchParams(text);
  const numbers = (/** @type {string} */ name, /** @type {string} */ separator) =>
    params.has(name) ? (params.get(name) ?? "").split(separator).map(integer) : [];
  /** @template {string} T @param {string} name @param {T[]} values @param {T} fallback */
  const option = (name, values, fallback) => values.find((v) => v === params.get(name)) ?? fallback;
  batch(() => {
    const path = numbers("call", ".");
    const head = integer(params.get("head"));
    state.choose(state.has(path) ? path : state.path.value, head);
    const [, N, M] = state.call.value.shape;
    const beside = numbers("beside", ".");
    state.second.value = null;
    if (state.has(beside.slice(0, 3))) state.sides[1].choose(beside.slice(0, 3), beside[3]);
    state.isValueWeighted.value = params.get("values") === "1" && state.call.value.values;
    const stars = (params.get("stars") ?? "").split(",");
    state.stars.value = stars.filter((star) => /^\d{1,6}\.\d{1,6}$/.test(star));
    const removed = (params.get("without") ?? "").split(",");
    state.removed.value = removed.filter((id) =>
      /^\d{1,6}\.\d{1,6}(\.\d{1,6}\.\d{1,6})?$/.test(id),
    );
    state.isSubtracted.value = params.get("difference") === "1";
    state.view.value = viewOf(params.get("view"));
    const [query, key] = numbers("cell", ",");
    const isInside = query < N && key < M;
    state.cell.value = isInside ? { query, key } : null;
    state.pinned.value = isInside && params.get("pinned") === "1";
    const [row, column] = [integer(params.get("row")), integer(params.get("column"))];
    state.highlighted.value = { query: row < N ? row : null, key: column < M ? column : null };
    state.reduce.value = option("reduce", ["max", "mean"], "max");
    state.colours.value = option("colours", ["sqrt", "linear", "log"], "sqrt");
    state.sink.value = params.get("sink") !== "0";
    state.profile.value = option("profile", ["row", "column"], "row");
    state.tab.value = option("tab", TABS, "map");
    const pane = state.tab.value === "segments" ? "segments" : state.firstPane;
    state.pane.value = option("pane", ["weight", "segments"], pane);
    const { segments } = state;
    const [marks, targetMarks] = [params.get("marks") ?? "", params.get("written") ?? ""];
    const source = fromParameter(marks, segments.size("source"));
    const target = fromParameter(targetMarks, segments.size("target"), source.length);
    if (params.has("marks")) segments.replace({ source, target });
    const sizes = numbers("sizes", ",");
    const given = PANES.map((pane, i) => [pane, sizes[i]]).filter(([, size]) => Number(size) >= 0);
    state.panes.value = Object.fromEntries(given);
    state.theme.value = option("theme", ["", "light", "dark"], "");
  });
}

/** @param {string | null} text */
function viewOf(text) {
  const [x, y, scale] = (text ?? "").split(",").map(Number);
  return scale > 0 && Number.isFinite(x + y + scale) ? { x, y, scale } : FULL_VIEW;
}
