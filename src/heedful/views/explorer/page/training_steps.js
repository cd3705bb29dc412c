// A slider over the recorded training steps of a model, with the losses at the selected step.
import { KINDS } from "./heads/scores.js";
import { html, signal, useEffect, useState } from "./html.js";
import { count } from "./map/labels.js";
import { untilExact } from "./request.js";

/** @import { State } from "./state.js" */
/** @import { Answer, Source } from "./types.js" */

/** @param {{state: State, source: Source}} props */
export function TrainingSteps({ state, source }) {
  const { moments } = state.about;
  const scores = useScores(state, source);
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
    <div class="curves"><${Curves} state=${state} scores=${scores} index=${index} /><input type="range" min="0" max=${last} step="1" value=${index} aria-label="Step of training" aria-valuetext=${text} onInput=${(/** @type {any} */ e) => go(Number(e.target.value))} /></div>
    <button type="button" aria-label="A later step" aria-keyshortcuts="." title="A later step (.)" disabled=${index === last} onClick=${() => go(index + 1)}>›</button>
    <p role="status"><b>${text}</b>${loss("training", training)}${loss("validation", validation, validated === step ? null : validated)}</p></section>`;
}

/** The scores of the current call at each step, as far as they are known. @param {State} state @param {Source} source */
function useScores(state, source) {
  const [known] = useState(() => signal(/** @type {Record<string, Answer>} */ ({})));
  const [, text, call] = state.path.value;
  const ids = (state.about.moments ?? []).map(({ recording }) => `${recording}.${text}.${call}`);
  useEffect(() => {
    const end = new AbortController();
    const load = async () => {
      for (const id of ids.filter((id) => !known.peek()[id]))
        await untilExact(source, ["scores", { call: id }], end.signal, (answer) => {
          if ((answer.done ?? 1) === 1) known.value = { ...known.peek(), [id]: answer };
        });
    };
    load().catch(() => {}); // a call that failed has no curve
    return () => end.abort();
  }, [ids.join()]);
  return ids.map((id) => known.value[id]);
}

/** The scores of the selected head over the steps, each in the colour of its kind. @param {{state: State, scores: Answer[], index: number}} props */
function Curves({ state, scores, index }) {
  const h = state.call.value.heads.indexOf(state.head.value);
  const across = (/** @type {number} */ i) => (100 * i) / Math.max(1, scores.length - 1);
  const points = (/** @type {string} */ name) =>
    scores
      .map((answer, i) => [across(i), 30 * (1 - answer?.[name]?.data[h])])
      .filter(([, y]) => Number.isFinite(y));
  return html`<svg viewBox="0 0 100 30" preserveAspectRatio="none" role="img" aria-label="Scores of the head over training">
    ${Object.entries(KINDS).map(([name, colour]) => html`<polyline points=${points(name).join(" ")} stroke=${colour}><title>${name}</title></polyline>`)}
    <line x1=${across(index)} x2=${across(index)} y1="0" y2="30" /></svg>`;
}

/** A loss in nats per token, with its step if it was measured at an earlier step. @param {string} name @param {number | null} value @param {number | null} [earlierStep] */
const loss = (name, value, earlierStep = null) =>
  value === null
    ? null
    : html`<span title="nats per token"> · ${name} loss ${value.toFixed(3)}${earlierStep === null ? null : ` (step ${count(earlierStep)})`}</span>`;
