// The page: one screen. What it shows stands in `state`, what it is told comes from `source`.

import { headOf, read, written } from "./address.js";
import { Notice } from "./controls.js";
import { HeadsPane } from "./heads/heads.js";
import { Heads } from "./heads/scores.js";
import { follow, system } from "./host.js";
import { html, render, signal, useEffect, useRef, useState } from "./html.js";
import { MapPane } from "./map/map.js";
import { Profile } from "./map/profile.js";
import { Scale, Under } from "./map/scale.js";
import { asked } from "./request.js";
import { Who } from "./segments/segment_table.js";
import { Shares } from "./segments/shares.js";
import { Help, listen } from "./shortcuts.js";
import { State, TABS } from "./state.js";
import { Generation } from "./text/generation.js";
import { Growing } from "./text/live_text.js";
import { TextPane } from "./text/text.js";
import { Tokens } from "./tokens.js";
import { Top } from "./toolbar.js";
import { Steps, Tour } from "./tour.js";
import { Moments } from "./training_steps.js";
import { Weight } from "./weight/weight.js";

/** @import { Painter } from "./map/painter.js" */
/** @import { Host, Source } from "./types.js" */

/**
 * Draw the page into an element. It fills the element, listens only inside of it and changes
 * nothing else, but for what the host gives.
 * @param {HTMLElement} element @param {Source} source @param {Host} [host]
 * @returns {Promise<() => void>} what takes it away again
 */
export async function mount(element, source, host = {}) {
  let unfollow = () => {};
  let undress = () => {};
  try {
    const about = /** @type {any} */ (await source.ask("about"));
    const state = new State(about);
    if (host.address)
      unfollow = follow(
        host.address,
        (text) => read(state, text),
        () => written(state),
        () => headOf(state),
      );
    else state.choose(state.at.value, Number.NaN);
    undress = dress(state, host.theme ?? system());
    render(html`<${Page} state=${state} source=${source} host=${host} />`, element);
  } catch (error) {
    const said = String(/** @type {any} */ (error).message ?? error);
    render(html`<p class="wrong">${said}</p>`, element);
  }
  return () => {
    unfollow();
    undress();
    render(null, element);
  };
}

/** Wear what is worn around the page; ends that. @param {State} state @param {import("./types.js").Theme} theme */
function dress(state, theme) {
  const read = () => (state.around.value = theme.read());
  read();
  return theme.follow(read);
}

/** What the views share: tokens, heads, and answers that follow what is shown. @param {State} state @param {Source} source */
function parts(state, source) {
  const of = (/** @type {Record<string, any>} */ more) => ({ call: state.where.value, ...more });
  const at = () => state.cell.value;
  const line = (/** @type {"row" | "column"} */ name, /** @type {"query" | "key"} */ axis) =>
    asked(source, () => at() && [name, of({ heads: state.head.value, at: at()?.[axis] })], 60);
  const [first, second] = [0, 1].map(() => signal(/** @type {Painter | null} */ (null)));
  const tokens = new Tokens(source);
  const painters = () =>
    /** @type {Painter[]} */ ([first.peek(), second.peek()].filter((one) => one !== null));
  return {
    tokens,
    heads: new Heads(source, state),
    growing: new Growing(source, state, tokens, painters),
    painters,
    tour: new Tour(),
    scale: new Scale(),
    shares: new Shares(source, state),
    first,
    second,
    cell: asked(source, () => at() && ["cell", of({ head: state.head.value, ...at() })], 30),
    row: line("row", "query"),
    column: line("column", "key"),
  };
}

/** @param {{state: State, source: Source, host: Host}} given */
function Page({ state, source, host }) {
  const [made] = useState(() => parts(state, source));
  const { tokens, heads, growing, tour, scale, shares, first, second, painters } = made;
  const { cell, row, column } = made;
  const page = useRef(/** @type {HTMLElement | null} */ (null));
  const [helped, setHelped] = useState(false);
  useEffect(() => {
    const target = host.keys ?? /** @type {HTMLElement} */ (page.current);
    const unlisten = listen(
      target,
      state,
      () => first.value,
      () => page.current,
    );
    return () => {
      unlisten();
      for (const one of [cell, row, column, heads, growing, shares]) one.end();
    };
  }, []);
  const map = (/** @type {any} */ side, /** @type {any} */ where) =>
    html`<${MapPane} key=${side === state ? "first" : "second"} state=${state} side=${side} source=${source} host=${host} tokens=${tokens} scale=${scale} keep=${(/** @type {any} */ one) => (where.value = one)} />`;
  return html`<div class="heedful"><div ref=${page} class=${`page tab-${state.tab.value} pane-${state.pane.value} ${state.worn.value}`}>
    <div class="above"><${Top} state=${state} source=${source} host=${host} tokens=${tokens} growing=${growing} painter=${first} painters=${painters} help=${() => setHelped(true)} />
      <${Moments} state=${state} />
      <${Generation} state=${state} growing=${growing} tokens=${tokens} /></div>
    <nav class="tabs" aria-label="Parts of the page">${TABS.map((tab) => html`<button data-tab=${tab} aria-pressed=${state.tab.value === tab} onClick=${() => state.turn(tab)}>${tab === "text" && state.call.value.pictured?.length ? "picture" : tab}</button>`)}</nav>
    <div class="part heads-part" data-part="heads"><${HeadsPane} state=${state} heads=${heads} /></div>
    <main class="part" data-part="map"><h1 class="hidden">heedful explorer</h1>
      <div class="maps">${map(state, first)}${state.second.value ? map(state.sides[1], second) : null}</div>
      ${first.value ? html`<${Under} state=${state} painter=${first.value} />` : null}
      <${Profile} state=${state} painter=${first} row=${row} column=${column} tokens=${tokens} />
    </main>
    <div class="part text-part" data-part="text"><${TextPane} state=${state} source=${source} tokens=${tokens} growing=${growing} /></div>
    <aside class="part" data-part="weight"><${Weight} state=${state} tokens=${tokens} cell=${cell} /></aside>
    ${state.pane.value === "segments" ? html`<aside class="part" data-part="segments"><${Who} state=${state} source=${source} shares=${shares} /></aside>` : null}
    <${Notice} state=${state} />
    <${Steps} tour=${tour} state=${state} source=${source} heads=${heads} tokens=${tokens} host=${host} />
    ${helped ? html`<${Help} close=${() => setHelped(false)} tour=${() => tour.go(0)} grows=${growing.isThere} learns=${Boolean(state.about.moments?.length)} />` : null}
  </div></div>`;
}
