// The calculation of a weight, step by step: products, their sum, scale, soft cap, bias, and the
// softmax over the row. A result has one digit less than its inputs, so that rounded sums agree.
import { Explained, Term } from "../glossary.js";
import { html } from "../html.js";
import { digits, fixed, formatWeight } from "../number_format.js";
import { Token } from "../tokens.js";
import { number } from "../wire.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Answer, Cell } from "../types.js" */

const SHOWN = 8; // dimensions with the largest products

/** The dimensions with the largest products, with bars to both sides of zero. @param {{answer: Answer}} props */
export function Products({ answer }) {
  /** @type {{product: number, d: number, q: number, k: number}[]} */
  const all = [...answer.products.data].map((product, d) => ({
    product,
    d,
    q: answer.query.data[d],
    k: answer.key.data[d],
  }));
  const best = [...all].sort((a, b) => Math.abs(b.product) - Math.abs(a.product)).slice(0, SHOWN);
  const largest = Math.max(...best.map(({ product }) => Math.abs(product) || 0), 1e-30);
  const remainder = number(answer.product) - best.reduce((sum, { product }) => sum + product, 0);
  const others = all.length - best.length;
  const more = Number.isNaN(best[0]?.product)
    ? 0
    : Math.max(0, -Math.floor(Math.log10(largest)) - 1); // additional digits if all products are small
  const line = (/** @type {typeof all[number]} */ { product, d, q, k }) =>
    html`<tr><td>${d}</td><td>${fixed(q, 5 + more)}</td><td>${fixed(k, 5 + more)}</td>
      <td>${fixed(product, 4 + more)}</td><td><${Bar} share=${product / largest} /></td></tr>`;
  return html`<table class="products"><caption>query × key, by ${Term("dimensions")}${others ? ", the largest first" : ""}</caption>
    <thead><tr><th scope="col">dim</th><th scope="col">${Term("query")}</th><th scope="col">${Term("key")}</th><th scope="col">product</th><th><span class="hidden">as a bar</span></th></tr></thead>
    <tbody>${best.map(line)}
      ${others ? html`<tr class="rest"><td colspan="3">${Explained(`the other ${others}`, "The sum of the products of all other dimensions. The numbers are rounded independently, so the sum may differ in its last digit.")}</td><td>${fixed(remainder, 4 + more)}</td><td><${Bar} share=${remainder / largest} /></td></tr>` : null}</tbody></table>`;
}

/** A bar to the left or right of zero. @param {{share: number}} props `share` is clipped to −1 … 1 */
function Bar({ share }) {
  const width = Math.min(1, Math.abs(share) || 0) * 24;
  return html`<svg class="bar" width="50" height="10" aria-hidden="true"><rect x=${share < 0 ? 25 - width : 25} y="1" width=${width} height="8" class=${share < 0 ? "minus" : "plus"} /><rect x="25" width="1" height="10" class="axis" /></svg>`;
}

/** The steps from the products to the weight. @param {{answer: Answer}} props */
export function CalculationSteps({ answer }) {
  const [score, sum] = [number(answer.score), number(answer.log_sum_exp)];
  const bias = number(answer.bias);
  const text = (/** @type {number} */ value) => (Number.isNaN(value) ? "NaN" : digits(value));
  return html`<dl class="steps">
    ${step(Explained("query · key", "The sum of the products of all dimensions."), text(number(answer.product)))}
    ${step(html`× ${Term("scale")} ${figure(answer.scale)}`, text(number(answer.scaled)))}
    ${answer.softcap ? step(html`${figure(answer.softcap)} · tanh(… / ${figure(answer.softcap)}), the ${Term("softcap")}`, text(number(answer.capped))) : null}
    ${bias ? step(html`${bias < 0 ? "−" : "+"} ${Term("bias")} ${text(Math.abs(bias))}`, text(number(answer.capped) + bias)) : null}
    ${answer.hidden ? step(html`excluded by the ${Term("mask")}`, "−∞") : null}
    ${step(html`${Term("log-sum-exp")} of the row`, text(sum))}
    ${step(html`${Explained("exp", "exp(score − log-sum-exp): the softmax.")}(${text(score)} − ${sum < 0 ? `(${text(sum)})` : text(sum)})`, formatWeight(number(answer.weight)), "sum")}
  </dl>`;
}

/** The calculation as rows of a table: the products by dimension, then each intermediate result. @param {Answer} answer @returns {(string | number)[][]} */
export const calculationRows = (answer) => [
  ["dimension", "query", "key", "product"],
  ...[...answer.products.data].map((product, d) => [
    d,
    answer.query.data[d],
    answer.key.data[d],
    product,
  ]),
  ...["product", "scale", "scaled", "softcap", "capped", "bias", "score", "log_sum_exp", "weight"]
    .filter((name) => answer[name] !== null)
    .map((name) => [name, number(answer[name])]),
];

/** A step with its result. @param {any} label @param {string} value @param {string} [kind] a CSS class */
const step = (label, value, kind = "") =>
  html`<div class=${kind}><dt>${label}</dt><dd>${value}</dd></div>`;

/** A number with at most six significant digits. @param {number} value */
const figure = (value) => String(+value.toPrecision(6)).replace("-", "−");

/**
 * The keys with the largest weights of the row, and the selected key if it is not among them.
 * @param {{answer: Answer, state: State, tokens: Tokens, cell: Cell}} props
 */
export function LargestWeights({ answer, state, tokens, cell }) {
  const callId = state.callId.value;
  const logSumExp = number(answer.log_sum_exp);
  /** @type {{key: number, score: number, weight: number}[]} */
  const best = [...answer.rivals.data].map((key, i) => ({
    key,
    score: answer.scores.data[i],
    weight: answer.weights.data[i],
  }));
  const isListed = best.some(({ key }) => key === cell.key);
  const choose = (/** @type {number} */ key) => state.selectCell({ query: cell.query, key }, true);
  const row = (/** @type {typeof best[number]} */ { key, score, weight }) =>
    html`<tr class=${key === cell.key ? "me" : ""}>
      <td><button type="button" class="rival" aria-current=${key === cell.key ? "true" : undefined} onClick=${() => choose(key)}><${Token} tokens=${tokens} callId=${callId} axis="keys" index=${key} /></button></td>
      <td>${formatWeight(weight)}</td>
      <td><svg class="bar" width="44" height="10" aria-hidden="true"><rect y="1" width=${Math.max(0.5, weight * 44 || 0)} height="8" class="plus" /></svg></td><td>${digits(score)}</td></tr>`;
  return html`<table class="rivals"><caption>largest weights of this ${Term("row")}</caption>
    <thead><tr><th scope="col">key</th><th scope="col">${Term("weight")}</th><th><span class="hidden">as a bar</span></th><th scope="col">${Term("score")}</th></tr></thead>
    <tbody>${best.map(row)}
    ${isListed || answer.hidden ? null : row({ key: cell.key, score: number(answer.score), weight: number(answer.weight) })}
    ${answer.sink == null ? null : html`<tr class="rest"><td>${Term("learned sink")}</td><td>${formatWeight(Math.exp(number(answer.sink) - logSumExp))}</td><td></td><td>${digits(number(answer.sink))}</td></tr>`}
    </tbody></table>`;
}
