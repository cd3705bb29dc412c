// A slider over the recorded training steps of a model, with the losses at the selected step.
import { html } from "./html.js";
import { count } from "./map/labels.js";

/** @import { State } from "./state.js" */

/** @param {{state: State}} props */
export function TrainingSteps({ state }) {
  const { moments } = state.about;
  if (!moments?.length) return null;
  const index = moments.findIndex(({ recording }) => recording === state.path.value[0]);
  if (index < 0) return null; // the recording of another text is shown
  const { step, training, validation, validated } = moments[index];
  const last = moments.length - 1;
  const go = (/** @type {number} */ to) =>
    state.switchRecording(moments[Math.max(0, Math.min(last, to))].recording);
  const text = `step ${count(step)} of ${count(moments[last].step)}`;
  return html`<section class="moments" aria-label="Steps of training">
    <button type="button" aria-label="An earlier step" aria-keyshortcuts="," title="An earlier step (,)" disabled=${index === 0} onClick=${() => go(index - 1)}>‹</button>
    <input type="range" min="0" max=${last} step="1" value=${index} aria-label="Step of training" aria-valuetext=${text} onInput=${(/** @type {any} */ e) => go(Number(e.target.value))} />
    <button type="button" aria-label="A later step" aria-keyshortcuts="." title="A later step (.)" disabled=${index === last} onClick=${() => go(index + 1)}>›</button>
    <p role="status"><b>${text}</b>${loss("training", training)}${loss("validation", validation, validated === step ? null : validated)}</p></section>`;
}

/** A loss in nats per token, with its step if it was measured at an earlier step. @param {string} name @param {number | null} value @param {number | null} [earlierStep] */
const loss = (name, value, earlierStep = null) =>
  value === null
    ? null
    : html`<span title="nats per token"> · ${name} loss ${value.toFixed(3)}${earlierStep === null ? null : ` (step ${count(earlierStep)})`}</span>`;
