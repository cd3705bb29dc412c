// One weight, taken apart: query · key by dimensions, scale, cap, bias, mask, softmax.
import { html } from "./html.js";
import { Term } from "./terms.js";
import { number } from "./wire.js";

const SHOWN = 8; // dimensions that contribute most

export const digits = (value, count = 4) => {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "–" : value < 0 ? "−∞" : "∞";
  const size = Math.abs(value);
  const text =
    size && (size < 10 ** -count || size >= 1e6)
      ? value.toExponential(count - 1)
      : value.toFixed(count);
  return text.replace("-", "−");
};

export function Weight({ state, tokens, cell }) {
  const about = cell.value;
  const at = state.cell.value;
  if (!at)
    return html`<section class="weight"><h2>This weight</h2>
    <p class="quiet">Point at a cell of the map. A click pins it.</p></section>`;
  const where = state.where.value;
  const names = [tokens.label(where, "queries", at.query), tokens.label(where, "keys", at.key)];
  return html`<section class="weight" aria-live="polite" aria-label="This weight">
    <h2>This weight ${state.pinned.value ? html`<span class="pin">pinned</span>` : null}</h2>
    <p class="pair"><bdi>${names[0]}</bdi><small>${at.query}</small> → <bdi>${names[1]}</bdi><small>${at.key}</small></p>
    ${about?.failed ? html`<p class="wrong">${about.failed}</p>` : about && same(about, at, state) ? (about.filed ? html`<${Filed} about=${about} state=${state} at=${at} />` : html`<${Made} about=${about} state=${state} tokens=${tokens} at=${at} />`) : html`<p class="quiet">…</p>`}
  </section>`;
}

const same = (about, at, state) =>
  about.asked.query === at.query &&
  about.asked.key === at.key &&
  about.asked.head === state.head.value &&
  about.asked.call === state.where.value;

function Made({ about, state, tokens, at }) {
  const hidden = about.hidden;
  const weight = number(about.weight);
  return html`
    <p class="number" data-weight=${about.weight}>${hidden ? "hidden" : digits(weight)}
      <span>${hidden ? html`the ${Term("mask")} hides it` : place(about)}</span></p>
    <${Products} about=${about} />
    <dl class="steps">
      ${step(Term("query · key", "score"), digits(number(about.product)))}
      ${step(html`× ${Term("scale")} ${digits(about.scale)}`, digits(number(about.scaled)))}
      ${about.softcap ? step(html`${Term("softcap")} ${digits(about.softcap, 1)}`, digits(number(about.capped))) : null}
      ${number(about.bias) ? step(html`+ ${Term("bias")} ${digits(number(about.bias))}`, digits(number(about.capped) + number(about.bias))) : null}
      ${hidden ? step(Term("mask"), "−∞") : null}
      ${step(html`${Term("log-sum-exp")} of the row`, digits(number(about.log_sum_exp)))}
      ${step(html`exp(${digits(number(about.score))} − ${digits(number(about.log_sum_exp))})`, digits(weight), "sum")}
    </dl>
    <${Rivals} about=${about} state=${state} tokens=${tokens} at=${at} />
    ${about.value == null ? null : html`<p>${Term("value")} of length ${digits(about.value)}: it moved ${digits(about.value * weight)}.</p>`}
    ${about.group > 1 ? html`<p class="quiet">${about.group} heads share this ${Term("key")} (${Term("grouped heads")}).</p>` : null}
    <p class="proof ${about.proof}">${Term(about.proof)}${about.why ? `: ${about.why}` : ""}</p>
    <${Line} state=${state} at=${at} />`;
}

/** What a file knows that has the weights, and not what made them. */
function Filed({ about, state, at }) {
  return html`<p class="number" data-weight=${about.weight}>${digits(number(about.weight))}<span>${about.word}</span></p>
    <p class="quiet">This file has weights alone. The recording has the query and key that made them.</p>
    <p class="proof ${about.proof}">${Term(about.proof)}${about.why ? `: ${about.why}` : ""}</p>
    <${Line} state=${state} at=${at} />`;
}

const step = (what, value, kind = "") =>
  html`<div class=${kind}><dt>${what}</dt><dd>${value}</dd></div>`;

const place = (about) => `${ordinal(about.rank)} of ${about.seen.toLocaleString("en")} in its row`;

function ordinal(n) {
  const last = n % 100;
  const end = last > 10 && last < 14 ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[n % 10] ?? "th");
  return n.toLocaleString("en") + end;
}

/** The dimensions whose products are the largest, as bars to both sides of zero. */
function Products({ about }) {
  const all = [...about.products.data].map((product, d) => ({
    product,
    d,
    q: about.query.data[d],
    k: about.key.data[d],
  }));
  const best = all.sort((a, b) => Math.abs(b.product) - Math.abs(a.product)).slice(0, SHOWN);
  const most = Math.max(...best.map((one) => Math.abs(one.product)), 1e-30);
  const rest = all.slice(SHOWN).reduce((sum, one) => sum + one.product, 0);
  return html`<table class="products"><caption>query × key, the largest of ${all.length} ${Term("dimensions")}</caption>
    <thead><tr><th>dim</th><th>query</th><th>key</th><th>product</th><th></th></tr></thead>
    <tbody>${best.map(
      (one) => html`<tr><td>${one.d}</td><td>${digits(one.q, 2)}</td><td>${digits(one.k, 2)}</td>
      <td>${digits(one.product, 3)}</td><td><${Bar} share=${one.product / most} /></td></tr>`,
    )}
      ${all.length > SHOWN ? html`<tr class="quiet"><td colspan="3">the other ${all.length - SHOWN}</td><td>${digits(rest, 3)}</td><td></td></tr>` : null}</tbody></table>`;
}

function Bar({ share }) {
  const wide = Math.abs(share) * 24;
  return html`<svg class="bar" width="50" height="10" aria-hidden="true"><rect x=${share < 0 ? 25 - wide : 25} width=${wide} height="10" class=${share < 0 ? "minus" : "plus"} /><rect x="25" width="1" height="10" class="axis" /></svg>`;
}

function Rivals({ about, state, tokens, at }) {
  const where = state.where.value;
  const [keys, weights] = [about.rivals.data, about.weights.data];
  return html`<table class="rivals"><caption>its rivals in this row</caption><tbody>
    ${[...keys].map(
      (
        key,
        i,
      ) => html`<tr class=${key === at.key ? "me" : ""} onClick=${() => (state.cell.value = { query: at.query, key })}>
      <td><bdi>${tokens.label(where, "keys", key)}</bdi><small>${key}</small></td><td>${digits(weights[i])}</td>
      <td><svg class="bar" width="50" height="10" aria-hidden="true"><rect width=${weights[i] * 50} height="10" class="plus" /></svg></td></tr>`,
    )}
    ${about.sink == null ? null : html`<tr><td>${Term("sink", "learned sink")}</td><td>${digits(Math.exp(number(about.sink) - number(about.log_sum_exp)))}</td><td></td></tr>`}
    </tbody></table>`;
}

function Line({ state, at }) {
  const [recording, text, call] = state.at.value;
  const about = state.about.recordings[recording];
  const calls =
    about.texts.length > 1 ? `recording.sequences[${text}][${call}]` : `recording[${call}]`;
  const line = `${calls}.weights(head=${state.head.value}, queries=[${at.query}], keys=[${at.key}])`;
  return html`<p class="python"><code>${line}</code><button onClick=${() => navigator.clipboard?.writeText(line)}>copy</button></p>`;
}
