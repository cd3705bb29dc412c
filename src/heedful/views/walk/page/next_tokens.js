// The likeliest tokens of an answer, as a table with bars; sliders set temperature and top-k.
import { html } from "../../explorer/page/html.js";
import { readable } from "../../explorer/page/tokens.js";

/** @import { State } from "./state.js" */
/** @import { Answer, Walk } from "./types.js" */

const COUNTS = [1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 5000];

/** @param {{state: State, walk: Walk, answer: Answer}} props */
export function NextTokens({ state, walk, answer }) {
  const [temperature, topK] = [state.temperature.value, state.topK.value];
  const likeliest = answer.sampled?.({ temperature, topK }) ?? answer.likeliest;
  const largest = Math.max(...likeliest.map(({ probability }) => probability));
  return html`${answer.sampled ? html`<${Sliders} state=${state} size=${walk.vocabulary} />` : null}
    <table class="answered"><caption>The ${likeliest.length} likeliest of ${walk.vocabulary.toLocaleString("en")} tokens</caption>
    <thead class="hidden"><tr><th scope="col">token</th><th scope="col">probability</th><th scope="col">as a bar</th></tr></thead>
    <tbody>${likeliest.map(
      ({
        token,
        probability,
      }) => html`<tr class=${probability ? "" : "excluded"}><th scope="row"><bdi>${readable(token)}</bdi></th><td>${probability.toFixed(4)}</td>
        <td><i class="bar" style=${`width:${(100 * probability) / largest}%`}></i></td></tr>`,
    )}</tbody></table>`;
}

/** @param {{state: State, size: number}} props `size` of the vocabulary */
function Sliders({ state, size }) {
  const counts = [...COUNTS.filter((count) => count < size), 0]; // 0: all tokens
  const { temperature, topK } = state;
  const place = counts.findIndex((count) => count === 0 || (topK.value && count >= topK.value));
  const logits = temperature.value === 1 ? "logits" : `logits / ${temperature.value}`;
  const kept = topK.value ? ` of the ${topK.value} likeliest tokens` : "";
  const formula = temperature.value
    ? `probabilities = softmax(${logits})${kept}`
    : "temperature 0: the likeliest token";
  return html`<div class="sampling" role="group" aria-label="Sampling">
    <${Slider} name="temperature" text=${temperature.value.toFixed(2)} value=${temperature.value} max="2" step="0.05" onValue=${(/** @type {number} */ value) => (temperature.value = value)} />
    <${Slider} name="top-k" text=${topK.value ? String(topK.value) : "all"} value=${place} max=${counts.length - 1} step="1" onValue=${(/** @type {number} */ value) => (topK.value = counts[value])} />
    <p class="formula">${formula}</p>
    <p class="quiet">With these probabilities, <code>heedful generate --temperature ${temperature.value} --top-k ${topK.value}</code> draws the next token.</p>
  </div>`;
}

/** @param {{name: string, text: string, value: number, max: string, step: string, onValue: (value: number) => void}} props */
function Slider({ name, text, value, max, step, onValue }) {
  const onInput = (/** @type {InputEvent} */ event) =>
    onValue(Number(/** @type {HTMLInputElement} */ (event.target).value));
  return html`<div><span>${name}</span><span>${text}</span><input type="range" aria-label=${name} min="0" max=${max} step=${step} value=${value} aria-valuetext=${text} onInput=${onInput} /></div>`;
}
