// In place of the text, where an axis has an image: one image whose patches look at each other, or
// an image and a text of which one looks at the other.
import { html } from "../html.js";
import { Picture } from "./picture.js";
import { strongest } from "./reading.js";
import { Run } from "./run.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Axis, Source } from "../types.js" */
/** @import { Reading } from "./reading.js" */

/** Which of the two is shown over one image. @param {{state: State}} given */
export function Mode({ state }) {
  const one = (/** @type {"row" | "column"} */ name, /** @type {string} */ says) =>
    html`<button type="button" aria-pressed=${state.profile.value === name} onClick=${() => (state.profile.value = name)}>${says}</button>`;
  return html`<div class="choice" role="group" aria-label="What is shown over the picture">${one("row", "what it looks at")}${one("column", "who looks at it")}</div>`;
}

/** Whether queries and keys are the patches of one image. @param {State} state */
export const isOne = (state) =>
  state.call.value.kind !== "cross" && state.call.value.pictured?.length === 2;

/**
 * @param {object} given
 * @param {State} given.state @param {Source} given.source @param {Tokens} given.tokens
 * @param {Reading} given.reading @param {string} given.id
 * @param {(query: number) => number | null} given.best what a query looks at most
 */
export function Pictured({ state, source, tokens, reading, id, best }) {
  const [, N, M] = state.call.value.shape;
  const at = state.cell.value;
  const [looks, looked] = [reading.row?.weights.data ?? null, reading.column?.weights.data ?? null];
  const look = (/** @type {number} */ query, /** @type {number} */ key) => {
    state.cell.value = { query, key };
    state.pinned.value = true;
  };
  const given = { state, source, tokens, reading, ends: null, offset: 0, added: null };
  const chooseQuery = (/** @type {number} */ query) => look(query, best(query) ?? at?.key ?? 0);
  const chooseKey = (/** @type {number} */ key) => look(at?.query ?? 0, key);
  if (isOne(state)) {
    const isRow = state.profile.value === "row";
    return html`<${Picture} ...${given} axis="keys" isOwn=${true} label="The image" weights=${isRow ? looks : looked}
      chosen=${at ? (isRow ? at.query : at.key) : null} other=${at ? (isRow ? at.key : at.query) : null}
      choose=${isRow ? chooseQuery : (/** @type {number} */ key) => look((looked && strongest(looked, 1, 0)[0]?.at) ?? at?.query ?? 0, key)} />`;
  }
  const part = (/** @type {Axis} */ axis) => {
    const isKeys = axis === "keys";
    const own = {
      axis,
      label: isKeys ? "keys" : "queries",
      chosen: at ? (isKeys ? at.key : at.query) : null,
      choose: isKeys ? chooseKey : chooseQuery,
    };
    const isPicture = state.call.value.pictured?.includes(axis);
    return html`<h3>${own.label}${isPicture ? ": the image" : ""}</h3>${
      isPicture
        ? html`<${Picture} ...${given} ...${own} weights=${isKeys ? looks : looked} other=${null} />`
        : html`<${Run} ...${given} ...${own} reads=${state.segments.reads(state.call.value, axis)} id=${`${id}-${axis}`} size=${isKeys ? M : N} looks=${isKeys ? looks : null} looked=${isKeys ? null : looked} other=${null} />`
    }`;
  };
  return html`<div class="pair">${part("queries")}${part("keys")}</div>`;
}
