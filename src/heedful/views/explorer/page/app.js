// The explorer's page as a component. `state` holds its state; `source` provides its data.
import { fromAddress, historyStep, toAddress } from "./address.js";
import { Notice } from "./controls.js";
import { useExample } from "./example.js";
import { HeadsPane } from "./heads/heads.js";
import { Heads } from "./heads/scores.js";
import { follow, systemTheme } from "./host.js";
import { html, render, signal, useEffect, useMemo, useRef, useState } from "./html.js";
import { canSubtract, differenceSide, differenceSource } from "./map/difference.js";
import { MapPane } from "./map/map.js";
import { Profile } from "./map/row_curve.js";
import { LegendBar, Scale } from "./map/scale.js";
import { valueWeighted } from "./map/value_weights.js";
import { Divider, PANES, paneClasses, paneStyle } from "./panes.js";
import { liveAnswer } from "./request.js";
import { SegmentPane } from "./segments/segment_table.js";
import { Shares } from "./segments/shares.js";
import { Help, listen } from "./shortcuts.js";
import { State, TABS } from "./state.js";
import { Generation } from "./text/generation.js";
import { LiveText } from "./text/live_text.js";
import { TextPane } from "./text/text.js";
import { Tokens } from "./tokens.js";
import { Toolbar } from "./toolbar.js";
import { TrainingSteps } from "./training_steps.js";
import { pinnedWeights } from "./weight/all_heads.js";
import { Weight } from "./weight/weight.js";
import { predicts, withoutParts } from "./without/removed.js";
import { Without } from "./without/without.js";

/** @import { Painter } from "./map/painter.js" */
/** @import { Host, Source } from "./types.js" */

/**
 * Render the page into an element. `host` provides the keys, address and theme of the surroundings.
 * @param {HTMLElement} element @param {Source} source @param {Host} [host]
 * @returns {Promise<() => void>} a function that removes the page
 */
export async function mount(element, source, host = {}) {
  let unfollow = () => {};
  let unfollowTheme = () => {};
  try {
    element.replaceChildren(); // removes the text of a page that has not started
    const about = /** @type {any} */ (await source.ask("about"));
    const state = new State(about);
    if (host.address)
      unfollow = follow(
        host.address,
        (text) => fromAddress(state, text),
        () => toAddress(state),
        () => historyStep(state),
      );
    else state.choose(state.path.value, Number.NaN);
    unfollowTheme = followTheme(state, host.theme ?? systemTheme());
    render(html`<${Root} state=${state} source=${source} host=${host} />`, element);
  } catch (error) {
    const message = String(/** @type {any} */ (error).message ?? error);
    render(html`<p class="wrong">${message}</p>`, element);
  }
  return () => {
    unfollow();
    unfollowTheme();
    render(null, element);
  };
}

/** Keep `state.hostTheme` up to date; return a function that stops this. @param {State} state @param {import("./types.js").Theme} theme */
function followTheme(state, theme) {
  const read = () => (state.hostTheme.value = theme.read());
  read();
  return theme.follow(read);
}

/** The page; it starts again when weights are multiplied by value norms, or not. @param {{state: State, source: Source, host: Host}} props */
function Root({ state, source, host }) {
  const isScaled = state.hasValueNorms.value;
  const shown = useMemo(() => (isScaled ? valueWeighted(source) : source), [isScaled]);
  return html`<${Page} key=${isScaled} state=${state} source=${shown} host=${host} />`;
}

/** Objects that several views share: tokens, heads, and answers that follow the state. @param {State} state @param {Source} source */
function sharedObjects(state, source) {
  const fields = (/** @type {any} */ more) => ({ call: state.callId.value, ...more });
  const [head, cell] = [() => state.head.value, () => state.cell.value];
  const line = (/** @type {"row" | "column"} */ name, /** @type {"query" | "key"} */ axis) =>
    liveAnswer(source, () => cell() && [name, fields({ heads: head(), at: cell()?.[axis] })], 60);
  const [first, second, third] = [0, 1, 2].map(() => signal(/** @type {Painter | null} */ (null)));
  const tokens = new Tokens(source);
  state.segments.firstWords = (axis, run) => tokens.firstWords(state.callId.peek(), axis, run);
  const painters = () =>
    /** @type {Painter[]} */ (
      [first, second, third].map((slot) => slot.peek()).filter((painter) => painter !== null)
    );
  return {
    tokens,
    heads: new Heads(source, state),
    liveText: new LiveText(source, state, tokens, painters),
    painters,
    scale: new Scale(),
    shares: new Shares(source, state),
    first,
    second,
    third,
    difference: {
      side: differenceSide(state),
      source: differenceSource(source, state),
      scale: new Scale(),
    },
    without: withoutParts(state, source),
    allHeads: pinnedWeights(state, source),
    cell: liveAnswer(source, () => cell() && ["cell", fields({ head: head(), ...cell() })], 30),
    row: line("row", "query"),
    column: line("column", "key"),
  };
}

/** @param {{state: State, source: Source, host: Host}} props */
function Page({ state, source, host }) {
  const [shared] = useState(() => sharedObjects(state, source));
  const { tokens, heads, liveText, scale, shares, first, second, third, difference, painters } =
    shared;
  const { allHeads, cell, row, column, without } = shared;
  const page = useRef(/** @type {HTMLElement | null} */ (null));
  useExample(state, source, heads, host);
  const [isHelpOpen, setHelpOpen] = useState(false);
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
      for (const part of [allHeads, cell, row, column, without, heads, liveText, shares])
        part.end();
    };
  }, []);
  const map = (/** @type {string} */ key, /** @type {any} */ slot, /** @type {any} */ props) =>
    html`<${MapPane} key=${key} state=${state} host=${host} tokens=${tokens} ...${{ source, scale, ...props }} onPainter=${(/** @type {any} */ painter) => (slot.value = painter)} />`;
  return html`<div class="heedful"><div ref=${page} class=${`page tab-${state.tab.value} pane-${state.pane.value} ${paneClasses(state)} ${state.largeHeads.value ? "large-heads" : ""} ${state.activeTheme.value}`} style=${paneStyle(state)}>
    <div class="above"><${Toolbar} state=${state} source=${source} host=${host} tokens=${tokens} liveText=${liveText} painter=${first} painters=${painters} help=${() => setHelpOpen(true)} />
      <${TrainingSteps} state=${state} source=${source} />
      <${Generation} state=${state} liveText=${liveText} tokens=${tokens} /></div>
    <nav class="tabs" aria-label="Parts of the page">${TABS.map((tab) => html`<button data-tab=${tab} aria-pressed=${state.tab.value === tab} onClick=${() => state.openTab(tab)}>${tab === "text" && state.call.value.pictured?.length ? "picture" : tab}</button>`)}</nav>
    <div class="part heads-part" data-part="heads"><${HeadsPane} state=${state} heads=${heads} /></div>
    <main class="part" data-part="map"><h1 class="hidden">heedful explorer</h1>
      <div class="maps">${map("first", first, { side: state })}${state.second.value ? map("second", second, { side: state.sides[1] }) : null}
        ${state.second.value && state.isSubtracted.value && canSubtract(state) ? map(`difference ${state.sides[1].callId.value} ${state.sides[1].head.value}`, third, difference) : null}</div>
      ${first.value ? html`<${LegendBar} state=${state} painter=${first.value} />` : null}
      <${Profile} state=${state} painter=${first} row=${row} column=${column} tokens=${tokens} />
    </main>
    <div class="part text-part" data-part="text"><${TextPane} state=${state} source=${source} tokens=${tokens} liveText=${liveText} without=${without} /></div>
    <aside class="part" data-part="weight"><${Without} state=${state} tokens=${tokens} liveAnswer=${without} /><${Weight} state=${state} tokens=${tokens} liveAnswer=${cell} allHeads=${allHeads} /></aside>
    ${state.pane.value === "segments" ? html`<aside class="part" data-part="segments"><${SegmentPane} state=${state} source=${source} shares=${shares} /></aside>` : null}
    ${PANES.map((pane) => html`<${Divider} key=${pane} state=${state} pane=${pane} />`)}
    <${Notice} state=${state} />
    ${isHelpOpen ? html`<${Help} close=${() => setHelpOpen(false)} canGenerate=${liveText.isAvailable} hasSteps=${Boolean(state.about.moments?.length)} canRemove=${Boolean(predicts(state))} />` : null}
  </div></div>`;
}
