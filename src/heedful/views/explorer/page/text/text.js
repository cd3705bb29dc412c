// The text pane: tokens that are shaded and underlined by weights, or two columns with lines.
import { Choice } from "../controls.js";
import { Precision, Term } from "../glossary.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { formatWeight } from "../number_format.js";
import { MarkSelection } from "../segments/marking.js";
import { Token } from "../tokens.js";
import { lossChanges, removedParts } from "../without/removed.js";
import { LossLegend } from "../without/without.js";
import { ChosenToken, strongest } from "./chosen_token.js";
import { hasSingleImage, ImageView, Mode } from "./image.js";
import { Lines } from "./lines.js";
import { TextFlow } from "./text_flow.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Axis, Source } from "../types.js" */
/** @typedef {import("./chosen_token.js").HeadChoice} HeadChoice */

const LINES_LIMIT = 80; // maximum number of tokens in the view with lines
const LISTED = 8; // strongest tokens in the legend

let lastId = 0; // shared by all pages of a document, so that ids are unique

/** @param {{state: State, source: Source, tokens: Tokens, liveText: import("./live_text.js").LiveText, without: import("../types.js").LiveAnswer}} props */
export function TextPane({ state, source, tokens, liveText, without }) {
  const id = useState(() => `text-${++lastId}`)[0];
  const tokenRef = useRef(/** @type {ChosenToken | null} */ (null));
  tokenRef.current ??= new ChosenToken(source, state);
  const chosenToken = tokenRef.current;
  useEffect(() => () => chosenToken.end(), []);
  const [, N, M] = state.call.value.shape;
  const [view, setView] = useState("text");
  const isShort = Math.max(N, M) <= LINES_LIMIT;
  const hasLines = view === "lines" && isShort && !chosenToken.isRollout.value;
  const isReduced = removedParts(state).length > 0;
  useEffect(() => {
    if (isReduced || view === "loss") setView(isReduced ? "loss" : "text");
  }, [isReduced]);
  const hasLoss = isReduced && view === "loss";
  const changes = hasLoss ? lossChanges(state, without) : null;
  const hasImage = Boolean(state.call.value.pictured?.length);
  const current = hasLines ? "lines" : hasLoss ? "loss" : "text";
  const choice = (/** @type {string} */ option, /** @type {string} */ name, isPossible = true) =>
    html`<button type="button" aria-pressed=${current === option} disabled=${!isPossible} title=${isPossible ? undefined : `lines are drawn for texts of up to ${LINES_LIMIT} tokens`} onClick=${() => setView(option)}>${name}</button>`;
  return html`<section class=${hasLines ? "text lined" : "text"} aria-label="The text">
    <div class="knobs"><div class="choice" role="group" aria-label="How the text is shown">${choice("text", hasImage ? "picture" : "text")}${choice("lines", "lines", isShort)}${isReduced ? choice("loss", "change in loss") : null}</div>
      ${hasImage && !hasLines && hasSingleImage(state) ? html`<${Mode} state=${state} />` : null}
      ${hasLoss ? null : html`<${Heads} state=${state} chosenToken=${chosenToken} hasLines=${hasLines} />`}
      <${MarkSelection} state=${state} />
      ${hasLoss ? html`<${LossLegend} state=${state} tokens=${tokens} changes=${changes} />` : hasLines ? null : html`<${Legend} chosenToken=${chosenToken} tokens=${tokens} state=${state} />`}</div>
    ${hasLines ? html`<${Lines} state=${state} source=${source} tokens=${tokens} chosenToken=${chosenToken} id=${id} />` : hasImage ? html`<${ImageView} state=${state} source=${source} tokens=${tokens} chosenToken=${chosenToken} id=${id} best=${(/** @type {number} */ query) => best(chosenToken, query)} />` : html`<${Texts} state=${state} tokens=${tokens} chosenToken=${chosenToken} id=${id} added=${liveText.visible ?? null} changes=${changes} hasWeights=${!hasLoss} />`}
  </section>`;
}

/** The text, or separate texts of queries and keys. @param {{state: State, tokens: Tokens, chosenToken: ChosenToken, id: string, added: import("./text_flow.js").Added | null, changes: Float32Array | null, hasWeights: boolean}} props */
function Texts({ state, tokens, chosenToken, id, added, changes, hasWeights }) {
  const [, N, M] = state.call.value.shape;
  const cell = state.cell.value;
  const [rowWeights, columnWeights] = [chosenToken.row, chosenToken.column].map((answer) =>
    hasWeights ? (answer?.weights.data ?? null) : null,
  );
  const first = chosenToken.first.value;
  const props = { state, tokens, chosenToken, promptLength: null, offset: 0, added: null, changes };
  const roleOf = (/** @type {Axis} */ axis) => state.segments.roleOf(state.call.value, axis);
  const select = (/** @type {number} */ query, /** @type {number} */ key) =>
    state.selectCell({ query, key }, true);
  if (chosenToken.crosses.value)
    return html`<div class="pair"><h3>queries</h3><${TextFlow} ...${props} role=${roleOf("queries")} id=${`${id}-q`} label="queries" axis="queries" added=${added} size=${N} rowWeights=${null} columnWeights=${columnWeights} chosen=${cell?.query ?? null} other=${null}
        choose=${(/** @type {number} */ query) => select(query, best(chosenToken, query) ?? cell?.key ?? 0)} />
      <h3>keys</h3><${TextFlow} ...${props} role=${roleOf("keys")} id=${`${id}-k`} label="keys" axis="keys" size=${M} rowWeights=${rowWeights} columnWeights=${null} chosen=${cell?.key ?? null} other=${null}
        choose=${(/** @type {number} */ key) => select(cell?.query ?? 0, key)} /></div>`;
  const choose = (/** @type {number} */ token) => {
    const query = token - first;
    if (query < 0 || query >= N) select(cell?.query ?? 0, token);
    else select(query, best(chosenToken, query) ?? token);
  };
  return html`<${TextFlow} ...${props} role=${roleOf("keys")} id=${id} label="tokens of the text" axis="keys" size=${M} rowWeights=${rowWeights} columnWeights=${columnWeights} offset=${first}
    chosen=${cell ? cell.query + first : null} other=${cell?.key ?? null} promptLength=${promptLength(state)} added=${added} choose=${choose} />`;
}

/** The key with the largest weight of a query, if its row is loaded. @param {ChosenToken} chosenToken @param {number} query */
function best(chosenToken, query) {
  if (chosenToken.cell.value.query !== query || !chosenToken.row) return null;
  return strongest(chosenToken.row.weights.data, 1, 0)[0]?.index ?? null;
}

/** The number of prompt tokens of a stitched generation. @param {State} state @returns {number | null} */
function promptLength(state) {
  const [recording, text] = state.path.value;
  return state.about.recordings[recording].texts[text].prompt;
}

/** The choice of heads. @param {{state: State, chosenToken: ChosenToken, hasLines: boolean}} props */
function Heads({ state, chosenToken, hasLines }) {
  const { heads } = state.call.value;
  const choice = chosenToken.headChoice.value;
  const choose = (/** @type {HeadChoice} */ name) => {
    if (name === "several" && !chosenToken.chosenHeads.value.length)
      chosenToken.chosenHeads.value = [state.head.value];
    chosenToken.headChoice.value = name;
  };
  const toggle = (/** @type {number} */ head) => {
    const heads = chosenToken.chosenHeads.value;
    chosenToken.chosenHeads.value = heads.includes(head)
      ? heads.filter((other) => other !== head)
      : [...heads, head];
  };
  const options = [
    ["head", "this head"],
    ["mean", "layer’s mean"],
    ["several", "several"],
    ...(hasLines || chosenToken.crosses.value ? [] : [["rollout", "rollout"]]),
  ];
  return html`<${Choice} label="Heads" options=${options} selected=${choice} choose=${choose} />
    ${
      choice === "several"
        ? html`<div class="several" role="group" aria-label="Several heads">${heads.map((head) => html`<button type="button" aria-label=${`head ${head}`} aria-pressed=${chosenToken.chosenHeads.value.includes(head)} onClick=${() => toggle(head)}>${head}</button>`)}</div>`
        : null
    }`;
}

/** The legend of shades and underlines, with the tokens of the largest weights. @param {{chosenToken: ChosenToken, tokens: Tokens, state: State}} props */
function Legend({ chosenToken, tokens, state }) {
  const { query, key } = chosenToken.cell.value;
  const callId = state.callId.value;
  const first = chosenToken.first.value;
  const crosses = chosenToken.crosses.value;
  const name = (/** @type {Axis} */ axis, /** @type {number} */ index) =>
    html`<${Token} tokens=${tokens} callId=${callId} axis=${axis} index=${index} />`;
  const only = hasSingleImage(state) ? state.profile.value : null; // "row" or "column"; null: both
  if (query === null && key === null)
    return html`<p class="quiet legend">${state.call.value.pictured?.length ? "Point at a patch or a word: what it attends to, or what attends to it, is shaded." : "Point at a token: what it attends to is shaded, what attends to it is underlined."}</p>`;
  /** @param {import("../types.js").Answer | null} answer @param {(index: number) => void} go @param {(index: number) => any} nameOf */
  const list = (answer, go, nameOf) =>
    html`${answer ? html` <${Precision} answer=${answer} />` : null}${(
      answer ? strongest(answer.weights.data, LISTED) : []
    ).map(
      ({ index, weight }) =>
        html` <button type="button" class="jump" onClick=${() => go(index)}>${nameOf(index)} <b>${formatWeight(weight)}</b></button>`,
    )}`;
  const heads = chosenToken.heads.value;
  const mean =
    heads.length > 1 ? html`<i class="quiet">, mean of ${heads.length} heads,</i>` : null;
  const isRollout = chosenToken.isRollout.value;
  const select = (/** @type {number} */ q, /** @type {number} */ k) =>
    state.selectCell({ query: q, key: k }, true);
  if (chosenToken.failed) return html`<p class="wrong legend">${chosenToken.failed}</p>`;
  return html`<div class="legend short">
    ${
      query === null || only === "column"
        ? null
        : html`<p><i class="swatch shade"></i>${isRollout ? html`${Term("rollout")} of ` : null}${crosses ? name("queries", query) : name("keys", query + first)}${isRollout ? " through the layers up to this one; this proves no cause:" : html` attends to${mean}`}${list(
            chosenToken.row,
            (index) => select(query, index),
            (index) => name("keys", index),
          )}</p>`
    }
    ${
      key === null || only === "row" || isRollout
        ? null
        : html`<p><i class=${only ? "swatch shade" : "swatch under"}></i>${name("keys", key)} is attended to by${mean}${list(
            chosenToken.column,
            (index) => select(index, key),
            (index) => (crosses ? name("queries", index) : name("keys", index + first)),
          )}</p>`
    }
  </div>`;
}
