// The page: one screen. What it shows stands in `state`, what it is told comes from `source`.

import { asked } from "./asked.js";
import { Heads, HeadsPane, title } from "./heads.js";
import { html, render, signal, useEffect, useRef, useState } from "./html.js";
import { Help, listen } from "./keys.js";
import { Map, Painter } from "./map.js";
import { Profile } from "./profile.js";
import { State } from "./state.js";
import { TextPane } from "./text.js";
import { Tiles } from "./tiles.js";
import { Tokens } from "./tokens.js";
import { Top } from "./top.js";
import { Under } from "./under.js";
import { Weight } from "./weight.js";

/** Draw the page into an element. @param {HTMLElement} element @param {any} source */
export async function mount(element, source) {
  try {
    const about = await source.ask("about");
    const state = new State(about);
    state.follow();
    render(html`<${Page} state=${state} source=${source} />`, element);
  } catch (error) {
    render(
      html`<p class="wrong">${String(/** @type {any} */ (error).message ?? error)}</p>`,
      element,
    );
  }
}

/** What the views share: tokens, heads, and answers that follow what is shown. */
function parts(state, source) {
  const tokens = new Tokens(source);
  const of = (more) => ({ call: state.where.value, ...more });
  const at = () => state.cell.value;
  return {
    tokens,
    heads: new Heads(source, state),
    cell: asked(source, () => at() && ["cell", of({ head: state.head.value, ...at() })], 30),
    row: asked(source, () => at() && ["row", of({ heads: state.head.value, at: at().query })], 60),
    column: asked(
      source,
      () => at() && ["column", of({ heads: state.head.value, at: at().key })],
      60,
    ),
    lines: asked(source, () => {
      const [, N, M] = state.call.value.shape;
      return Math.max(N, M) > 80
        ? null
        : ["part", of({ head: state.head.value, queries: `0-${N}`, keys: `0-${M}` })];
    }),
  };
}

function Page({ state, source }) {
  const made = useRef(/** @type {any} */ (null));
  made.current ??= parts(state, source);
  const { tokens, heads, cell, row, column, lines } = made.current;
  const painter = useRef(/** @type {any} */ (null));
  const ready = useState(signal(false))[0];
  const keep = (side) => (canvas) => {
    const made = new Painter(canvas, state, new Tiles(source, () => made.soon()), tokens, side);
    if (side === state) painter.current = made;
    ready.value = true;
    return made;
  };
  const second = state.second.value;
  const [helped, setHelped] = useState(false);
  useEffect(
    () =>
      listen(
        state,
        () => painter.current,
        () => setHelped((now) => !now),
      ),
    [],
  );
  const theme = state.theme.value;
  return html`<div class=${`page tab-${state.tab.value} ${theme}`}>
    <${Top} state=${state} painter=${painter} source=${source} help=${() => setHelped(true)} />
    <nav class="tabs" aria-label="Parts of the page">${["heads", "map", "text"].map((tab) => html`<button aria-pressed=${state.tab.value === tab} onClick=${() => (state.tab.value = tab)}>${tab}</button>`)}</nav>
    <${HeadsPane} state=${state} heads=${heads} />
    <main><h1 class="hidden">heedful explorer</h1>
      <div class="maps"><${Map} state=${state} side=${state} keep=${keep(state)} />
        ${
          second
            ? html`<figure><figcaption>${title({ about: state.sides[1].call.value, head: second.head })} <button aria-label="Close the second map" onClick=${() => (state.second.value = null)}>×</button></figcaption>
          <${Map} state=${state} side=${state.sides[1]} keep=${keep(state.sides[1])} /></figure>`
            : null
        }</div>
      ${ready.value ? html`<${Under} state=${state} painter=${painter.current} />` : null}
      <${Profile} state=${state} row=${row} column=${column} tokens=${tokens} />
    </main>
    <aside><${Weight} state=${state} tokens=${tokens} cell=${cell} /></aside>
    <${TextPane} state=${state} tokens=${tokens} row=${row} column=${column} lines=${lines} />
    ${helped ? html`<${Help} close=${() => setHelped(false)} />` : null}
  </div>`;
}
