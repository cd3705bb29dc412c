// A first visit: an example is opened, and three small cards lead through it.

import { Term, tells } from "./glossary.js";
import { title } from "./heads/scores.js";
import { html, signal, useEffect, useRef, useState } from "./html.js";

/** @import { Heads, One } from "./heads/scores.js" */
/** @import { State } from "./state.js" */
/** @import { Tokens } from "./tokens.js" */
/** @import { Host, Source } from "./types.js" */

const SEEN = "heedful: first steps seen";
const PATIENCE = 3000; // milliseconds in which scores may come, to choose an example by them
const CLEAR = ["previous", "induction", "duplicate", "local", "self"]; // whose maps say something
const WHOLE = 2048; // tokens among which the strongest weight is quickly found
const NARROW = 900; // pixels, below which parts are tabs

/** Which of the steps is shown; −1: none. */
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
    } catch {} // a page of a file may keep nothing
  }

  /** On the first visit. */
  begin() {
    try {
      if (localStorage.getItem(SEEN) === "1") return;
    } catch {} // it is a first visit each time
    this.go(0);
  }
}

/** @param {{tour: Tour, state: State, source: Source, heads: Heads, tokens: Tokens, host: Host}} given */
export function Steps({ tour, state, source, heads, tokens, host }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const isFirst = useState(() => !host.address?.read())[0]; // nobody shared a view
  const before = useState(() => looked(state))[0]; // effects run later, when a view may be chosen
  const step = tour.step.value;
  useEffect(() => {
    let gone = !isFirst;
    const chose = () => gone || looked(state) !== before;
    if (isFirst) example(state, source, heads, chose).then((is) => is && !gone && tour.begin());
    return () => {
      gone = true;
    };
  }, []);
  useEffect(() => {
    const page = /** @type {HTMLElement | null} */ (box.current?.closest(".page"));
    if (!page || step < 0) return;
    if (page.clientWidth <= NARROW) state.tab.value = CARDS[step].part;
    const keys = host.keys ?? page;
    const leave = (/** @type {any} */ event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      tour.end();
    };
    keys.addEventListener("keydown", leave, { capture: true });
    return () => keys.removeEventListener("keydown", leave, { capture: true });
  }, [step]);
  if (step < 0) return null;
  const last = step === CARDS.length - 1;
  return html`<section class=${`card card-${CARDS[step].part}`} ref=${box} aria-label=${`First steps, ${step + 1} of ${CARDS.length}`} aria-live="polite">
    <p>${CARDS[step].says({ state, heads, tokens })}</p>
    <div><span class="quiet">${step + 1} of ${CARDS.length}</span><span class="grow"></span>
      ${last ? null : html`<button type="button" class="plain" onClick=${() => tour.end()}>skip</button>`}
      ${step ? html`<button type="button" onClick=${() => tour.go(step - 1)}>back</button>` : null}
      <button type="button" class="next" onClick=${() => (last ? tour.end() : tour.go(step + 1))}>${last ? "done" : "next"}</button></div></section>`;
}

/** @typedef {{state: State, heads: Heads, tokens: Tokens}} Shown */

/** @type {{part: "heads" | "map" | "weight", says: (shown: Shown) => any}[]} */
const CARDS = [
  {
    part: "heads",
    says: ({ state, heads }) => {
      const mine = chosen(state, heads);
      return html`Each small picture is a ${Term("head")}: what looks at what, one row for each token. Chosen is <b>${mine ? title(mine) : "one"}</b>. ${mine ? tells(mine.kind) : ""}`;
    },
  },
  {
    part: "map",
    says: () =>
      html`Its map, large. A ${Term("row")} is a token that looks, a ${Term("column")} one that is looked at; the colour is how much. Drag and zoom; click a cell to keep it.`,
  },
  {
    part: "weight",
    says: ({ state, tokens }) => {
      const at = state.cell.value;
      const name = (/** @type {"queries" | "keys"} */ axis, /** @type {number} */ i) =>
        html`<b class="short"><bdi>${tokens.label(state.where.value, axis, i).replace(/^·+(?=.)/, "")}</bdi></b>`;
      return html`${at ? html`The marked cell: how much ${name("queries", at.query)} looks at ${name("keys", at.key)}. ` : ""}Here is all that makes it, down to single products. Words with dots under them say what they mean.`;
    },
  },
];

/** @param {State} state @param {Heads} heads */
const chosen = (state, heads) =>
  heads.all().find((one) => one.call === state.at.value[2] && one.head === state.head.value);

/** What is looked at. @param {State} state */
const looked = (state) =>
  `${state.where.peek()} ${state.head.peek()} ${JSON.stringify([state.cell.peek(), state.held.peek()])}`;

/**
 * Open the strongest cell of a clear head that is not on the sink; whether there was one, and
 * nobody chose anything meanwhile.
 * @param {State} state @param {Source} source @param {Heads} heads @param {() => boolean} gone
 */
async function example(state, source, heads, gone) {
  const end = performance.now() + PATIENCE;
  while (heads.done < 1 && performance.now() < end && !gone())
    await new Promise((done) => setTimeout(done, 80));
  const worth = (/** @type {One} */ one) =>
    CLEAR.includes(one.kind) ? one.values[one.kind] - (one.kind === "self" ? 0.5 : 0) : -1;
  const [best] = [...heads.all()].sort((a, b) => worth(b) - worth(a));
  if (!best || gone()) return false;
  const [, N, M] = best.about.shape;
  const call = state.name([...state.at.peek().slice(0, 2), best.call]);
  const region = { queries: `0-${Math.min(N, WHOLE)}`, keys: `0-${Math.min(M, WHOLE)}` };
  const asked = { call, head: best.head, ...region, count: 50 };
  const { cells } = await source.ask("strongest", asked).catch(() => ({ cells: [] }));
  if (gone() || !cells?.length) return false; // an example is nothing that has to be
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
