// On the first view of a page, selects a head with a clear pattern, and its largest weight.
import { toAddress } from "./address.js";
import { useEffect } from "./html.js";

/** @import { HeadEntry, Heads } from "./heads/scores.js" */
/** @import { State } from "./state.js" */
/** @import { Host, Source } from "./types.js" */

const TIMEOUT = 3000; // milliseconds to wait for the scores that choose an example
const CLEAR = ["previous", "induction", "duplicate", "local", "self"]; // kinds with a clear pattern
const SEARCHED = 2048; // number of queries and keys among which the largest weight is searched

/** Open the example if the address has no view. @param {State} state @param {Source} source @param {Heads} heads @param {Host} host */
export function useExample(state, source, heads, host) {
  useEffect(() => {
    if (host.address?.read()) return undefined;
    const initial = selection(state);
    let isUnmounted = false;
    openExample(state, source, heads, host, () => isUnmounted || selection(state) !== initial);
    return () => {
      isUnmounted = true;
    };
  }, []);
}

/** The selection as text, for comparisons. @param {State} state */
const selection = (state) =>
  `${state.callId.peek()} ${state.head.peek()} ${JSON.stringify([state.cell.peek(), state.highlighted.peek()])}`;

/**
 * Select the head with the clearest pattern, and its largest weight; if possible, one on neither the
 * first key nor the query's own. Nothing without weights, or if the user has chosen meanwhile.
 * @param {State} state @param {Source} source @param {Heads} heads @param {Host} host @param {() => boolean} hasChosen
 */
async function openExample(state, source, heads, host, hasChosen) {
  const end = performance.now() + TIMEOUT;
  while (heads.progress < 1 && performance.now() < end && !hasChosen())
    await new Promise((resolve) => setTimeout(resolve, 80));
  const clarity = (/** @type {HeadEntry} */ { kind, values }) =>
    CLEAR.includes(kind) ? values[kind] - (kind === "self" ? 0.5 : 0) : -1;
  const [best] = [...heads.all()].sort((a, b) => clarity(b) - clarity(a));
  if (!best || hasChosen()) return;
  const [, N, M] = best.about.shape;
  const call = state.callIdOf([...state.path.peek().slice(0, 2), best.call]);
  const region = { queries: `0-${Math.min(N, SEARCHED)}`, keys: `0-${Math.min(M, SEARCHED)}` };
  const fields = { call, head: best.head, ...region, count: 50 };
  const { cells } = await source.ask("strongest", fields).catch(() => ({ cells: [] }));
  if (hasChosen() || !cells?.length) return; // the page works without an example
  const first = best.about.kind === "cross" ? Number.NaN : best.about.first;
  const [, query, key] =
    cells.find((/** @type {number[]} */ [, query, key]) => key > 0 && key !== query + first) ??
    cells.find((/** @type {number[]} */ [, , key]) => key > 0) ??
    cells[0];
  state.show(best.call, best.head);
  state.cell.value = { query, key };
  state.pinned.value = true;
  state.previous = null; // the user has seen no other map
  host.address?.write(toAddress(state), false); // not a step back in the browser's history
}
