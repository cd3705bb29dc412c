// The pane of all heads: small pictures, a scatter plot of two scores, and the selected head.
import { Choice, Code } from "../controls.js";
import { Explained, kindSentence, meaning, Precision, Term } from "../glossary.js";
import { html, useState } from "../html.js";
import { plural } from "../number_format.js";
import { Grid, isChosen, isStarred, Scale, starOf } from "./grid.js";
import { Scatter } from "./scatter.js";
import {
  DELTA,
  headText,
  KINDS,
  scaleEnd,
  scoreNames,
  scoreText,
  title,
  UNBOUNDED,
} from "./scores.js";

/** @import { State } from "../state.js" */
/** @import { HeadEntry } from "./scores.js" */

const sameNames = (/** @type {string[]} */ ...names) => names.map((name) => [name, name]);

let lastId = 0; // shared by all pages of a document, so that ids are unique

/** @param {{state: State, heads: import("./scores.js").Heads}} props */
export function HeadsPane({ state, heads }) {
  const id = useState(() => `heads-${++lastId}`)[0];
  const [view, setView] = useState("both");
  const [paint, setPaint] = useState(state.about.ablation ? "score" : "picture");
  const [score, setScore] = useState(state.about.ablation ? DELTA : "previous");
  const [sorted, setSorted] = useState(false);
  const [minimum, setMinimum] = useState(0);
  const [kinds, setKinds] = useState(/** @type {string[]} */ ([]));
  const [pointed, setPointed] = useState(/** @type {HeadEntry[]} */ ([]));
  const all = heads.all();
  const filters = kinds.filter((kind) => kind !== "★" || state.stars.value.length);
  const entries = filtered(state, all, { score, sorted, minimum, kinds: filters });
  const layered = !sorted;
  const isLarge = state.largeHeads.value;
  const maximum = scaleEnd(all, score);
  const toggle = (/** @type {string} */ kind) =>
    setKinds(kinds.includes(kind) ? kinds.filter((other) => other !== kind) : [...kinds, kind]);
  const value = (/** @type {Event} */ event) =>
    /** @type {HTMLInputElement | HTMLSelectElement} */ (event.target).value;
  const changeScore = (/** @type {Event} */ event) => {
    setScore(value(event));
    setMinimum(0);
  };
  return html`<section class="heads" aria-label="Heads">
    <div class="bar"><h2>${Term("Heads", "head")}</h2>
      <${Choice} label="View of the heads" options=${sameNames("grid", "scatter", "both")} selected=${view} choose=${setView} />
      <button type="button" class="enlarge" aria-pressed=${isLarge} aria-label="Heads in the middle of the page" title=${isLarge ? "back to the map" : "larger pictures, in place of the map"} onClick=${() => (state.largeHeads.value = !isLarge)}>⤢</button></div>
    <div class="knobs"><span class="quiet">colour by</span><${Choice} label="Colour heads by" options=${sameNames("picture", "kind", "score")} selected=${paint} choose=${setPaint} />${paint === "score" ? html`<${Scale} maximum=${maximum} isSigned=${score === DELTA} dark=${state.activeTheme.value === "dark"} />` : null}</div>
    <div class="knobs"><select aria-label="Score" value=${score} onChange=${changeScore}>${scoreNames(state.about).map((name) => html`<option value=${name}>${name}</option>`)}</select>
      <label><input type="checkbox" checked=${sorted} onChange=${() => setSorted(!sorted)} /> sort</label>
      <label class="least" title=${`Hide heads with less ${score}`}><span aria-hidden="true">${score === DELTA ? "|Δ| " : ""}≥</span> <output>${scoreText(score, minimum).replace("+", "")}</output><input type="range" aria-label=${`Minimum of ${score}`} min="0" max=${maximum} step=${maximum / 40} value=${minimum} onInput=${(/** @type {Event} */ e) => setMinimum(Number(value(e)))} /></label></div>
    <${Kinds} state=${state} all=${all} kinds=${kinds} toggle=${toggle} />
    ${heads.progress < 1 ? html`<p class="quiet late" role="status">${Explained("Scores", "The scores are means over the queries. In long texts, they are first estimated from some queries.")} are being computed, ${Math.floor(heads.progress * 100)} %</p>` : null}
    ${view === "scatter" ? null : html`<${Grid} state=${state} heads=${heads} entries=${entries} layered=${layered} paint=${paint} score=${score} id=${`${id}-grid`} point=${(/** @type {HeadEntry | null} */ entry) => setPointed(entry ? [entry] : [])} />`}
    ${view === "grid" ? null : html`<${Scatter} state=${state} entries=${entries} complete=${heads.progress === 1} id=${`${id}-scatter`} point=${setPointed} />`}
    <p class="pointed" aria-hidden="true">${pointedText(pointed, score) || (entries.length < all.length ? `${entries.length} of ${all.length.toLocaleString("en")} heads` : html`<span class="quiet">${all.length.toLocaleString("en")} heads. Select one.</span>`)}</p>
    <${HeadSummary} state=${state} entry=${all.find((entry) => isChosen(entry, state))} all=${all} />
    ${state.stars.value.length ? html`<${Code} code=${starCode(state, all)}>The starred heads in Python<//>` : null}
  </section>`;
}

/** The text for the heads under the pointer. @param {HeadEntry[]} entries @param {string} score */
function pointedText(entries, score) {
  if (!entries.length) return "";
  const more = entries.length > 3 ? ` and ${entries.length - 3} more` : "";
  const hint = html` <span class="quiet">click again to select the next</span>`;
  return html`${entries
    .slice(0, 3)
    .map((entry) => headText(entry, score))
    .join(" · ")}${more}${entries.length > 1 ? hint : null}`;
}

/** The heads that pass the filters, in order. @param {State} state @param {HeadEntry[]} all @param {{score: string, sorted: boolean, minimum: number, kinds: string[]}} props */
function filtered(state, all, { score, sorted, minimum, kinds }) {
  let entries = all;
  if (kinds.length)
    entries = entries.filter(
      (entry) => kinds.includes(entry.kind) || (kinds.includes("★") && isStarred(entry, state)),
    );
  if (minimum > 0) entries = entries.filter(({ values }) => Math.abs(values[score]) >= minimum);
  const sortValue = (/** @type {HeadEntry} */ { values }) =>
    Number.isFinite(values[score]) ? values[score] : Number.NEGATIVE_INFINITY;
  return sorted ? [...entries].sort((a, b) => sortValue(b) - sortValue(a)) : entries;
}

/** The legend of kinds with their counts; it also filters the heads by kind. @param {{state: State, all: HeadEntry[], kinds: string[], toggle: (kind: string) => void}} props */
function Kinds({ state, all, kinds, toggle }) {
  const allKinds = [...Object.keys(KINDS), "-"];
  const counts = allKinds.map((kind) => all.filter((entry) => entry.kind === kind).length);
  return html`<ul class="kinds" aria-label="Kinds of heads">${allKinds.map((kind, n) =>
    counts[n]
      ? html`<li><button type="button" class=${kind === "-" ? "none" : ""} style=${kind === "-" ? "" : `--kind:${KINDS[kind]}`} aria-pressed=${kinds.includes(kind)} title=${meaning(kind)} onClick=${() => toggle(kind)}>${kind === "-" ? "no kind" : kind} <span>${counts[n]}</span></button></li>`
      : null,
  )}${state.stars.value.length ? html`<li><button type="button" class="none" aria-pressed=${kinds.includes("★")} title="The starred heads" onClick=${() => toggle("★")}>★ <span>${all.filter((entry) => isStarred(entry, state)).length}</span></button></li>` : null}</ul>`;
}

/** The Python expression for the starred heads. @param {State} state @param {HeadEntry[]} all */
function starCode(state, all) {
  const [recording, text] = state.path.value;
  const starred = all.filter((entry) => isStarred(entry, state));
  const numbered = starred.filter(({ about }) => about.layer !== null);
  const pairs = numbered.map(({ about, head }) => `(${about.layer}, ${head})`);
  return `${state.about.recordings[recording].texts[text].code}.heads(only=[${pairs.join(", ")}])`;
}

/** A button that stars a head. @param {{state: State, entry: HeadEntry}} props */
function Star({ state, entry }) {
  const star = starOf(entry);
  const { stars } = state;
  const isOn = stars.value.includes(star);
  const toggle = () =>
    (stars.value = isOn ? stars.value.filter((other) => other !== star) : [...stars.value, star]);
  return html`<button type="button" class="plain" aria-pressed=${isOn} aria-label="Star this head" title="the address of the page keeps starred heads" onClick=${toggle}>${isOn ? "★" : "☆"}</button>`;
}

/** The selected head with its scores. @param {{state: State, entry: HeadEntry | undefined, all: HeadEntry[]}} props */
export function HeadSummary({ state, entry, all }) {
  if (!entry) return null;
  const names = scoreNames(state.about).filter(
    (name) => name === DELTA || Number.isFinite(entry.values[name]),
  );
  const { scores } = entry.answers;
  const colour = KINDS[entry.kind];
  if (entry.answers.failed)
    return html`<div class="head-summary"><h3>${title(entry)}</h3><p class="wrong">${entry.answers.failed}</p></div>`;
  return html`<div class="head-summary"><h3>${title(entry)} <${Star} state=${state} entry=${entry} /> ${
    entry.kind
      ? html`<span class=${colour ? "kind" : "kind none"} style=${colour ? `--kind:${colour}` : ""}>${Explained(colour ? entry.kind : "no kind", colour ? meaning(entry.kind) : kindSentence("-"))}</span>`
      : null
  }</h3>
    ${entry.kind ? html`<p>${kindSentence(entry.kind)}</p>` : html`<p class="quiet">Its scores are being computed.</p>`}
    ${scores && scores.word !== "exact" ? html`<p>≈ <${Precision} answer=${scores} /></p>` : null}
    <dl>${names.map((name) => html`<div><dt>${Explained(name, scoreTip(entry, name))}<${Bar} entry=${entry} name=${name} maximum=${scaleEnd(all, name)} /></dt><dd>${name === DELTA && entry.ablated?.delta === null ? "≈ " : ""}${scoreText(name, entry.values[name])}</dd></div>`)}</dl></div>`;
}

/** The definition of a score, with its chance level and its number of queries. @param {HeadEntry} entry @param {string} name */
function scoreTip(entry, name) {
  const [chance, queries] = [entry.chance[name], entry.queries[name]];
  const chanceText = Number.isFinite(chance)
    ? ` Chance is ${chance.toFixed(2)}. ${meaning("chance")}`
    : "";
  const count = queries > 0 ? ` It is a mean over ${plural(queries, "query", "queries")}.` : "";
  if (name === DELTA) return `${meaning(name)} ${deltaText(entry)}`;
  if (UNBOUNDED.includes(name))
    return `${meaning(name)}${count} The bar ends at the largest ${name} of all heads.`;
  return `${meaning(name)}${chanceText}${count}`;
}

/** How certain the Δ of a head is. @param {HeadEntry} entry */
function deltaText({ ablated }) {
  if (!ablated) return "The file has no number for this head.";
  if (ablated.delta === null) return "This number is an estimate to first order.";
  return ablated.error == null ? "" : `The standard error is ${+ablated.error.toPrecision(2)}.`;
}

/** A bar for a score from 0 to its maximum, with a tick at chance. @param {{entry: HeadEntry, name: string, maximum: number}} props */
function Bar({ entry, name, maximum }) {
  const chance = entry.chance[name];
  return html`<svg class="score" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect width="100" height="10" class="whole" />
    <rect width=${Math.min(1, Math.abs(entry.values[name] || 0) / maximum) * 100} height="10" fill=${name === DELTA ? `rgb(var(--${entry.values[name] > 0 ? "worse" : "better"}))` : entry.kind === name ? KINDS[name] : undefined} class="plus" />
    ${Number.isFinite(chance) ? html`<rect x=${chance * 100 - 0.75} width="1.5" height="10" class="chance" />` : null}</svg>`;
}
