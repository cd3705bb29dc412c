// All heads: a small picture each, a scatter of any two of their scores, and the chosen one in words.
import { Choice } from "../controls.js";
import { Explained, meaning, Term, tells, Word } from "../glossary.js";
import { html, useState } from "../html.js";
import { Grid, isMine, Scale } from "./grid.js";
import { Scatter } from "./scatter.js";
import { KINDS, OPEN, SCORES, spoken, title } from "./scores.js";

/** @import { State } from "../state.js" */
/** @import { One } from "./scores.js" */

const named = (/** @type {string[]} */ ...names) => names.map((name) => [name, name]);

let made = 0; // so that two pages in one document do not share an id

/** @param {{state: State, heads: import("./scores.js").Heads}} given */
export function HeadsPane({ state, heads }) {
  const id = useState(() => `heads-${++made}`)[0];
  const [view, setView] = useState("both");
  const [paint, setPaint] = useState("picture");
  const [score, setScore] = useState("previous");
  const [sorted, setSorted] = useState(false);
  const [least, setLeast] = useState(0);
  const [kinds, setKinds] = useState(/** @type {string[]} */ ([]));
  const [pointed, setPointed] = useState(/** @type {One[]} */ ([]));
  const all = heads.all();
  const shown = chosen(all, { score, sorted, least, kinds });
  const layered = !sorted;
  const most = limit(all, score);
  const toggle = (/** @type {string} */ kind) =>
    setKinds(kinds.includes(kind) ? kinds.filter((one) => one !== kind) : [...kinds, kind]);
  const value = (/** @type {Event} */ event) =>
    /** @type {HTMLInputElement | HTMLSelectElement} */ (event.target).value;
  return html`<section class="heads" aria-label="Heads">
    <div class="bar"><h2>${Term("Heads", "head")}</h2>
      <${Choice} label="What of the heads is shown" ways=${named("grid", "scatter", "both")} now=${view} choose=${setView} /></div>
    <div class="knobs"><span class="quiet">colour</span><${Choice} label="What a head is coloured by" ways=${named("picture", "kind", "score")} now=${paint} choose=${setPaint} />${paint === "score" ? html`<${Scale} most=${most} dark=${state.worn.value === "dark"} />` : null}</div>
    /** @param {Event} e */
    <div class="knobs"><select aria-label="Score" value=${score} onChange=${(e) => {
      setScore(value(e));
      setLeast(0);
    }}>${SCORES.map((name) => html`<option value=${name}>${name}</option>`)}</select>
      <label><input type="checkbox" checked=${sorted} onChange=${() => setSorted(!sorted)} /> sort</label>
      <label class="least" title=${`Hide heads whose ${score} is less`}><span aria-hidden="true">≥</span> <output>${least.toFixed(2)}</output><input type="range" aria-label=${`Least ${score}`} min="0" max=${most} step=${most / 40} value=${least} onInput=${(/** @type {Event} */ e) => setLeast(Number(value(e)))} /></label></div>
    <${Kinds} all=${all} kinds=${kinds} toggle=${toggle} />
    ${heads.done < 1 ? html`<p class="quiet late" role="status">${Explained("Scores", "Each head's scores are means over its queries; those of long texts are estimated from some of them first.")} are being computed, ${Math.floor(heads.done * 100)} %</p>` : null}
    ${view === "scatter" ? null : html`<${Grid} state=${state} heads=${heads} shown=${shown} layered=${layered} paint=${paint} score=${score} id=${`${id}-grid`} point=${(/** @type {One | null} */ one) => setPointed(one ? [one] : [])} />`}
    ${view === "grid" ? null : html`<${Scatter} state=${state} shown=${shown} whole=${heads.done === 1} id=${`${id}-scatter`} point=${setPointed} />`}
    <p class="pointed" aria-hidden="true">${told(pointed, score) || (shown.length < all.length ? `${shown.length} of ${all.length.toLocaleString("en")} heads` : html`<span class="quiet">${all.length.toLocaleString("en")} heads. Choose one.</span>`)}</p>
    <${Said} one=${all.find((one) => isMine(one, state))} />
  </section>`;
}

/** Names of heads under the pointer. @param {One[]} ones @param {string} score */
function told(ones, score) {
  if (!ones.length) return "";
  const more = ones.length > 3 ? ` and ${ones.length - 3} more` : "";
  const next = ones.length > 1 ? html` <span class="quiet">a click goes through them</span>` : null;
  return html`${ones
    .slice(0, 3)
    .map((one) => spoken(one, score))
    .join(" · ")}${more}${next}`;
}

/**
 * The heads that are asked for, in their order.
 * @param {One[]} all @param {{score: string, sorted: boolean, least: number, kinds: string[]}} given
 */
function chosen(all, { score, sorted, least, kinds }) {
  let found = all;
  if (kinds.length) found = found.filter((one) => kinds.includes(one.kind));
  if (least > 0) found = found.filter((one) => one.values[score] >= least);
  const of = (/** @type {One} */ one) =>
    Number.isFinite(one.values[score]) ? one.values[score] : -1;
  return sorted ? [...found].sort((a, b) => of(b) - of(a)) : found;
}

/** The end of a score's slider. @param {One[]} all @param {string} score */
function limit(all, score) {
  if (!OPEN.includes(score)) return 1;
  return Math.max(...all.map((one) => one.values[score] || 0), 1e-6);
}

/** The legend of kinds, with how many heads have each; choosing some hides the others. @param {{all: One[], kinds: string[], toggle: (kind: string) => void}} given */
function Kinds({ all, kinds, toggle }) {
  const known = [...Object.keys(KINDS), "-"];
  const counts = known.map((kind) => all.filter((one) => one.kind === kind).length);
  return html`<ul class="kinds" aria-label="Kinds of heads">${known.map((kind, n) =>
    counts[n]
      ? html`<li><button type="button" class=${kind === "-" ? "none" : ""} style=${kind === "-" ? "" : `--kind:${KINDS[kind]}`} aria-pressed=${kinds.includes(kind)} title=${meaning(kind)} onClick=${() => toggle(kind)}>${kind === "-" ? "no kind" : kind} <span>${counts[n]}</span></button></li>`
      : null,
  )}</ul>`;
}

/** @param {{one: One | undefined}} given */
export function Said({ one }) {
  if (!one) return null;
  const known = SCORES.filter((name) => Number.isFinite(one.values[name]));
  const { scores } = one.known;
  const named = KINDS[one.kind];
  if (one.known.failed)
    return html`<div class="said"><h3>${title(one)}</h3><p class="wrong">${one.known.failed}</p></div>`;
  return html`<div class="said"><h3>${title(one)} ${
    one.kind
      ? html`<span class=${named ? "kind" : "kind none"} style=${named ? `--kind:${named}` : ""}>${Explained(named ? one.kind : "no kind", named ? meaning(one.kind) : tells("-"))}</span>`
      : null
  }</h3>
    ${one.kind ? html`<p>${tells(one.kind)}</p>` : html`<p class="quiet">Its scores are being computed.</p>`}
    ${scores && scores.word !== "exact" ? html`<p>≈ <${Word} answer=${scores} /></p>` : null}
    <dl>${known.map((name) => html`<div><dt>${Explained(name, explained(one, name))}${OPEN.includes(name) ? null : html`<${Bar} one=${one} name=${name} />`}</dt><dd>${one.values[name].toFixed(2)}</dd></div>`)}</dl></div>`;
}

/** What a score means, with chance and what it rests on where that is known. @param {One} one @param {string} name */
function explained(one, name) {
  const [chance, queries] = [one.chance[name], one.queries[name]];
  const by = Number.isFinite(chance)
    ? ` Chance is ${chance.toFixed(2)}: ${meaning("chance").replace("What", "what").replace(/\.$/, "")}.`
    : "";
  const on = queries > 0 ? ` It rests on ${queries.toLocaleString("en")} queries.` : "";
  return `${meaning(name)}${by}${on}`;
}

/** A score from 0 to 1, with a tick where chance is. @param {{one: One, name: string}} given */
function Bar({ one, name }) {
  const chance = one.chance[name];
  return html`<svg class="score" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect width="100" height="10" class="whole" />
    <rect width=${Math.min(1, one.values[name]) * 100} height="10" fill=${one.kind === name ? KINDS[name] : undefined} class="plus" />
    ${Number.isFinite(chance) ? html`<rect x=${chance * 100 - 0.75} width="1.5" height="10" class="chance" />` : null}</svg>`;
}
