// The segment pane: segments, a table of the attention between them, and heads sorted by a share.

import { Choice } from "../controls.js";
import { Explained, Term } from "../glossary.js";
import { callTitle, title } from "../heads/scores.js";
import { html, useState } from "../html.js";
import { saveCsv } from "../map/save.js";
import { count, MAX_SEGMENTS, REST } from "./segments.js";
import { meanOverHeads, shareAt } from "./shares.js";

/** @import { State } from "../state.js" */
/** @import { Source } from "../types.js" */
/** @import { Segment, Segments, TextRole } from "./segments.js" */
/** @import { Shares } from "./shares.js" */

/** @typedef {{state: State, source: Source, shares: Shares}} Props */
/** @typedef {{from: string, to: string}} Pair */
/** @typedef {"share" | "chance" | "layer"} Order */

const SHOWN = 40; // heads that the list shows initially
const value = (/** @type {Event} */ event) =>
  /** @type {HTMLInputElement | HTMLSelectElement} */ (event.target).value;
const colour = (/** @type {Segment} */ { colour: n }) => `--segment:var(--segment-${n})`;

/** @param {Props} props */
export function SegmentPane(props) {
  const { state, shares } = props;
  const { segments } = state;
  const [mean, setMean] = useState(false);
  const [chosen, setChosen] = useState(/** @type {Pair | null} */ (null));
  const answer = shares.byCall.value.get(state.path.value[2]);
  const names = segments.questionFor(state.call.value);
  const pair = currentPair(chosen, segments, state);
  return html`<section class="segment-pane" aria-label="Attention between segments">
    <div class="bar"><h2>Attention between segments</h2><button type="button" class="plain" aria-label="Close, and show the weight" onClick=${() => (state.pane.value = "weight")}>×</button></div>
    ${state.segments.text.crosses ? html`<${SegmentList} ...${props} role="source" /><${SegmentList} ...${props} role="target" />` : html`<${SegmentList} ...${props} role="source" />`}
    <${MarkForm} state=${state} />
    ${segments.any ? html`<${Progress} shares=${shares} />` : null}
    ${names && answer ? html`<${ShareTable} state=${state} answer=${answer} names=${names} mean=${mean} setMean=${setMean} pair=${pair} choose=${setChosen} />` : null}
    ${!names && segments.any ? html`<p class="wrong">Segments do not apply to this call: ${state.call.value.apart}.</p>` : null}
    ${pair && [...shares.byCall.value.values()].some(({ failed }) => !failed) ? html`<${SortedHeads} state=${state} shares=${shares} pair=${pair} choose=${setChosen} />` : null}
  </section>`;
}

/** The pair of segments by which heads are sorted; default: from the last segment to the largest other. @param {Pair | null} chosen @param {Segments} segments @param {State} state @returns {Pair | null} */
function currentPair(chosen, segments, state) {
  const all = state.calls.value.flatMap((call) => segments.questionFor(call) ?? []);
  const has = (/** @type {Pair} */ { from, to }) =>
    all.some((names) => names.from.includes(from) && names.to.includes(to));
  if (chosen && has(chosen)) return chosen;
  const names = segments.questionFor(state.call.value) ?? all[0];
  if (!names) return null;
  const from = names.from.at(-2) ?? names.from[0];
  const { source } = segments.current.value;
  const largest = source
    .filter(({ name }) => name !== from)
    .toSorted((a, b) => count(b.runs) - count(a.runs))[0];
  const to = largest && names.to.includes(largest.name) ? largest.name : names.to[0];
  return { from, to };
}

/** The list of the segments of a text. @param {Props & {role: TextRole}} props */
function SegmentList({ state, role }) {
  const { segments } = state;
  const all = segments.current.value[role];
  const rest = segments.rest(role);
  const crosses = segments.text.crosses;
  return html`${crosses ? html`<h3>${role === "source" ? "source text" : "target text"}</h3>` : null}
  ${
    all.length
      ? html`<ul class="marks">${all.map(
          (
            segment,
          ) => html`<li key=${segment.id} style=${colour(segment)}><i class="swatch-segment" aria-hidden="true"></i>
      <input class="name" aria-label="Name of the segment" value=${segment.name} onChange=${(/** @type {Event} */ e) => segments.rename(role, segment.id, value(e))} />
      <span class="quiet" title=${segment.runs.map(([a, b]) => (b - a > 1 ? `${a} to ${b - 1}` : a)).join(", ")}>${tokens(count(segment.runs))}${segment.runs.length > 1 ? ` in ${segment.runs.length} ranges` : ""}</span>
      <button type="button" class="plain" aria-label=${`Delete ${segment.name}`} onClick=${() => segments.remove(role, segment.id)}>×</button></li>`,
        )}
    ${rest.count ? html`<li class="rest"><i class="swatch-segment" aria-hidden="true"></i><span>${Explained(REST, "The tokens outside all segments.")}</span><span class="quiet">${tokens(rest.count)}${rest.first ? ", including the first" : ""}</span></li>` : null}</ul>`
      : crosses && segments.any
        ? html`<p class="quiet">Nothing is marked: the full text is one segment, “${role}”.</p>`
        : null
  }`;
}

const tokens = (/** @type {number} */ n) => `${n.toLocaleString("en")} token${n === 1 ? "" : "s"}`;

/** A form that marks tokens as a segment. @param {{state: State}} props */
function MarkForm({ state }) {
  const { segments } = state;
  const call = state.call.value;
  const roles = /** @type {TextRole[]} */ ([...new Set(call.reads ?? [])]);
  const selection = segments.selection.value;
  const [chosenRole, setRole] = useState(/** @type {TextRole} */ ("source"));
  if (!roles.length) return null;
  const role = selection?.role ?? (roles.includes(chosenRole) ? chosenRole : roles[0]);
  const size = segments.size(role);
  const all = segments.current.value[role];
  const bound = (/** @type {"from" | "to"} */ end) => (/** @type {Event} */ event) => {
    const token = Math.max(0, Math.min(size - 1, Math.floor(Number(value(event))) || 0));
    const other = selection ? selection[end === "from" ? "to" : "from"] : token;
    segments.selection.value = { role, from: Math.min(token, other), to: Math.max(token, other) };
  };
  const selectAll = (/** @type {Event} */ event) =>
    /** @type {HTMLInputElement} */ (event.target).select(); // so that typing replaces the number
  const isFull = all.length >= MAX_SEGMENTS;
  return html`<div class="mark-form" role="group" aria-label="Mark">
    ${roles.length > 1 ? html`<${Choice} label="Text" options=${roles.map((name) => [name, name])} selected=${role} choose=${setRole} />` : null}
    <p class="tokens"><label>tokens <input type="number" min="0" max=${size - 1} aria-label="First token" value=${selection?.from ?? ""} onClick=${selectAll} onChange=${bound("from")} /></label>
      <label>to <input type="number" min="0" max=${size - 1} aria-label="Last token" value=${selection?.to ?? ""} onClick=${selectAll} onChange=${bound("to")} /></label>
      <button type="button" class="main" disabled=${!selection || isFull} aria-keyshortcuts="Enter" onClick=${() => selection && segments.add(role, [[selection.from, selection.to + 1]])}>Mark</button>
      ${
        selection && all.length
          ? /** @param {Event} e */
            html`<select aria-label="Add the tokens to" value="" onChange=${(e) => value(e) && segments.extend(role, Number(value(e)), [selection.from, selection.to + 1])}><option value="">add to …</option>${all.map(({ id, name }) => html`<option value=${id}>${name}</option>`)}</select>`
          : null
      }</p>
    ${segments.any ? null : html`<p class="quiet">Select tokens of the text by dragging, or with shift and the arrow keys, and mark them as a segment, for example a document or a question. By touch, tap the first and the last token.</p>`}
  </div>`;
}

/** The progress of the computation. @param {{shares: Shares}} props */
function Progress({ shares }) {
  const progress = shares.progress.value;
  if (progress >= 1) return null;
  return html`<p class="progress late"><span role="status">computing, ${Math.floor(progress * 100)} %</span>
    <progress max="1" value=${progress} aria-label="Progress"></progress></p>`;
}

/** The shares of attention between segments, of one head or as the mean over heads. @param {any} props */
function ShareTable({ state, answer, names, mean, setMean, pair, choose }) {
  const call = state.call.value;
  const toggle = html`<${Choice} label="Heads" options=${[[false, "this head"], [true, "layer’s mean"]]} selected=${mean} choose=${setMean} />`;
  if (answer.failed) return html`${toggle}<p class="wrong">${answer.failed}</p>`;
  const table = mean ? meanOverHeads(answer) : answer;
  const h = mean ? 0 : call.heads.indexOf(state.head.value);
  const [, A, B] = table.share.shape;
  const from = names.from.slice(0, A);
  const to = names.to.slice(0, B);
  const queries = (/** @type {number} */ a) => table.queries.data[h * A + a];
  return html`${toggle}
  <button type="button" class="plain" onClick=${() => saveCsv("segments", [["query", ...to], ...from.map((name, a) => [name, ...to.map((_, b) => shareAt(table, "share", h, a, b))])])}>save as CSV</button>
  <div class="wide"><table class="shares"><caption>${mean ? `mean of ${call.heads.length} heads, ${callTitle(call)}` : title({ about: call, head: state.head.value })}: rows attend to columns ${answer.word === "exact" ? null : html`<span>(${answer.word})</span>`}</caption>
    <thead><tr><th scope="col"></th>${to.map((name) => html`<th scope="col" title=${name}><bdi>${name}</bdi></th>`)}${answer.sinks ? html`<th scope="col">${Term("learned sink")}</th>` : null}</tr></thead>
    <tbody>${from.map(
      /** @param {string} name @param {number} a */
      (
        name,
        a,
      ) => html`<tr><th scope="row" title=${`${name}: the mean over ${queries(a).toLocaleString("en")} queries that are not fully masked`}><bdi>${name}</bdi><small>${queries(a).toLocaleString("en")} ${queries(a) === 1 ? "query" : "queries"}</small></th>
      ${to.map((other, b) => {
        const share = shareAt(table, "share", h, a, b);
        const chance = shareAt(table, "chance", h, a, b);
        const isChosen = pair?.from === name && pair?.to === other;
        return html`<td style=${`--share:${share || 0}`}><button type="button" aria-pressed=${isChosen} title=${hint(name, other, share, chance)} onClick=${() => choose({ from: name, to: other })}>${shareText(share, chance)}<${Bar} share=${share} chance=${chance} /></button></td>`;
      })}${answer.sinks ? html`<td>${shareText(table.learned.data[h * A + a], 1)}</td>` : null}</tr>`,
    )}</tbody></table></div>
    <p class="quiet note">${sumNote(state, answer)}</p>`;
}

/** The note below the table, on the sums of its rows and on chance. @param {State} state @param {import("../types.js").Answer} answer */
const sumNote = (state, answer) =>
  (state.segments.overlaps(state.call.value.reads?.[1] ?? "source")
    ? "Segments overlap, so a row may sum to more than 1."
    : `Each row sums to 1${answer.sinks ? ", including the learned sink" : ""}.`) +
  " The tick marks chance: the share if every query attended equally to all keys that the mask allows.";

/** A share in the library's format; a dash if it is undefined or the mask excludes the pair. @param {number} share @param {number} chance */
const shareText = (share, chance) => (Number.isNaN(share) || chance === 0 ? "–" : share.toFixed(2));

/** @param {string} from @param {string} to @param {number} share @param {number} chance */
const hint = (from, to, share, chance) =>
  `${from} attends to ${to}: ${Number.isNaN(share) ? "all queries are fully masked" : chance === 0 ? "excluded by the mask" : `${share.toFixed(4)}, chance ${chance.toFixed(4)}`}`;

/** A bar for a share, with a tick at chance. @param {{share: number, chance: number}} props */
function Bar({ share, chance }) {
  if (!(share >= 0)) return null;
  return html`<svg class="share" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect width="100" height="6" class="whole" /><rect width=${Math.min(1, share) * 100} height="6" class="plus" />${chance > 0 ? html`<rect x=${Math.min(98, chance * 100 - 1)} width="2" height="6" class="chance" />` : null}</svg>`;
}

/** All heads, sorted by the share of one pair of segments. @param {{state: State, shares: Shares, pair: Pair, choose: (pair: Pair) => void}} props */
function SortedHeads({ state, shares, pair, choose }) {
  const [order, setOrder] = useState(/** @type {Order} */ ("chance"));
  const [limit, setLimit] = useState(SHOWN);
  const rows = sortedRows(state, shares, pair, order);
  const names = (/** @type {"from" | "to"} */ end) => [
    ...new Set(state.calls.value.flatMap((call) => state.segments.questionFor(call)?.[end] ?? [])),
  ];
  const select = (/** @type {"from" | "to"} */ end) =>
    html`<select aria-label=${end === "from" ? "From segment" : "To segment"} value=${pair[end]} onChange=${(/** @type {Event} */ e) => choose({ ...pair, [end]: value(e) })}>${names(end).map((name) => html`<option>${name}</option>`)}</select>`;
  return html`<div class="sorted"><h3>Heads, sorted by share</h3><p class="tokens">${select("from")} attends to ${select("to")}</p>
    <${Choice} label="Order" options=${[["chance", "above chance"], ["share", "highest"], ["layer", "by layer"]]} selected=${order} choose=${setOrder} />
    <ol>${rows
      .slice(0, limit)
      .map(
        ({ call, head, share, chance }) =>
          html`<li key=${`${call} ${head}`}><button type="button" aria-current=${call === state.path.value[2] && head === state.head.value ? "true" : undefined} onClick=${() => state.show(call, head)}><span>${callTitle(state.calls.value[call])}</span><i>head ${head}</i><${Bar} share=${share} chance=${chance} /><b>${shareText(share, chance)}</b></button></li>`,
      )}</ol>
    ${rows.length > limit ? html`<button type="button" onClick=${() => setLimit(limit + 5 * SHOWN)}>${(rows.length - limit).toLocaleString("en")} more</button>` : null}</div>`;
}

/** @param {State} state @param {Shares} shares @param {Pair} pair @param {Order} order */
function sortedRows(state, shares, pair, order) {
  const rows = [];
  for (const [c, answer] of shares.byCall.value) {
    const call = state.calls.value[c];
    const names = state.segments.questionFor(call);
    if (!names || answer.failed) continue;
    const [a, b] = [names.from.indexOf(pair.from), names.to.indexOf(pair.to)];
    const [H, A, B] = answer.share.shape;
    if (a < 0 || b < 0 || a >= A || b >= B) continue;
    for (let h = 0; h < H; h++)
      rows.push({
        call: c,
        head: call.heads[h],
        share: shareAt(answer, "share", h, a, b),
        chance: shareAt(answer, "chance", h, a, b),
      });
  }
  const rank = (/** @type {{share: number, chance: number}} */ { share, chance }) =>
    Number.isNaN(share) ? -2 : order === "chance" ? share - chance : share;
  const byLayer = (/** @type {any} */ a, /** @type {any} */ b) =>
    a.call - b.call || a.head - b.head;
  return rows.sort((a, b) =>
    order === "layer" ? byLayer(a, b) : rank(b) - rank(a) || byLayer(a, b),
  );
}
