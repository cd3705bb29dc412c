// Token search among queries or keys: counts matches, marks them on the map, selects the next.
import { Choice } from "../controls.js";
import { effect, html, signal, untracked, useEffect, useRef, useState } from "../html.js";
import { count } from "../map/labels.js";
import { READABLE, reveal } from "../map/viewport.js";
import { liveAnswer } from "../request.js";

/** @import { Painter } from "../map/painter.js" */
/** @import { Matches, State } from "../state.js" */
/** @import { Axis, Cell, Signal, Source } from "../types.js" */

/** @param {{state: State, source: Source, painter: Signal<Painter | null>}} props */
export function Find({ state, source, painter }) {
  const [text] = useState(() => signal(""));
  const [axis] = useState(() => signal(/** @type {Axis} */ ("keys")));
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const words = () => text.value.trim();
  const fields = () => ({ call: state.callId.value, axis: axis.value, text: words() });
  const [answer] = useState(() =>
    liveAnswer(source, () => (words() ? ["find", fields()] : null), 120),
  );
  const pending = useRef(0); // the step to make when the answer arrives
  useEffect(() => {
    const stop = effect(() => {
      const latest = answer.value;
      untracked(() => {
        setMatches(state, latest);
        if (latest && pending.current) step(state, painter.value, pending.current);
      });
      if (latest) pending.current = 0;
    });
    return () => {
      stop();
      answer.end();
    };
  }, []);
  const matches = state.matches.value;
  const go = (/** @type {number} */ direction) => {
    const latest = state.matches.value;
    const isCurrent = latest?.text === words() && latest?.axis === axis.value;
    if (isCurrent) step(state, painter.value, direction);
    else pending.current = direction;
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
      words()
        ? html`<div class="box strip"><${Choice} label="Search among" options=${[["keys", "keys"], ["queries", "queries"]]} selected=${axis.value} choose=${(/** @type {Axis} */ name) => (axis.value = name)} />
      <span class="count" role="status" aria-live="polite">${countText(matches, answer.value)}</span>
      <button aria-label="Previous match" disabled=${!matches?.places.length} onClick=${() => go(-1)}>‹</button><button aria-label="Next match" disabled=${!matches?.places.length} onClick=${() => go(1)}>›</button></div>`
        : null
    }</div>`;
}

/** The number of matches, as text. @param {Matches | null} matches @param {any} answer */
function countText(matches, answer) {
  if (answer?.failed) return answer.failed;
  if (!matches?.count) return matches ? "none" : "…";
  const { current, places } = matches;
  const limit = matches.count > places.length ? ` (the first ${count(places.length)})` : "";
  return `${current < 0 ? "" : `${count(current + 1)} of `}${count(matches.count)}${limit}`;
}

/** @param {State} state @param {any} answer */
function setMatches(state, answer) {
  const { count, places, request } = answer ?? {}; // an answer that failed has no places
  const { text, axis } = request ?? {};
  state.matches.value = places ? { text, axis, places: places.data, count, current: -1 } : null;
}

/** Select the next (1) or the previous (−1) match. @param {State} state @param {Painter | null} painter */
export function step(state, painter, /** @type {number} */ direction) {
  const matches = state.matches.value;
  if (!matches?.places.length || !painter) return;
  const { axis, places, current } = matches;
  const first = direction > 0 ? 0 : places.length - 1;
  const next = current < 0 ? first : (current + direction + places.length) % places.length;
  state.matches.value = { ...matches, current: next };
  const cell = cellOf(state, axis, places[next]);
  state.hover.value = null; // the pointer's box would cover the match
  state.selectCell(cell, true);
  reveal(state, painter.place, cell, READABLE);
}

/** A cell in the row or column of a token. The other index is that of the selected cell, clipped to the causal mask. @param {State} state @param {Axis} axis @returns {Cell} */
function cellOf(state, axis, /** @type {number} */ token) {
  const { kind, first } = state.call.value;
  const cell = state.cell.value;
  const offset = kind === "cross" ? 0 : first;
  if (axis === "queries") {
    const last = kind === "causal" ? token + offset : Number.POSITIVE_INFINITY;
    return state.clamp({ query: token, key: Math.min(cell?.key ?? token + offset, last) });
  }
  const earliest = kind === "causal" ? token - offset : 0;
  return state.clamp({ query: Math.max(cell?.query ?? token - offset, earliest), key: token });
}
