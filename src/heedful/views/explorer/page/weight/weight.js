// The weight pane: query and key, the weight, why it is large or small, and its calculation.
import { Code } from "../controls.js";
import { Term } from "../glossary.js";
import { title } from "../heads/scores.js";
import { html } from "../html.js";
import { saveCsv } from "../map/save.js";
import { digits, formatWeight, ordinal } from "../number_format.js";
import { Token, textOf } from "../tokens.js";
import { number } from "../wire.js";
import { AllHeads } from "./all_heads.js";
import { CalculationSteps, calculationRows, LargestWeights, Products } from "./calculation.js";
import { why } from "./why.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Answer, Cell, LiveAnswer, TextAbout } from "../types.js" */

/** @typedef {{answer: Answer, state: State, tokens: Tokens, cell: Cell}} Props */

/** @param {{state: State, tokens: Tokens, liveAnswer: LiveAnswer, allHeads: LiveAnswer}} props */
export function Weight({ state, tokens, liveAnswer, allHeads }) {
  const answer = liveAnswer.value;
  const cell = state.cell.value;
  if (!cell)
    return html`<section class="weight" aria-label="This weight"><h2>This ${Term("weight")}</h2>
    <p class="quiet">Point at a cell of the map, and click to pin it. By keyboard: press the arrow keys on the map.</p></section>`;
  const callId = state.callId.value;
  const content =
    !answer || !isCurrent(answer, cell, state)
      ? html`<p class="quiet">…</p>`
      : answer.failed
        ? html`<p class="wrong">${answer.failed}</p>`
        : html`<${WeightDetails} answer=${answer} state=${state} tokens=${tokens} cell=${cell} />`;
  return html`<section class="weight" aria-label="This weight">
    <h2>This ${Term("weight")} <small>${title({ about: state.call.value, head: state.head.value })}</small> ${state.pinned.value ? html`<span class="pin">pinned</span>` : null}</h2>
    <p class="pair"><span class="end"><span class="what">${Term("query")}</span><${Token} tokens=${tokens} callId=${callId} axis="queries" index=${cell.query} /></span>
      <span class="to" aria-label="attends to">→</span>
      <span class="end"><span class="what">${Term("key")}</span><${Token} tokens=${tokens} callId=${callId} axis="keys" index=${cell.key} /></span></p>
    ${content}
    ${state.pinned.value ? html`<${AllHeads} state=${state} liveAnswer=${allHeads} />` : null}
    ${answer && isCurrent(answer, cell, state) && !answer.failed ? html`<${Details} answer=${answer} state=${state} tokens=${tokens} cell=${cell} />` : null}
  </section>`;
}

/** Whether an answer belongs to the current cell, head and call. @param {Answer} answer @param {Cell} cell @param {State} state */
const isCurrent = ({ request }, cell, state) =>
  request.query === cell.query &&
  request.key === cell.key &&
  request.head === state.head.value &&
  textOf(request.call) === textOf(state.callId.value); // a row stays the same while a text grows

/** @param {Props} props */
function WeightDetails({ answer, state, tokens, cell }) {
  const weight = number(answer.weight);
  const { word } = answer;
  const name = (/** @type {number} */ key) => {
    const token = tokens.name(state.callId.value, "keys", key)?.replace(/^·+(?=.)/, "");
    return token ? `“${token.slice(0, 40)}” (${key})` : `key ${key}`;
  };
  return html`
    <p class="number" aria-live="polite" data-weight=${weight}>${answer.hidden ? "masked" : formatWeight(weight)}
      <span>${answer.hidden ? html`by the ${Term("mask")}` : rankText(answer)}${word && word !== "exact" ? `; ${word}` : ""}</span></p>
    <p class="why">${why(answer, cell.key, name).map((sentence) => html`<bdi>${sentence}</bdi> `)}</p>
`;
}

/** The calculation of the weight, its proof, and how to compute it in Python. @param {Props} props */
function Details({ answer, state, tokens, cell }) {
  const weight = number(answer.weight);
  return html`<${Products} answer=${answer} />
    <${CalculationSteps} answer=${answer} />
    <${LargestWeights} answer=${answer} state=${state} tokens=${tokens} cell=${cell} />
    ${answer.value == null || Number.isNaN(weight) ? null : html`<p>The norm of this key’s ${Term("value")} is ${digits(answer.value)}. Times the weight, the value has the norm ${digits(answer.value * weight)}.</p>`}
    <p class="quiet">${answer.group > 1 ? html`${shared(answer, state)} (${Term("grouped heads")}). ` : null}Query and key are the vectors that the model multiplies, after rotary positions if it uses them.</p>
    <button type="button" onClick=${() => saveCsv(`weight ${cell.query}-${cell.key}`, calculationRows(answer))}>save as CSV</button>
    <${Proof} answer=${answer} />
    <${PythonLine} state=${state} cell=${cell} />`;
}

/** The proof and the layout of the call. @param {{answer: Answer}} props */
function Proof({ answer }) {
  const layout = html`<span class=${`layout ${answer.layout}`}>${Term(`layout ${answer.layout}`, answer.layout)}</span>`;
  return html`<p class=${`proof ${answer.proof}`}>${Term(answer.proof)}, ${layout}${answer.why ? `: ${answer.why}` : ""}</p>`;
}

/** The rank of the weight in its row. @param {Answer} answer */
const rankText = ({ rank, seen, weight }) =>
  Number.isNaN(number(weight)) ? "" : `${ordinal(rank)} of ${seen.toLocaleString("en")} in its row`;

/** The query heads that share this key head. @param {Answer} answer @param {State} state */
function shared(answer, state) {
  const { heads } = state.call.value;
  const first = Math.floor(heads.indexOf(state.head.value) / answer.group) * answer.group;
  return `Heads ${heads.slice(first, first + answer.group).join(", ")} share this key`;
}

/** The Python expression for a weight. @param {TextAbout} text @param {number} call @param {number} head @param {Cell} cell */
export const expression = (text, call, head, cell) =>
  `${text.code}[${text.calls[call].at}].weights(head=${head}, queries=[${cell.query}], keys=[${cell.key}])`;

/** The Python expression for the selected weight. @param {{state: State, cell: Cell}} props */
export function PythonLine({ state, cell }) {
  const [recording, text, call] = state.path.value;
  const { name, texts } = state.about.recordings[recording];
  const code = expression(texts[text], call, state.head.value, cell);
  const hasSeveral = state.about.recordings.length > 1;
  return html`<${Code} code=${code}>The same weight in Python${hasSeveral ? html`, from <bdi>${name}</bdi>` : ""}<//>`;
}
