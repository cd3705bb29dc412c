// Who reads what: segments of the text, how much each reads of each, and the heads sorted by it.

import { Choice } from "../controls.js";
import { Explained, Term } from "../glossary.js";
import { callTitle, title } from "../heads/scores.js";
import { html, useState } from "../html.js";
import { count, MOST, REST } from "./segments.js";
import { of, overHeads } from "./shares.js";

/** @import { State } from "../state.js" */
/** @import { Source } from "../types.js" */
/** @import { Reads, Segment, Segments } from "./segments.js" */
/** @import { Shares, Told } from "./shares.js" */

/** @typedef {{state: State, source: Source, shares: Shares}} Given */
/** @typedef {{from: string, to: string}} Pair */
/** @typedef {"share" | "chance" | "layer"} Order */

const SHOWN = 40; // heads of the list, at first and more
const value = (/** @type {Event} */ event) =>
  /** @type {HTMLInputElement | HTMLSelectElement} */ (event.target).value;
const colour = (/** @type {Segment} */ { colour: n }) => `--segment:var(--segment-${n})`;

/** @param {Given} given */
export function Who(given) {
  const { state, shares } = given;
  const { segments } = state;
  const [mean, setMean] = useState(false);
  const [wanted, setWanted] = useState(/** @type {Pair | null} */ (null));
  const told = shares.found.value.get(state.at.value[2]);
  const names = segments.of(state.call.value);
  const pair = fitting(wanted, segments, state);
  return html`<section class="who" aria-label="Who reads what">
    <div class="bar"><h2>Who reads what</h2><button type="button" class="plain" aria-label="Close, and show the weight" onClick=${() => (state.pane.value = "weight")}>×</button></div>
    ${state.segments.text.crosses ? html`<${Marks} ...${given} reads="source" /><${Marks} ...${given} reads="target" />` : html`<${Marks} ...${given} reads="source" />`}
    <${Choosing} state=${state} />
    ${segments.any ? html`<${Doing} shares=${shares} />` : null}
    ${names && told ? html`<${Table} state=${state} told=${told} names=${names} mean=${mean} setMean=${setMean} pair=${pair} choose=${setWanted} />` : null}
    ${!names && segments.any ? html`<p class="wrong">This call is left out: ${state.call.value.apart}.</p>` : null}
    ${pair && [...shares.found.value.values()].some((one) => !one.failed) ? html`<${Sorted} state=${state} shares=${shares} pair=${pair} choose=${setWanted} />` : null}
  </section>`;
}

/** The pair that heads are sorted by: as chosen, else the last segment and the largest other. @param {Pair | null} wanted @param {Segments} segments @param {State} state @returns {Pair | null} */
function fitting(wanted, segments, state) {
  const all = state.calls.value.flatMap((call) => segments.of(call) ?? []);
  const has = (/** @type {Pair} */ { from, to }) =>
    all.some((one) => one.from.includes(from) && one.to.includes(to));
  if (wanted && has(wanted)) return wanted;
  const own = segments.of(state.call.value) ?? all[0];
  if (!own) return null;
  const from = own.from.at(-2) ?? own.from[0];
  const { source } = segments.now.value;
  const largest = source
    .filter((one) => one.name !== from)
    .toSorted((one, other) => count(other.runs) - count(one.runs))[0];
  const to = largest && own.to.includes(largest.name) ? largest.name : own.to[0];
  return { from, to };
}

/** The segments of one text. @param {Given & {reads: Reads}} given */
function Marks({ state, reads }) {
  const { segments } = state;
  const all = segments.now.value[reads];
  const rest = segments.rest(reads);
  const crosses = segments.text.crosses;
  return html`${crosses ? html`<h3>${reads === "source" ? "what it reads" : "what it writes"}</h3>` : null}
  ${
    all.length
      ? html`<ul class="marks">${all.map(
          (
            one,
          ) => html`<li key=${one.id} style=${colour(one)}><i class="swatch-segment" aria-hidden="true"></i>
      <input class="name" aria-label="Name of the segment" value=${one.name} onChange=${(/** @type {Event} */ e) => segments.rename(reads, one.id, value(e))} />
      <span class="quiet" title=${one.runs.map(([a, b]) => (b - a > 1 ? `${a} to ${b - 1}` : a)).join(", ")}>${tokens(count(one.runs))}${one.runs.length > 1 ? ` in ${one.runs.length}` : ""}</span>
      <button type="button" class="plain" aria-label=${`Delete ${one.name}`} onClick=${() => segments.remove(reads, one.id)}>×</button></li>`,
        )}
    ${rest.count ? html`<li class="rest"><i class="swatch-segment" aria-hidden="true"></i><span>${Explained(REST, "What is in no segment.")}</span><span class="quiet">${tokens(rest.count)}${rest.first ? ", the first among them" : ""}</span></li>` : null}</ul>`
      : crosses && segments.any
        ? html`<p class="quiet">Nothing is marked: all of it is one segment, “${reads}”.</p>`
        : null
  }`;
}

const tokens = (/** @type {number} */ n) => `${n.toLocaleString("en")} token${n === 1 ? "" : "s"}`;

/** What is chosen in the text and becomes a segment. @param {{state: State}} given */
function Choosing({ state }) {
  const { segments } = state;
  const call = state.call.value;
  const sides = /** @type {Reads[]} */ ([...new Set(call.reads ?? [])]);
  const now = segments.selection.value;
  const [side, setSide] = useState(/** @type {Reads} */ ("source"));
  if (!sides.length) return null;
  const reads = now?.reads ?? (sides.includes(side) ? side : sides[0]);
  const size = segments.size(reads);
  const all = segments.now.value[reads];
  const bound = (/** @type {"from" | "to"} */ end) => (/** @type {Event} */ event) => {
    const at = Math.max(0, Math.min(size - 1, Math.floor(Number(value(event))) || 0));
    const other = now ? now[end === "from" ? "to" : "from"] : at;
    segments.selection.value = { reads, from: Math.min(at, other), to: Math.max(at, other) };
  };
  const whole = (/** @type {Event} */ event) =>
    /** @type {HTMLInputElement} */ (event.target).select(); // so that what is typed replaces it
  const full = all.length >= MOST;
  return html`<div class="choosing" role="group" aria-label="Mark">
    ${sides.length > 1 ? html`<${Choice} label="Of which text" ways=${sides.map((one) => [one, one])} now=${reads} choose=${setSide} />` : null}
    <p class="tokens"><label>tokens <input type="number" min="0" max=${size - 1} aria-label="First token" value=${now?.from ?? ""} onClick=${whole} onChange=${bound("from")} /></label>
      <label>to <input type="number" min="0" max=${size - 1} aria-label="Last token" value=${now?.to ?? ""} onClick=${whole} onChange=${bound("to")} /></label>
      <button type="button" class="main" disabled=${!now || full} aria-keyshortcuts="Enter" onClick=${() => now && segments.add(reads, [[now.from, now.to + 1]])}>Mark</button>
      ${
        now && all.length
          ? /** @param {Event} e */
            html`<select aria-label="Add the tokens to" value="" onChange=${(e) => value(e) && segments.extend(reads, Number(value(e)), [now.from, now.to + 1])}><option value="">add to …</option>${all.map((one) => html`<option value=${one.id}>${one.name}</option>`)}</select>`
          : null
      }</p>
    ${segments.any ? null : html`<p class="quiet">Drag over the text, or use shift with the arrow keys in it, and mark what you chose: a document, a question. By touch, tap its first token and its last.</p>`}
  </div>`;
}

/** How far the numbers are. @param {{shares: Shares}} given */
function Doing({ shares }) {
  const done = shares.done.value;
  if (done >= 1) return null;
  return html`<p class="doing late"><span role="status">computing, ${Math.floor(done * 100)} %</span>
    <progress max="1" value=${done} aria-label="How much is computed"></progress></p>`;
}

/** How much each segment reads of each, of a head or of the mean. @param {any} given */
function Table({ state, told, names, mean, setMean, pair, choose }) {
  const call = state.call.value;
  const toggle = html`<${Choice} label="Of which heads" ways=${[[false, "this head"], [true, "layer’s mean"]]} now=${mean} choose=${setMean} />`;
  if (told.failed) return html`${toggle}<p class="wrong">${told.failed}</p>`;
  const one = mean ? overHeads(told) : told;
  const h = mean ? 0 : call.heads.indexOf(state.head.value);
  const [, A, B] = one.share.shape;
  const from = names.from.slice(0, A);
  const to = names.to.slice(0, B);
  const queries = (/** @type {number} */ a) => one.queries.data[h * A + a];
  return html`${toggle}
  <div class="wide"><table class="shares"><caption>${mean ? `mean of ${call.heads.length} heads, ${callTitle(call)}` : title({ about: call, head: state.head.value })}: a line reads, a column is read ${told.word === "exact" ? null : html`<span>(${told.word})</span>`}</caption>
    <thead><tr><th scope="col"></th>${to.map((name) => html`<th scope="col" title=${name}><bdi>${name}</bdi></th>`)}${told.sinks ? html`<th scope="col">${Term("learned sink")}</th>` : null}</tr></thead>
    <tbody>${from.map(
      /** @param {string} name @param {number} a */
      (
        name,
        a,
      ) => html`<tr><th scope="row" title=${`${name}: the mean over ${queries(a).toLocaleString("en")} queries that may see anything`}><bdi>${name}</bdi><small>${queries(a).toLocaleString("en")} ${queries(a) === 1 ? "query" : "queries"}</small></th>
      ${to.map((other, b) => {
        const [share, chance] = [of(one, "share", h, a, b), of(one, "chance", h, a, b)];
        const is = pair?.from === name && pair?.to === other;
        return html`<td style=${`--share:${share || 0}`}><button type="button" aria-pressed=${is} title=${hint(name, other, share, chance)} onClick=${() => choose({ from: name, to: other })}>${shown(share, chance)}<${Bar} share=${share} chance=${chance} /></button></td>`;
      })}${told.sinks ? html`<td>${shown(one.learned.data[h * A + a], 1)}</td>` : null}</tr>`,
    )}</tbody></table></div>
    <p class="quiet note">${sums(state, told)}</p>`;
}

/** What a line sums to. @param {State} state @param {Told} told */
const sums = (state, told) =>
  (state.segments.overlaps(state.call.value.reads?.[1] ?? "source")
    ? "Segments overlap: each share is a number of its own, and a line may sum to more than 1."
    : `A line sums to 1${told.sinks ? " with what the learned sink takes" : ""}.`) +
  " The tick is chance: the same rows spread evenly over what the mask allows.";

/** A share as the library's table writes it; a dash where there is none, or the mask lets no query see any. @param {number} share @param {number} chance */
const shown = (share, chance) => (Number.isNaN(share) || chance === 0 ? "–" : share.toFixed(2));

/** @param {string} from @param {string} to @param {number} share @param {number} chance */
const hint = (from, to, share, chance) =>
  `${from} reads ${to}: ${Number.isNaN(share) ? "no query may see anything" : chance === 0 ? "the mask forbids it" : `${share.toFixed(4)}, chance ${chance.toFixed(4)}`}`;

/** A share with a tick where chance is. @param {{share: number, chance: number}} given */
function Bar({ share, chance }) {
  if (!(share >= 0)) return null;
  return html`<svg class="share" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect width="100" height="6" class="whole" /><rect width=${Math.min(1, share) * 100} height="6" class="plus" />${chance > 0 ? html`<rect x=${Math.min(98, chance * 100 - 1)} width="2" height="6" class="chance" />` : null}</svg>`;
}

/** All heads by one pair. @param {{state: State, shares: Shares, pair: Pair, choose: (pair: Pair) => void}} given */
function Sorted({ state, shares, pair, choose }) {
  const [order, setOrder] = useState(/** @type {Order} */ ("share"));
  const [most, setMost] = useState(SHOWN);
  const rows = sorted(state, shares, pair, order);
  const names = (/** @type {"from" | "to"} */ end) => [
    ...new Set(state.calls.value.flatMap((call) => state.segments.of(call)?.[end] ?? [])),
  ];
  const select = (/** @type {"from" | "to"} */ end) =>
    html`<select aria-label=${end === "from" ? "Reads" : "Is read"} value=${pair[end]} onChange=${(/** @type {Event} */ e) => choose({ ...pair, [end]: value(e) })}>${names(end).map((name) => html`<option>${name}</option>`)}</select>`;
  return html`<div class="sorted"><h3>Heads by how much</h3><p class="tokens">${select("from")} reads ${select("to")}</p>
    <${Choice} label="Order" ways=${[["share", "most"], ["chance", "above chance"], ["layer", "layer by layer"]]} now=${order} choose=${setOrder} />
    <ol>${rows
      .slice(0, most)
      .map(
        ({ call, head, share, chance }) =>
          html`<li key=${`${call} ${head}`}><button type="button" aria-current=${call === state.at.value[2] && head === state.head.value ? "true" : undefined} onClick=${() => state.show(call, head)}><span>${callTitle(state.calls.value[call])}</span><i>head ${head}</i><${Bar} share=${share} chance=${chance} /><b>${shown(share, chance)}</b></button></li>`,
      )}</ol>
    ${rows.length > most ? html`<button type="button" onClick=${() => setMost(most + 5 * SHOWN)}>${(rows.length - most).toLocaleString("en")} more</button>` : null}</div>`;
}

/** @param {State} state @param {Shares} shares @param {Pair} pair @param {Order} order */
function sorted(state, shares, pair, order) {
  const rows = [];
  for (const [c, told] of shares.found.value) {
    const call = state.calls.value[c];
    const names = state.segments.of(call);
    if (!names || told.failed) continue;
    const [a, b] = [names.from.indexOf(pair.from), names.to.indexOf(pair.to)];
    const [H, A, B] = told.share.shape;
    if (a < 0 || b < 0 || a >= A || b >= B) continue;
    for (let h = 0; h < H; h++)
      rows.push({
        call: c,
        head: call.heads[h],
        share: of(told, "share", h, a, b),
        chance: of(told, "chance", h, a, b),
      });
  }
  const height = (/** @type {{share: number, chance: number}} */ { share, chance }) =>
    Number.isNaN(share) ? -2 : order === "chance" ? share - chance : share;
  const byLayer = (/** @type {any} */ one, /** @type {any} */ other) =>
    one.call - other.call || one.head - other.head;
  return rows.sort((one, other) =>
    order === "layer" ? byLayer(one, other) : height(other) - height(one) || byLayer(one, other),
  );
}
