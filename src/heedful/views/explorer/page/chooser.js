// Which text, which layer and which head a map shows.
import { html } from "./html.js";

/** @import { State } from "./state.js" */
/** @import { CallAbout, Side } from "./types.js" */

/** A call in words. @param {CallAbout} call */
export const callName = (call) => {
  const layer = call.layer === null ? call.name || "attention" : `layer ${call.layer}`;
  return call.kind === "cross" && call.layer !== null ? `${layer}, cross` : layer;
};

/** @param {{state: State, side: Side, label: string}} given */
export function Chooser({ state, side, label }) {
  const { recordings } = state.about;
  const [recording, text, call] = side.where.value.split(".").map(Number);
  const { calls } = recordings[recording].texts[text];
  const head = side.head.value;
  const texts = recordings.flatMap((one, r) =>
    one.texts.map((of, t) => ({
      id: `${r}.${t}`,
      label: one.texts.length > 1 ? `${one.name} · ${of.label}` : one.name,
    })),
  );
  const names = numbered(
    calls.map(
      (one) => (one.pass && calls[0].pass !== one.pass ? `pass ${one.pass}, ` : "") + callName(one),
    ),
  );
  const open = (/** @type {any} */ event) => {
    const [r, t] = event.target.value.split(".").map(Number);
    side.choose([r, t, Math.min(call, recordings[r].texts[t].calls.length - 1)], head);
  };
  return html`<span class="chooser" role="group" aria-label=${label}>
    ${
      texts.length > 1
        ? html`<select class="of" aria-label="Text" value=${`${recording}.${text}`} onChange=${open}>${texts.map((one) => html`<option value=${one.id}>${one.label}</option>`)}</select>`
        : html`<span class="of" title=${texts[0].label}>${texts[0].label}</span>`
    }
    <select aria-label="Layer" value=${call} onChange=${(/** @type {any} */ e) => side.choose([recording, text, Number(e.target.value)], head)}>${names.map((name, i) => html`<option value=${i}>${name}</option>`)}</select>
    <select aria-label="Head" value=${head} onChange=${(/** @type {any} */ e) => side.choose([recording, text, call], Number(e.target.value))}>${calls[call].heads.map((one) => html`<option value=${one}>head ${one}</option>`)}</select>
  </span>`;
}

/** Names that are there more than once get a number. @param {string[]} names */
function numbered(names) {
  /** @type {Map<string, number>} */
  const seen = new Map();
  return names.map((name) => {
    const n = (seen.get(name) ?? 0) + 1;
    seen.set(name, n);
    return n > 1 ? `${name} (${n})` : name;
  });
}
