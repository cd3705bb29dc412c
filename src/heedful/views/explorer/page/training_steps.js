// A model in training: a slider over the steps at which it was recorded, with the losses then.
import { html } from "./html.js";

/** @import { State } from "./state.js" */

/** @param {{state: State}} given */
export function Moments({ state }) {
  const { moments } = state.about;
  if (!moments?.length) return null;
  const at = moments.findIndex((one) => one.recording === state.at.value[0]);
  if (at < 0) return null; // another text was typed
  const { step, training, validation, validated } = moments[at];
  const last = moments.length - 1;
  const go = (/** @type {number} */ to) =>
    state.turnTo(moments[Math.max(0, Math.min(last, to))].recording);
  const said = `step ${whole(step)} of ${whole(moments[last].step)}`;
  return html`<section class="moments" aria-label="Steps of training">
    <button type="button" aria-label="An earlier step" aria-keyshortcuts="," title="An earlier step (,)" disabled=${at === 0} onClick=${() => go(at - 1)}>‹</button>
    <input type="range" min="0" max=${last} step="1" value=${at} aria-label="Step of training" aria-valuetext=${said} onInput=${(/** @type {any} */ e) => go(Number(e.target.value))} />
    <button type="button" aria-label="A later step" aria-keyshortcuts="." title="A later step (.)" disabled=${at === last} onClick=${() => go(at + 1)}>›</button>
    <p role="status"><b>${said}</b>${loss("training", training)}${loss("validation", validation, validated === step ? null : validated)}</p></section>`;
}

const whole = (/** @type {number} */ number) => number.toLocaleString("en");

/** A loss in nats per token, and at which step it was taken if that is an earlier one. @param {string} name @param {number | null} value @param {number | null} [before] */
const loss = (name, value, before = null) =>
  value === null
    ? null
    : html`<span title="nats per token"> · ${name} loss ${value.toFixed(3)}${before === null ? null : ` (step ${whole(before)})`}</span>`;
