// What stands above: to the left what is looked at, to the right the tools.
import { Choice, Chooser, Menu } from "./controls.js";
import { Explained, meaning, Term } from "./glossary.js";
import { html } from "./html.js";
import { recorded, saved } from "./map/save.js";
import { Strongest } from "./map/strongest.js";
import { Find } from "./text/find.js";
import { NewText } from "./text/new_text.js";

/** @import { Painter } from "./map/painter.js" */
/** @import { State } from "./state.js" */
/** @import { Growing } from "./text/live_text.js" */
/** @import { Host, Signal, Source } from "./types.js" */

/**
 * @param {object} given
 * @param {State} given.state @param {Source} given.source @param {Host} given.host
 * @param {any} given.tokens @param {Growing} given.growing
 * @param {Signal<Painter | null>} given.painter
 * @param {() => Painter[]} given.painters @param {() => void} given.help
 */
export function Top({ state, source, host, tokens, growing, painter, painters, help }) {
  const { proof, layout, why } = state.call.value;
  const one = painter.value;
  const missed = Object.entries(state.about.recordings[state.at.value[0]].missed);
  return html`<header>
    <div class="what"><b class="logo">heedful</b>
      <${Chooser} state=${state} side=${state} label="What is looked at" />
      <span class=${`proof ${proof}`}>${Term(proof)}</span>
      <span class=${`layout ${layout}`}>${layout === "guessed" ? Explained("layout guessed", `${meaning(layout)} ${why}`) : Term(`layout ${layout}`, layout)}</span>
      ${missed.length ? html`<span class="quiet missed">${Explained(`${missed.length} not recorded`, missed.map(([name, why]) => `${name}: ${why}`).join("; "))}</span>` : null}
      ${state.about.file ? html`<span class="quiet">${Explained("one file", state.about.file.said)}</span>` : null}</div>
    <div class="tools">
      ${state.about.written ? null : html`<${NewText} state=${state} source=${source} />`}
      <${Find} state=${state} source=${source} painter=${painter} />
      <${Menu} label="Strongest" shortcut="s" title="The strongest weights in view">${one ? html`<${Strongest} state=${state} source=${source} painter=${one} tokens=${tokens} />` : null}<//>
      <${Beside} state=${state} />
      <button class="segments" aria-pressed=${state.pane.value === "segments"} aria-keyshortcuts="m" title="Mark segments of the text, and see who reads which" onClick=${() => (state.pane.value = state.pane.value === "segments" ? "weight" : "segments")}>Segments</button>
      <${Menu} label="View" shortcut="v"><${Looks} state=${state} /><//>
      <${Menu} label="Save" shortcut="w">${(/** @type {() => void} */ close) => html`<${Save} state=${state} source=${source} host=${host} painters=${painters} growing=${growing} close=${close} />`}<//>
      <button class="round" aria-label="Help: all keys" aria-keyshortcuts="?" title="All keys" onClick=${help}>?</button>
    </div></header>`;
}

/** @param {{state: State}} given */
function Beside({ state }) {
  const isOpen = Boolean(state.second.value);
  const toggle = () => {
    state.second.value = isOpen ? null : { at: state.at.value, head: state.head.value };
  };
  return html`<button class="beside" aria-pressed=${isOpen} aria-keyshortcuts="b" title="A second map, panned and zoomed with the first" onClick=${toggle}>Beside</button>`;
}

/** How the map is drawn. @param {{state: State}} given */
function Looks({ state }) {
  return html`<div class="looks">
    <${Setting} title="Colours" of=${state.colours} ways=${[["linear", "linear"], ["sqrt", "root"], ["log", "log"]]} />
    <${Setting} title="A pixel of many weights is" of=${state.reduce} ways=${[["max", "the largest"], ["mean", "the mean"]]} />
    <label><input type="checkbox" checked=${state.sink.value} onChange=${(/** @type {any} */ e) => (state.sink.value = e.target.checked)} /> the first key counts in the scale</label>
    <${Setting} title="Light or dark" of=${state.theme} ways=${[["", "system"], ["light", "light"], ["dark", "dark"]]} />
  </div>`;
}

/** @param {{title: string, of: Signal<string>, ways: [string, string][]}} given */
const Setting = ({ title, of, ways }) =>
  html`<div class="setting"><span>${title}</span><${Choice} label=${title} ways=${ways} now=${of.value} choose=${(/** @type {string} */ way) => (of.value = way)} /></div>`;

/** @param {any} given */
function Save({ state, source, host, painters, growing, close }) {
  const telling = (/** @type {() => Promise<void>} */ does) => async () => {
    close();
    try {
      await does();
    } catch (error) {
      state.notice.value = String(/** @type {any} */ (error).message ?? error);
    }
  };
  const does = (/** @type {"png" | "svg" | "csv"} */ kind) =>
    telling(() => saved(kind, state, source, painters()));
  const { shown } = growing;
  const copy = telling(async () => {
    await new Promise((soon) => setTimeout(soon, 250)); // the address has what was changed last
    const link = host.address.link();
    try {
      await navigator.clipboard.writeText(link);
      state.notice.value = "The link to this view is copied.";
    } catch {
      state.notice.value = link;
    }
  });
  return html`<div class="actions">
    <button onClick=${does("png")}><b>PNG</b> the map as it is shown</button>
    <button onClick=${does("svg")}><b>SVG</b> the same, its names as text</button>
    <button onClick=${does("csv")}><b>CSV</b> the weights in view</button>
    ${shown ? html`<button onClick=${telling(() => recorded(state, source))}><b>Recording</b> of this text, for heedful.load</button>` : null}
    ${host.address?.link ? html`<button onClick=${copy}><b>Link</b> copy the address of this view</button>` : null}
  </div>`;
}
