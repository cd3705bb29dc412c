// The first visit: the page selects an example, and three small cards explain it.
import { kindSentence, Term } from "./glossary.js";
import { isChosen } from "./heads/grid.js";
import { title } from "./heads/scores.js";
import { html, signal, useEffect, useRef, useState } from "./html.js";

/** @import { HeadEntry, Heads } from "./heads/scores.js" */
/** @import { State } from "./state.js" */
/** @import { Tokens } from "./tokens.js" */
/** @import { Host, Source } from "./types.js" */

const SEEN = "heedful: first steps seen";
const TIMEOUT = 3000; // milliseconds to wait for the scores that choose an example
const CLEAR = ["previous", "induction", "duplicate", "local", "self"]; // kinds with a clear pattern
const SEARCHED = 2048; // number of queries and keys among which the largest weight is searched
const NARROW = 900; // pixels of the page's width up to which the parts are tabs

/** The index of the visible card; −1: none is visible. */
export class Tour {
  constructor() {
    this.step = signal(-1);
  }

  /** @param {number} step */
  go(step) {
    this.step.value = step;
  }

  end() {
    this.step.value = -1;
    try {
      localStorage.setItem(SEEN, "1");
    } catch {} // a page opened from a file may have no storage
  }

  /** Show the first card, on the first visit only. */
  begin() {
    try {
      if (localStorage.getItem(SEEN) === "1") return;
    } catch {} // without storage, every visit counts as the first
    this.go(0);
  }
}

/** @param {{tour: Tour, state: State, source: Source, heads: Heads, tokens: Tokens, host: Host}} props */
export function TourCards({ tour, state, source, heads, tokens, host }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const isFirst = useState(() => !host.address?.read())[0]; // whether the address has no view
  const initial = useState(() => selection(state))[0]; // before any effect runs
  const step = tour.step.value;
  useEffect(() => {
    let isUnmounted = !isFirst;
    const hasChosen = () => isUnmounted || selection(state) !== initial;
    const begin = (/** @type {boolean} */ isOpen) => isOpen && !isUnmounted && tour.begin();
    if (isFirst) openExample(state, source, heads, hasChosen).then(begin);
    return () => {
      isUnmounted = true;
    };
  }, []);
  useEffect(() => {
    const page = /** @type {HTMLElement | null} */ (box.current?.closest(".page"));
    if (!page || step < 0) return;
    if (page.clientWidth <= NARROW) state.tab.value = CARDS[step].part;
    const keys = host.keys ?? page;
    const onEscape = (/** @type {any} */ event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      tour.end();
    };
    keys.addEventListener("keydown", onEscape, { capture: true });
    return () => keys.removeEventListener("keydown", onEscape, { capture: true });
  }, [step]);
  if (step < 0) return null;
  const last = step === CARDS.length - 1;
  return html`<section class=${`card card-${CARDS[step].part}`} ref=${box} aria-label=${`First steps, ${step + 1} of ${CARDS.length}`} aria-live="polite">
    <p>${CARDS[step].content({ state, heads, tokens })}</p>
    <div><span class="quiet">${step + 1} of ${CARDS.length}</span><span class="grow"></span>
      ${last ? null : html`<button type="button" class="plain" onClick=${() => tour.end()}>skip</button>`}
      ${step ? html`<button type="button" onClick=${() => tour.go(step - 1)}>back</button>` : null}
      <button type="button" class="next" onClick=${() => (last ? tour.end() : tour.go(step + 1))}>${last ? "done" : "next"}</button></div></section>`;
}

/** @typedef {{state: State, heads: Heads, tokens: Tokens}} Context */

/** @type {{part: "heads" | "map" | "weight", content: (context: Context) => any}[]} */
const CARDS = [
  {
    part: "heads",
    content: ({ state, heads }) => {
      const entry = selectedEntry(state, heads);
      return html`Each small picture is the attention map of a ${Term("head")}, with query tokens from top to bottom. The selected head is <b>${entry ? title(entry) : "marked"}</b>. ${entry ? kindSentence(entry.kind) : ""}`;
    },
  },
  {
    part: "map",
    content: () =>
      html`This is its attention map. Each ${Term("row")} is a query token, each ${Term("column")} a key token; the colour of a cell shows the weight. Drag to move the map, use the wheel to zoom, click a cell to pin it.`,
  },
  {
    part: "weight",
    content: ({ state, tokens }) => {
      const cell = state.cell.value;
      const name = (/** @type {"queries" | "keys"} */ axis, /** @type {number} */ i) =>
        html`<b class="short"><bdi>${tokens.label(state.callId.value, axis, i).replace(/^·+(?=.)/, "")}</bdi></b>`;
      return html`${cell ? html`The selected cell shows how much ${name("queries", cell.query)} attends to ${name("keys", cell.key)}. ` : ""}Here is its calculation, down to single products. Point at a word with a dotted underline to see its definition.`;
    },
  },
];

/** The entry of the selected head. @param {State} state @param {Heads} heads */
const selectedEntry = (state, heads) => heads.all().find((entry) => isChosen(entry, state));

/** The selection as text, for comparisons. @param {State} state */
const selection = (state) =>
  `${state.callId.peek()} ${state.head.peek()} ${JSON.stringify([state.cell.peek(), state.highlighted.peek()])}`;

/**
 * Select the head with the clearest pattern, and its largest weight; if possible, one on neither the
 * first key nor the query's own. Return false without weights, or if the user has chosen meanwhile.
 * @param {State} state @param {Source} source @param {Heads} heads @param {() => boolean} hasChosen
 */
async function openExample(state, source, heads, hasChosen) {
  const end = performance.now() + TIMEOUT;
  while (heads.progress < 1 && performance.now() < end && !hasChosen())
    await new Promise((resolve) => setTimeout(resolve, 80));
  const clarity = (/** @type {HeadEntry} */ { kind, values }) =>
    CLEAR.includes(kind) ? values[kind] - (kind === "self" ? 0.5 : 0) : -1;
  const [best] = [...heads.all()].sort((a, b) => clarity(b) - clarity(a));
  if (!best || hasChosen()) return false;
  const [, N, M] = best.about.shape;
  const call = state.callIdOf([...state.path.peek().slice(0, 2), best.call]);
  const region = { queries: `0-${Math.min(N, SEARCHED)}`, keys: `0-${Math.min(M, SEARCHED)}` };
  const fields = { call, head: best.head, ...region, count: 50 };
  const { cells } = await source.ask("strongest", fields).catch(() => ({ cells: [] }));
  if (hasChosen() || !cells?.length) return false; // the page works without an example
  const first = best.about.kind === "cross" ? Number.NaN : best.about.first;
  const [, query, key] =
    cells.find((/** @type {number[]} */ [, query, key]) => key > 0 && key !== query + first) ??
    cells.find((/** @type {number[]} */ [, , key]) => key > 0) ??
    cells[0];
  state.show(best.call, best.head);
  state.cell.value = { query, key };
  state.pinned.value = true;
  return true;
}
