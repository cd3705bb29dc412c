// The chosen head in words: what it is called, what that means, and every score beside chance.
import { html } from "../html.js";
import { Explained, meaning, tells, Word } from "../terms.js";
import { KINDS, OPEN, SCORES, title } from "./scores.js";

/** @import { One } from "./scores.js" */

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
