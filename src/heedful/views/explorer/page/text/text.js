// The text: shaded by where a token looks, underlined by who looks at it; or two columns with lines.
import { Choice } from "../controls.js";
import { Word } from "../glossary.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { weighed } from "../number_format.js";
import { MarkIt } from "../segments/marking.js";
import { Token } from "../tokens.js";
import { Reading, strongest } from "./chosen_token.js";
import { isOne, Mode, Pictured } from "./image.js";
import { Lines } from "./lines.js";
import { Run } from "./text_flow.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Axis, Source } from "../types.js" */
/** @typedef {import("./chosen_token.js").Which} Way */

const MOST_LINES = 80; // tokens up to which lines are drawn between two columns
const JUMPS = 8; // strongest tokens that are listed

let made = 0; // so that two pages in one document do not share an id

/** @param {{state: State, source: Source, tokens: Tokens, growing: import("./live_text.js").Growing}} given */
export function TextPane({ state, source, tokens, growing }) {
  const id = useState(() => `text-${++made}`)[0];
  const kept = useRef(/** @type {Reading | null} */ (null));
  kept.current ??= new Reading(source, state);
  const reading = kept.current;
  useEffect(() => () => reading.end(), []);
  const [, N, M] = state.call.value.shape;
  const [drawn, setDrawn] = useState(false);
  const few = Math.max(N, M) <= MOST_LINES;
  const lined = drawn && few;
  const pictured = Boolean(state.call.value.pictured?.length);
  const choice = (/** @type {boolean} */ is, /** @type {string} */ name) =>
    html`<button type="button" aria-pressed=${lined === is} disabled=${is && !few} title=${is && !few ? `lines are drawn up to ${MOST_LINES} tokens` : undefined} onClick=${() => setDrawn(is)}>${name}</button>`;
  return html`<section class=${lined ? "text lined" : "text"} aria-label="The text">
    <div class="knobs"><div class="choice" role="group" aria-label="How the text is shown">${choice(false, pictured ? "picture" : "text")}${choice(true, "lines")}</div>
      ${pictured && !lined && isOne(state) ? html`<${Mode} state=${state} />` : null}
      <${Which} state=${state} reading=${reading} />
      <${MarkIt} state=${state} />
      ${lined ? null : html`<${Legend} reading=${reading} tokens=${tokens} state=${state} />`}</div>
    ${lined ? html`<${Lines} state=${state} source=${source} tokens=${tokens} reading=${reading} id=${id} />` : pictured ? html`<${Pictured} state=${state} source=${source} tokens=${tokens} reading=${reading} id=${id} best=${(/** @type {number} */ query) => best(reading, query)} />` : html`<${Runs} state=${state} tokens=${tokens} reading=${reading} id=${id} added=${growing.shown ?? null} />`}
  </section>`;
}

/** One text, or that of the queries and that of the keys. @param {{state: State, tokens: Tokens, reading: Reading, id: string, added: import("./text_flow.js").Added | null}} given */
function Runs({ state, tokens, reading, id, added }) {
  const [, N, M] = state.call.value.shape;
  const at = state.cell.value;
  const [looks, looked] = [reading.row?.weights.data ?? null, reading.column?.weights.data ?? null];
  const first = reading.first.value;
  const given = { state, tokens, reading, ends: null, offset: 0, added: null };
  const readsOf = (/** @type {Axis} */ axis) => state.segments.reads(state.call.value, axis);
  const look = (/** @type {number} */ query, /** @type {number} */ key) =>
    state.look({ query, key }, true);
  if (reading.crosses.value)
    return html`<div class="pair"><h3>queries</h3><${Run} ...${given} reads=${readsOf("queries")} id=${`${id}-q`} label="queries" axis="queries" added=${added} size=${N} looks=${null} looked=${looked} chosen=${at?.query ?? null} other=${null}
        choose=${(/** @type {number} */ query) => look(query, best(reading, query) ?? at?.key ?? 0)} />
      <h3>keys</h3><${Run} ...${given} reads=${readsOf("keys")} id=${`${id}-k`} label="keys" axis="keys" size=${M} looks=${looks} looked=${null} chosen=${at?.key ?? null} other=${null}
        choose=${(/** @type {number} */ key) => look(at?.query ?? 0, key)} /></div>`;
  const choose = (/** @type {number} */ token) => {
    const query = token - first;
    if (query < 0 || query >= N) look(at?.query ?? 0, token);
    else look(query, best(reading, query) ?? token);
  };
  return html`<${Run} ...${given} reads=${readsOf("keys")} id=${id} label="tokens of the text" axis="keys" size=${M} looks=${looks} looked=${looked} offset=${first}
    chosen=${at ? at.query + first : null} other=${at?.key ?? null} ends=${ends(state)} added=${added} choose=${choose} />`;
}

/** What a query looks at most, where its row is known. @param {Reading} reading @param {number} query */
function best(reading, query) {
  if (reading.focus.value.query !== query || !reading.row) return null;
  return strongest(reading.row.weights.data, 1, 0)[0]?.at ?? null;
}

/** Where a generation begins, that is shown as one. @param {State} state @returns {number | null} */
function ends(state) {
  const [recording, text] = state.at.value;
  return state.about.recordings[recording].texts[text].prompt;
}

/** For which heads. @param {{state: State, reading: Reading}} given */
function Which({ state, reading }) {
  const { heads } = state.call.value;
  const which = reading.which.value;
  const choose = (/** @type {Way} */ name) => {
    if (name === "several" && !reading.several.value.length)
      reading.several.value = [state.head.value];
    reading.which.value = name;
  };
  const toggle = (/** @type {number} */ head) => {
    const now = reading.several.value;
    reading.several.value = now.includes(head)
      ? now.filter((other) => other !== head)
      : [...now, head];
  };
  return html`<${Choice} label="Of which heads" ways=${[["head", "this head"], ["mean", "layer’s mean"], ["several", "several"]]} now=${which} choose=${choose} />
    ${
      which === "several"
        ? html`<div class="several" role="group" aria-label="Heads">${heads.map((head) => html`<button type="button" aria-label=${`head ${head}`} aria-pressed=${reading.several.value.includes(head)} onClick=${() => toggle(head)}>${head}</button>`)}</div>`
        : null
    }`;
}

/** What shades and lines mean, with the tokens that are looked at most. @param {{reading: Reading, tokens: Tokens, state: State}} given */
function Legend({ reading, tokens, state }) {
  const { query, key } = reading.focus.value;
  const where = state.where.value;
  const first = reading.first.value;
  const crosses = reading.crosses.value;
  const name = (/** @type {Axis} */ axis, /** @type {number} */ at) =>
    html`<${Token} tokens=${tokens} where=${where} axis=${axis} at=${at} />`;
  const only = isOne(state) ? state.profile.value : null; // of one image one of the two is shown
  if (query === null && key === null)
    return html`<p class="quiet legend">${state.call.value.pictured?.length ? "Point at a patch or a word: shaded is where it looks, or who looks at it." : "Point at a token: shaded is where it looks, underlined who looks at it."}</p>`;
  /** @param {import("../types.js").Answer | null} answer @param {(at: number) => void} go @param {(at: number) => any} called */
  const list = (answer, go, called) =>
    html`${answer ? html` <${Word} answer=${answer} />` : null}${(
      answer ? strongest(answer.weights.data, JUMPS) : []
    ).map(
      ({ at, weight }) =>
        html` <button type="button" class="jump" onClick=${() => go(at)}>${called(at)} <b>${weighed(weight)}</b></button>`,
    )}`;
  const heads = reading.heads.value;
  const mean =
    heads.length > 1 ? html`<i class="quiet">, mean of ${heads.length} heads,</i>` : null;
  const look = (/** @type {number} */ q, /** @type {number} */ k) =>
    state.look({ query: q, key: k }, true);
  if (reading.failed) return html`<p class="wrong legend">${reading.failed}</p>`;
  return html`<div class="legend short">
    ${
      query === null || only === "column"
        ? null
        : html`<p><i class="swatch shade"></i>${crosses ? name("queries", query) : name("keys", query + first)} looks at${mean}${list(
            reading.row,
            (at) => look(query, at),
            (at) => name("keys", at),
          )}</p>`
    }
    ${
      key === null || only === "row"
        ? null
        : html`<p><i class=${only ? "swatch shade" : "swatch under"}></i>${name("keys", key)} is looked at by${mean}${list(
            reading.column,
            (at) => look(at, key),
            (at) => (crosses ? name("queries", at) : name("keys", at + first)),
          )}</p>`
    }
  </div>`;
}
