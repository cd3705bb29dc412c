// A weight as a calculation that can be followed with a pocket calculator: products, their sum,
// scale, cap, bias, and the softmax against the rivals of the row. Each line has one digit less
// than the lines that it is made of, so that they add up.

import { Explained, Term } from "../glossary.js";
import { html } from "../html.js";
import { digits, fixed, weighed } from "../number_format.js";
import { Token } from "../tokens.js";
import { number } from "../wire.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Answer, Cell } from "../types.js" */

const SHOWN = 8; // dimensions that contribute most

/** The dimensions whose products are the largest, as bars to both sides of zero. @param {{made: Answer}} given */
export function Products({ made }) {
  /** @type {{product: number, d: number, q: number, k: number}[]} */
  const all = [...made.products.data].map((product, d) => ({
    product,
    d,
    q: made.query.data[d],
    k: made.key.data[d],
  }));
  const best = [...all].sort((a, b) => Math.abs(b.product) - Math.abs(a.product)).slice(0, SHOWN);
  const most = Math.max(...best.map((one) => Math.abs(one.product)), 1e-30);
  const rest = number(made.product) - best.reduce((sum, one) => sum + one.product, 0);
  const left = all.length - best.length;
  const more = Math.max(0, -Math.floor(Math.log10(most)) - 1); // digits, where all is small
  return html`<table class="products"><caption>query × key, by ${Term("dimensions")}${left ? ", the largest first" : ""}</caption>
    <thead><tr><th scope="col">dim</th><th scope="col">${Term("query")}</th><th scope="col">${Term("key")}</th><th scope="col">product</th><th><span class="hidden">as a bar</span></th></tr></thead>
    <tbody>${best.map(
      (
        one,
      ) => html`<tr><td>${one.d}</td><td>${fixed(one.q, 5 + more)}</td><td>${fixed(one.k, 5 + more)}</td>
      <td>${fixed(one.product, 4 + more)}</td><td><${Bar} share=${one.product / most} /></td></tr>`,
    )}
      ${left ? html`<tr class="rest"><td colspan="3">${Explained(`the other ${left}`, "The products of all other dimensions, added up. Every number here is rounded by itself: a sum can be off by a unit or two of its last digit.")}</td><td>${fixed(rest, 4 + more)}</td><td><${Bar} share=${rest / most} /></td></tr>` : null}</tbody></table>`;
}

/** A bar to both sides of zero. @param {{share: number}} given from −1 to 1; more is cut */
function Bar({ share }) {
  const wide = Math.min(1, Math.abs(share)) * 24;
  return html`<svg class="bar" width="50" height="10" aria-hidden="true"><rect x=${share < 0 ? 25 - wide : 25} y="1" width=${wide} height="8" class=${share < 0 ? "minus" : "plus"} /><rect x="25" width="1" height="10" class="axis" /></svg>`;
}

/** From the products to the weight, line by line. @param {{made: Answer}} given */
export function Steps({ made }) {
  const [score, sum] = [number(made.score), number(made.log_sum_exp)];
  const bias = number(made.bias);
  return html`<dl class="steps">
    ${step(Explained("query · key", "The products above and those of all other dimensions, added up."), digits(number(made.product)))}
    ${step(html`× ${Term("scale")} ${figure(made.scale)}`, digits(number(made.scaled)))}
    ${made.softcap ? step(html`${figure(made.softcap)} · tanh(… / ${figure(made.softcap)}), the ${Term("softcap")}`, digits(number(made.capped))) : null}
    ${bias ? step(html`${bias < 0 ? "−" : "+"} ${Term("bias")} ${digits(Math.abs(bias))}`, digits(number(made.capped) + bias)) : null}
    ${made.hidden ? step(html`hidden by the ${Term("mask")}`, "−∞") : null}
    ${step(html`${Term("log-sum-exp")} of the row`, digits(sum))}
    ${step(html`${Explained("exp", "e to the power of: the score less the log-sum-exp. That is the softmax.")}(${digits(score)} − ${sum < 0 ? `(${digits(sum)})` : digits(sum)})`, weighed(number(made.weight)), "sum")}
  </dl>`;
}

/** @param {any} what @param {string} value @param {string} [kind] */
const step = (what, value, kind = "") =>
  html`<div class=${kind}><dt>${what}</dt><dd>${value}</dd></div>`;

/** A setting, with six digits that count at most. @param {number} value */
const figure = (value) => String(+value.toPrecision(6)).replace("-", "−");

/**
 * The best keys of the row, and this one where it is not among them.
 * @param {{made: Answer, state: State, tokens: Tokens, at: Cell}} given
 */
export function Rivals({ made, state, tokens, at }) {
  const where = state.where.value;
  const lowered = number(made.log_sum_exp);
  /** @type {{key: number, score: number, weight: number}[]} */
  const best = [...made.rivals.data].map((key, i) => ({
    key,
    score: made.scores.data[i],
    weight: made.weights.data[i],
  }));
  const listed = best.some((one) => one.key === at.key);
  const choose = (/** @type {number} */ key) => state.look({ query: at.query, key }, true);
  const row = (/** @type {{key: number, score: number, weight: number}} */ one) =>
    html`<tr class=${one.key === at.key ? "me" : ""}>
      <td><button type="button" class="rival" aria-current=${one.key === at.key ? "true" : undefined} onClick=${() => choose(one.key)}><${Token} tokens=${tokens} where=${where} axis="keys" at=${one.key} /></button></td>
      <td>${weighed(one.weight)}</td>
      <td><svg class="bar" width="44" height="10" aria-hidden="true"><rect y="1" width=${Math.max(0.5, one.weight * 44)} height="8" class="plus" /></svg></td><td>${digits(one.score)}</td></tr>`;
  return html`<table class="rivals"><caption>its rivals in this ${Term("row")}</caption>
    <thead><tr><th scope="col">key</th><th scope="col">${Term("weight")}</th><th><span class="hidden">as a bar</span></th><th scope="col">${Term("score")}</th></tr></thead>
    <tbody>${best.map(row)}
    ${listed || made.hidden ? null : row({ key: at.key, score: number(made.score), weight: number(made.weight) })}
    ${made.sink == null ? null : html`<tr class="rest"><td>${Term("learned sink")}</td><td>${weighed(Math.exp(number(made.sink) - lowered))}</td><td></td><td>${digits(number(made.sink))}</td></tr>`}
    </tbody></table>`;
}
