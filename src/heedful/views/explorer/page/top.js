// What stands above: which text, which head, how it is coloured, a search, and what can be saved.

import { title } from "./heads.js";
import { html, useState } from "./html.js";
import { reveal } from "./map.js";
import { saved } from "./save.js";
import { Term } from "./terms.js";

export function Top({ state, painter, source, help }) {
  const { recordings } = state.about;
  const [recording, text] = state.at.value;
  const call = state.call.value;
  const options = recordings.flatMap((one, r) =>
    one.texts.map((of, t) => ({
      id: `${r}.${t}`,
      label: recordings.length > 1 || one.texts.length > 1 ? `${one.name} · ${of.label}` : one.name,
    })),
  );
  const choose = (signal, values, label) =>
    html`<label>${label} <select value=${signal.value} onChange=${(e) => (signal.value = e.target.value)}>${values.map((one) => html`<option>${one}</option>`)}</select></label>`;
  return html`<header>
    <b class="logo">heedful</b>
    ${options.length > 1 ? html`<select aria-label="Text" value=${`${recording}.${text}`} onChange=${(e) => state.open(.../** @type {[number, number]} */ (e.target.value.split(".").map(Number)))}>${options.map((one) => html`<option value=${one.id}>${one.label}</option>`)}</select>` : html`<span>${options[0].label}</span>`}
    <span class="where">${title({ about: call, head: state.head.value })}</span>
    <span class=${`proof ${call.proof}`}>${Term(call.proof)}</span>
    <span class="grow"></span>
    ${choose(state.reduce, ["max", "mean"], "pooled by")}
    ${choose(state.colours, ["linear", "sqrt", "log"], "colours")}
    <label><input type="checkbox" checked=${state.sink.value} onChange=${(e) => (state.sink.value = e.target.checked)} /> ${Term("sink")}</label>
    <${Find} state=${state} painter=${painter} source=${source} />
    <button onClick=${() => (state.second.value = { at: state.at.value, head: state.head.value })} title="Keep this map and choose another beside it">beside</button>
    <button onClick=${() => saved(painter.current, "png")} title="Save what is shown as a picture">PNG</button>
    <button onClick=${() => saved(painter.current, "svg")}>SVG</button>
    <button onClick=${() => saved(painter.current, "csv", source)} title="The cells in view as numbers">CSV</button>
    <button aria-label="Light or dark" onClick=${() => (state.theme.value = dark(state) ? "light" : "dark")}>◐</button>
    <button aria-label="Help" onClick=${help}>?</button>
  </header>`;
}

const dark = (state) =>
  (state.theme.value || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) ===
  "dark";

function Find({ state, painter, source }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const go = async (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("text");
    if (!text) return setFound(null);
    const again = found?.text === text && found.call === state.where.value;
    const now = again
      ? { ...found, at: (found.at + 1) % Math.max(1, found.count) }
      : {
          text,
          at: 0,
          call: state.where.value,
          ...(await source.ask("find", { call: state.where.value, axis: "keys", text })),
        };
    setFound(now);
    if (!now.count) return;
    const key = now.places.data[now.at % now.places.data.length];
    const [, N] = state.call.value.shape;
    const query =
      state.cell.value?.query ?? Math.min(N - 1, Math.max(0, key - state.call.value.first));
    state.cell.value = {
      query: Math.max(query, state.call.value.kind === "causal" ? key - state.call.value.first : 0),
      key,
    };
    reveal(painter.current, state.cell.value, Math.max(painter.current.place.scale, 14));
  };
  return html`<form onSubmit=${go} role="search"><input name="text" type="search" id="find" placeholder="find a token  /" aria-label="Find a token" size="12" />
    <small aria-live="polite">${found ? (found.count ? `${found.at + 1} of ${found.count.toLocaleString("en")}` : "none") : ""}</small></form>`;
}
