// Which text, which layer and which head a map shows.

import { callTitle } from "./heads/scores.js";
import { html } from "./html.js";

/** @import { State } from "./state.js" */
/** @import { Side } from "./types.js" */

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
    <select aria-label="Layer" value=${call} onChange=${(/** @type {any} */ e) => side.choose([recording, text, Number(e.target.value)], head)}>${calls.map((one, i) => html`<option value=${i}>${callTitle(one)}</option>`)}</select>
    <select aria-label="Head" value=${head} onChange=${(/** @type {any} */ e) => side.choose([recording, text, call], Number(e.target.value))}>${calls[call].heads.map((one) => html`<option value=${one}>head ${one}</option>`)}</select>
  </span>`;
}
