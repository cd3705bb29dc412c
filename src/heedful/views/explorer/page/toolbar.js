// The toolbar: on the left the choice of text, layer and head, on the right the tools.
import { toAddress } from "./address.js";
import { Choice, Chooser, Menu } from "./controls.js";
import { Explained, meaning, Term } from "./glossary.js";
import { html } from "./html.js";
import { download, saveMap, saveRecording } from "./map/save.js";
import { Strongest } from "./map/strongest.js";
import { Find } from "./text/find.js";
import { NewText } from "./text/new_text.js";

/** @import { Painter } from "./map/painter.js" */
/** @import { State } from "./state.js" */
/** @import { LiveText } from "./text/live_text.js" */
/** @import { Host, Signal, Source } from "./types.js" */

/**
 * @param {object} props
 * @param {State} props.state @param {Source} props.source @param {Host} props.host
 * @param {any} props.tokens @param {LiveText} props.liveText
 * @param {Signal<Painter | null>} props.painter
 * @param {() => Painter[]} props.painters @param {() => void} props.help
 */
export function Toolbar({ state, source, host, tokens, liveText, painter, painters, help }) {
  const { proof, layout, why } = state.call.value;
  const mapPainter = painter.value;
  const missed = Object.entries(state.about.recordings[state.path.value[0]].missed);
  const skip = () => mapPainter?.canvas.focus();
  return html`<header><button type="button" class="skip" onClick=${skip}>Skip to the map</button>
    <div class="what"><b class="logo">heedful</b>
      <${Chooser} state=${state} side=${state} label="Current selection" />
      <span class=${`proof ${proof}`}>${Term(proof)}</span>
      <span class=${`layout ${layout}`}>${layout === "guessed" ? Explained("layout guessed", `${meaning(layout)} ${why}`) : Term(`layout ${layout}`, layout)}</span>
      ${missed.length ? html`<span class="quiet missed">${Explained(`${missed.length} not recorded`, missed.map(([name, why]) => `${name}: ${why}`).join("; "))}</span>` : null}
      ${state.about.file ? html`<span class="quiet">${Explained("one file", state.about.file.said)}</span>` : null}</div>
    <div class="tools">
      ${state.about.written ? null : html`<${NewText} state=${state} source=${source} />`}
      <${Find} state=${state} source=${source} painter=${painter} />
      <${Menu} label="Strongest" kind="over-map" shortcut="s" title="The strongest weights in view">${mapPainter ? html`<${Strongest} state=${state} source=${source} painter=${mapPainter} tokens=${tokens} />` : null}<//>
      <${Beside} state=${state} />
      <button class="segments" aria-pressed=${state.pane.value === "segments"} aria-keyshortcuts="m" title="Mark segments of the text, and see how they attend to each other" onClick=${() => (state.pane.value = state.pane.value === "segments" ? "weight" : "segments")}>Segments</button>
      <${Menu} label="View" shortcut="v"><${ViewOptions} state=${state} /><//>
      <${Menu} label="Save" shortcut="w">${(/** @type {() => void} */ close) => html`<${Save} state=${state} source=${source} host=${host} painters=${painters} liveText=${liveText} close=${close} />`}<//>
      <button class="round" aria-label="Help" aria-keyshortcuts="?" title="Help, and all keys" onClick=${help}>?</button>
    </div></header>`;
}

/** @param {{state: State}} props */
function Beside({ state }) {
  const isOpen = Boolean(state.second.value);
  const toggle = () => {
    const [head, [recording, ...rest]] = [state.head.value, state.path.value];
    const next = [(recording + 1) % state.about.recordings.length, ...rest];
    const path = state.has(next) ? next : state.path.value;
    state.second.value = isOpen ? null : (state.previous ?? { path, head });
  };
  return html`<button class="beside" aria-pressed=${isOpen} aria-keyshortcuts="b" title="A second map, at first the map seen before; it moves with the first" onClick=${toggle}>Beside</button>`;
}

/** How the map is drawn. @param {{state: State}} props */
function ViewOptions({ state }) {
  return html`<div class="view-options">
    <${Setting} title="Colours" setting=${state.colours} options=${[["linear", "linear"], ["sqrt", "square root"], ["log", "log"]]} />
    <${Setting} title="A pixel that covers several weights shows" setting=${state.reduce} options=${[["max", "maximum"], ["mean", "mean"]]} />
    <label><input type="checkbox" checked=${state.sink.value} onChange=${(/** @type {any} */ e) => (state.sink.value = e.target.checked)} /> the colour scale includes the first key</label>
    <label title=${state.call.value.values ? "Kobayashi et al. 2020: how much of a key's value a query receives" : "This recording has no values: record with values=True"}><input type="checkbox" disabled=${!state.call.value.values && !state.isValueWeighted.value} checked=${state.isValueWeighted.value} onChange=${(/** @type {any} */ e) => (state.isValueWeighted.value = e.target.checked)} /> weight × ‖value‖ in place of the weight</label>
    <${Setting} title="Theme" setting=${state.theme} options=${[["", "system"], ["light", "light"], ["dark", "dark"]]} />
  </div>`;
}

/** @param {{title: string, setting: Signal<string>, options: [string, string][]}} props */
const Setting = ({ title, setting, options }) =>
  html`<div class="setting"><span>${title}</span><${Choice} label=${title} options=${options} selected=${setting.value} choose=${(/** @type {string} */ option) => (setting.value = option)} /></div>`;

/** @param {any} props */
function Save({ state, source, host, painters, liveText, close }) {
  const reporting = (/** @type {() => Promise<void>} */ action) => async () => {
    close();
    try {
      await action();
    } catch (error) {
      state.notice.value = String(/** @type {any} */ (error).message ?? error);
    }
  };
  const save = (/** @type {"png" | "svg" | "csv"} */ kind) =>
    reporting(() => saveMap(kind, state, source, painters()));
  const { visible: status } = liveText;
  const copy = reporting(async () => {
    await new Promise((resolve) => setTimeout(resolve, 250)); // until the address contains the last change
    const { address, place } = host.address.link();
    try {
      await navigator.clipboard.writeText(address);
      state.notice.value = `The link to this view has been copied. ${place}`;
    } catch {
      state.notice.value = `${address} · ${place}`;
    }
  });
  const page = reporting(async () => {
    state.notice.value = "Writing the page …";
    download(await source.page(toAddress(state)), "heedful.html");
    state.notice.value = "The page has been saved: one file that opens in any browser.";
  });
  return html`<div class="actions">
    <button onClick=${save("png")}><b>PNG</b> the map as shown</button>
    <button onClick=${save("svg")}><b>SVG</b> the map, with token names as text</button>
    <button onClick=${save("csv")}><b>CSV</b> the weights in view</button>
    ${status ? html`<button onClick=${reporting(() => saveRecording(state, source))}><b>Recording</b> of this text, for heedful.load</button>` : null}
    ${source.page && !state.about.written ? html`<button onClick=${page}><b>Page</b> one file with all heads, which works offline</button>` : null}
    ${host.address?.link ? html`<button onClick=${copy}><b>Link</b> copy the address of this view</button>` : null}
  </div>`;
}
