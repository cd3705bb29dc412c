// Search for a token, among queries or keys: how many there are, marks at the map's edge, jumps.

import { Choice } from "../controls.js";
import { effect, html, signal, untracked, useEffect, useRef, useState } from "../html.js";
import { count } from "../map/labels.js";
import { reveal } from "../map/viewport.js";
import { asked } from "../request.js";

/** @import { Painter } from "../map/painter.js" */
/** @import { Found, State } from "../state.js" */
/** @import { Axis, Cell, Signal, Source } from "../types.js" */

const READABLE = 14; // pixels of a cell at which a token has its name

/** @param {{state: State, source: Source, painter: Signal<Painter | null>}} given */
export function Find({ state, source, painter }) {
  const [text] = useState(() => signal(""));
  const [axis] = useState(() => signal(/** @type {Axis} */ ("keys")));
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [answer] = useState(() =>
    asked(
      source,
      () =>
        text.value.trim()
          ? ["find", { call: state.where.value, axis: axis.value, text: text.value.trim() }]
          : null,
      120,
    ),
  );
  const goes = useRef(0); // a step that waits for its answer
  useEffect(() => {
    const stop = effect(() => {
      const now = answer.value;
      untracked(() => take(state, now));
      if (now && goes.current) untracked(() => step(state, painter.value, goes.current));
      if (now) goes.current = 0;
    });
    return () => {
      stop();
      answer.end();
    };
  }, []);
  const found = state.found.value;
  const go = (/** @type {number} */ by) => {
    const { text: searched, axis: among } = state.found.value ?? {};
    if (searched === text.value.trim() && among === axis.value) step(state, painter.value, by);
    else goes.current = by;
  };
  const keys = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") {
      text.value = "";
      input.current?.blur();
    } else return;
    event.preventDefault();
  };
  return html`<div class="find" role="search">
    <input ref=${input} type="search" placeholder="Find token" aria-label="Find a token" aria-keyshortcuts="/" value=${text.value}
      onInput=${(/** @type {any} */ e) => (text.value = e.target.value)} onKeyDown=${keys} />
    ${
      text.value.trim()
        ? html`<div class="box strip"><${Choice} label="Among" ways=${[["keys", "keys"], ["queries", "queries"]]} now=${axis.value} choose=${(/** @type {Axis} */ one) => (axis.value = one)} />
      <span class="count" role="status" aria-live="polite">${said(found, answer.value)}</span>
      <button aria-label="The one before" disabled=${!found?.places.length} onClick=${() => go(-1)}>‹</button><button aria-label="The next one" disabled=${!found?.places.length} onClick=${() => go(1)}>›</button></div>`
        : null
    }</div>`;
}

const said = (/** @type {Found | null} */ found, /** @type {any} */ answer) => {
  if (answer?.failed) return answer.failed;
  if (!found) return "…";
  if (!found.count) return "none";
  const all = found.count > found.places.length ? ` (the first ${count(found.places.length)})` : "";
  return `${found.at < 0 ? "" : `${count(found.at + 1)} of `}${count(found.count)}${all}`;
};

/** @param {State} state @param {any} answer */
function take(state, answer) {
  if (!answer || answer.failed) state.found.value = null;
  else {
    const { text, axis } = answer.asked;
    state.found.value = { text, axis, places: answer.places.data, count: answer.count, at: -1 };
  }
}

/** Go to the next token found, or the one before. @param {State} state @param {Painter | null} painter */
export function step(state, painter, /** @type {number} */ by) {
  const found = state.found.value;
  if (!found?.places.length || !painter) return;
  const length = found.places.length;
  const at = found.at < 0 ? (by > 0 ? 0 : length - 1) : (found.at + by + length) % length;
  state.found.value = { ...found, at };
  const cell = cellOf(state, found.axis, found.places[at]);
  state.look(cell, true);
  reveal(state, painter.place, cell, READABLE);
}

/** A cell of a token's row or column: with the other token that is looked at, if it may be seen. @param {State} state @param {Axis} axis @returns {Cell} */
function cellOf(state, axis, /** @type {number} */ place) {
  const { kind, first } = state.call.value;
  const now = state.cell.value;
  const own = kind === "cross" ? 0 : first;
  if (axis === "queries") {
    const last = kind === "causal" ? place + own : Number.POSITIVE_INFINITY;
    return state.inside({ query: place, key: Math.min(now?.key ?? place + own, last) });
  }
  const earliest = kind === "causal" ? place - own : 0;
  return state.inside({ query: Math.max(now?.query ?? place - own, earliest), key: place });
}
