// One weight, taken apart: who looks at whom, how much, why so much, and what it carried.

import { Term } from "../glossary.js";
import { title } from "../heads/scores.js";
import { html, useRef, useState } from "../html.js";
import { digits, ordinal, weighed } from "../number_format.js";
import { Token } from "../tokens.js";
import { number } from "../wire.js";
import { Products, Rivals, Steps } from "./calculation.js";
import { why } from "./why.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Answer, Asked, Cell, TextAbout } from "../types.js" */

/** @typedef {{made: Answer, state: State, tokens: Tokens, at: Cell}} Parts */

/** @param {{state: State, tokens: Tokens, cell: Asked}} given */
export function Weight({ state, tokens, cell }) {
  const made = cell.value;
  const at = state.cell.value;
  if (!at)
    return html`<section class="weight" aria-label="This weight"><h2>This ${Term("weight")}</h2>
    <p class="quiet">Point at a cell of the map; a click keeps it here. By keyboard: arrow keys on the map.</p></section>`;
  const where = state.where.value;
  const shown =
    !made || !is(made, at, state)
      ? html`<p class="quiet">…</p>`
      : made.failed
        ? html`<p class="wrong">${made.failed}</p>`
        : html`<${Made} made=${made} state=${state} tokens=${tokens} at=${at} />`;
  return html`<section class="weight" aria-label="This weight">
    <h2>This ${Term("weight")} <small>${title({ about: state.call.value, head: state.head.value })}</small> ${state.pinned.value ? html`<span class="pin">pinned</span>` : null}</h2>
    <p class="pair"><span class="end"><span class="what">${Term("query")}</span><${Token} tokens=${tokens} where=${where} axis="queries" at=${at.query} /></span>
      <span class="to" aria-label="looks at">→</span>
      <span class="end"><span class="what">${Term("key")}</span><${Token} tokens=${tokens} where=${where} axis="keys" at=${at.key} /></span></p>
    ${shown}
  </section>`;
}

/** Whether an answer is to what is shown now. @param {Answer} made @param {Cell} at @param {State} state */
const is = ({ asked }, at, state) =>
  asked.query === at.query &&
  asked.key === at.key &&
  asked.head === state.head.value &&
  asked.call === state.where.value;

/** @param {Parts} given */
function Made({ made, state, tokens, at }) {
  const weight = number(made.weight);
  const { word } = made;
  const name = (/** @type {number} */ key) => {
    const token = tokens.name(state.where.value, "keys", key)?.replace(/^·+(?=.)/, "");
    return token ? `“${token.slice(0, 40)}” (${key})` : `key ${key}`;
  };
  return html`
    <p class="number" aria-live="polite" data-weight=${weight}>${made.hidden ? "hidden" : weighed(weight)}
      <span>${made.hidden ? html`by the ${Term("mask")}` : place(made)}${word && word !== "exact" ? `; ${word}` : ""}</span></p>
    <p class="why">${why(made, at.key, name).map((sentence) => html`<bdi>${sentence}</bdi> `)}</p>
    <${Products} made=${made} />
    <${Steps} made=${made} />
    <${Rivals} made=${made} state=${state} tokens=${tokens} at=${at} />
    ${made.value == null ? null : html`<p>The ${Term("value")} of this key has the length ${digits(made.value)}; times the weight, ${digits(made.value * weight)} of it is handed on.</p>`}
    <p class="quiet">${made.group > 1 ? html`${shared(made, state)} (${Term("grouped heads")}). ` : null}Query and key are as the model multiplied them; where it turns them by their positions, after that.</p>
    <${Proof} made=${made} />
    <${Line} state=${state} at=${at} />`;
}

/** Whether the number is the model's, and of what. @param {{made: Answer}} given */
function Proof({ made }) {
  const layout = html`<span class=${`layout ${made.layout}`}>${Term(`layout ${made.layout}`, made.layout)}</span>`;
  return html`<p class=${`proof ${made.proof}`}>${Term(made.proof)}, ${layout}${made.why ? `: ${made.why}` : ""}</p>`;
}

/** @param {Answer} made */
const place = (made) => `${ordinal(made.rank)} of ${made.seen.toLocaleString("en")} in its row`;

/** Which heads have this key in common. @param {Answer} made @param {State} state */
function shared(made, state) {
  const { heads } = state.call.value;
  const first = Math.floor(heads.indexOf(state.head.value) / made.group) * made.group;
  return `Heads ${heads.slice(first, first + made.group).join(", ")} share this key`;
}

/**
 * @param {TextAbout} text what is looked at
 * @param {number} call @param {number} head @param {Cell} at
 */
export const line = (text, call, head, at) =>
  `${text.code}[${text.calls[call].at}].weights(head=${head}, queries=[${at.query}], keys=[${at.key}])`;

/** @param {{state: State, at: Cell}} given */
export function Line({ state, at }) {
  const [recording, text, call] = state.at.value;
  const { name, texts } = state.about.recordings[recording];
  const written = line(texts[text], call, state.head.value, at);
  const shown = useRef(/** @type {HTMLElement | null} */ (null));
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(written);
      setSaid("copied");
    } catch {
      if (shown.current) getSelection()?.selectAllChildren(shown.current);
      setSaid("selected: copy it");
    }
    setTimeout(() => setSaid(""), 2000);
  };
  const many = state.about.recordings.length > 1;
  return html`<div class="python"><p class="quiet">The same in Python${many ? html`, of <bdi>${name}</bdi>` : ""}</p>
    <code ref=${shown}>${written}</code><button type="button" onClick=${copy}>copy</button><span role="status" class="quiet">${said}</span></div>`;
}
