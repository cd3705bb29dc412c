// The list of the largest weights in view.
import { Precision } from "../glossary.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { formatWeight } from "../number_format.js";
import { untilExact } from "../request.js";
import { count, nameOf } from "./labels.js";
import { inView, READABLE, reveal } from "./viewport.js";

/** @import { State } from "../state.js" */
/** @import { Answer, Source } from "../types.js" */
/** @import { Painter } from "./painter.js" */

const SHOWN = 10;

/** @param {{state: State, source: Source, painter: Painter, tokens: any}} props */
export function Strongest({ state, source, painter, tokens }) {
  const [answer, setAnswer] = useState(/** @type {(Answer & {failed?: string}) | null} */ (null));
  useEffect(() => {
    const end = new AbortController();
    const [queries, keys] = inView(painter.place).map((range) => range.join("-"));
    const about = { call: state.callId.value, head: state.head.value, queries, keys, count: SHOWN };
    untilExact(source, ["strongest", about], end.signal, setAnswer).catch(
      (error) => !end.signal.aborted && setAnswer({ failed: String(error.message ?? error) }),
    );
    return () => end.abort();
  }, [state.callId.value, state.head.value]);
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  // in a layout effect, because an arrow key before the next frame would move the cell instead of the focus
  useLayoutEffect(() => list.current?.querySelector("button")?.focus(), [Boolean(answer)]);
  const callId = state.callId.value;
  const now = state.cell.value;
  const go = (/** @type {number} */ query, /** @type {number} */ key) => {
    state.selectCell({ query, key }, true);
    reveal(state, painter.place, { query, key }, READABLE);
  };
  if (!answer) return html`<p class="quiet">…</p>`;
  if (answer.failed) return html`<p class="wrong">${answer.failed}</p>`;
  const cells = /** @type {number[][]} */ (answer.cells).filter(([weight]) => weight > 0);
  if (!cells.length) return html`<p class="quiet">No weight in view is a number above zero.</p>`;
  return html`<h2>Strongest in view</h2>
    <${Precision} answer=${answer} />
    <ol class="strongest" ref=${list} onKeyDown=${moveFocus}>${cells.map(
      ([
        weight,
        query,
        key,
      ]) => html`<li><button aria-pressed=${now?.query === query && now.key === key} onClick=${() => go(query, key)}>
      <span class="amount">${formatWeight(weight)}</span>
      <span class="names"><bdi>${nameOf(tokens, callId, "queries", query)}</bdi><small>${count(query)}</small> → <bdi>${nameOf(tokens, callId, "keys", key)}</bdi><small>${count(key)}</small></span></button></li>`,
    )}</ol>`;
}

/** Move the focus through a list of buttons with the arrow keys. @param {any} event */
function moveFocus(event) {
  const step = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowUp: -1 })[event.key];
  if (!step) return;
  const all = [...event.currentTarget.querySelectorAll("button")];
  all[all.indexOf(event.target) + step]?.focus();
  event.preventDefault();
}
