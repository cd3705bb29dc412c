// Take heads or cells away, and see what the model then predicts: chips, the loss, the next tokens.
import { Explained, Term } from "../glossary.js";
import { callTitle, DELTA, scoreText, title } from "../heads/scores.js";
import { html } from "../html.js";
import { chance, digits, plural } from "../number_format.js";
import { readable, Token } from "../tokens.js";
import { number } from "../wire.js";
import { idOf, predicts, removedParts, toggle } from "./removed.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Answer, LiveAnswer } from "../types.js" */
/** @import { Part } from "./removed.js" */

const LISTED = 8; // tokens in the legend

/** @param {{state: State, tokens: Tokens, liveAnswer: LiveAnswer}} props */
export function Without({ state, tokens, liveAnswer }) {
  if (predicts(state) === undefined) return null;
  if (!predicts(state))
    return html`<section class="without" aria-label="Without"><p class="quiet">What the model does ${Term("without")} a head cannot be shown: this model predicts no next token.</p></section>`;
  const parts = removedParts(state);
  const answer = parts.length ? liveAnswer.value : null;
  const isLate =
    parts.length > 0 && answer?.request?.removed !== parts.map(({ id }) => id).join(",");
  return html`<section class="without" aria-label="Without" aria-busy=${isLate}>
    <div class="bar"><h2>Run ${Term("without")}</h2><${Toggles} state=${state} /></div>
    ${parts.length ? html`<ul class="chips" aria-label="Taken away">${parts.map((part) => html`<${Chip} key=${part.id} ...${{ state, tokens, part }} />`)}<li class="all"><button type="button" class="plain" onClick=${() => (state.removed.value = [])}>put ${parts.length > 1 ? "all " : ""}back</button></li></ul>` : null}
    ${!answer ? isLate && html`<p class="quiet" role="status">Running the model …</p>` : answer.failed ? html`<p class="wrong" role="alert">${answer.failed}</p>` : html`<${Effects} ...${{ state, tokens, answer }} />`}
  </section>`;
}

/** The buttons that take the selected head or cell away. @param {{state: State}} props */
function Toggles({ state }) {
  const cell = state.pinned.value ? state.cell.value : null;
  const { kind, first } = state.call.value;
  const isMasked = Boolean(cell && kind === "causal" && cell.key > cell.query + first);
  const button = (/** @type {string} */ name, /** @type {string} */ id, /** @type {any} */ more) =>
    html`<button type="button" aria-pressed=${state.removed.value.includes(id)} onClick=${() => toggle(state, id)} ...${more}>${name}</button>`;
  const why = isMasked ? "The mask excludes this cell" : cell ? "" : "First pin a cell of the map";
  return html`<span role="group" aria-label="Take away">${button("this head", idOf(state), { "aria-keyshortcuts": "z", title: `${title({ about: state.call.value, head: state.head.value })} (z)` })}${button("this cell", cell ? idOf(state, cell) : "", { "aria-keyshortcuts": "e", disabled: !cell || isMasked, title: why || "The selected query cannot attend to the selected key (e)" })}</span>`;
}

/** A head or a cell that is taken away. @param {{state: State, tokens: Tokens, part: Part}} props */
function Chip({ state, tokens, part }) {
  const { id, call, about, head, query, key } = part;
  const callId = state.callIdOf([...state.path.value.slice(0, 2), call]);
  const token = (/** @type {"queries" | "keys"} */ axis, /** @type {number} */ index) =>
    html`<${Token} tokens=${tokens} callId=${callId} axis=${axis} index=${index} />`;
  const cell =
    query === undefined || key === undefined
      ? null
      : html`: ${token("queries", query)} → ${token("keys", key)}`;
  return html`<li><button type="button" class="plain" onClick=${() => state.show(call, head)}>${callTitle(about)}, head ${head}${cell}</button><button type="button" class="plain" aria-label=${`Put back ${title(part)}${cell ? `, query ${query}, key ${key}` : ""}`} title="put back" onClick=${() => toggle(state, id)}>×</button></li>`;
}

/** The change in loss, the next tokens and the proof. @param {{state: State, tokens: Tokens, answer: Answer}} props */
function Effects({ state, tokens, answer }) {
  return html`<p class="total" role="status">${lossSentence(answer)}</p>
    <${NextTokens} ...${{ state, tokens, answer }} /><p class="quiet">${proofOf(answer)}</p>`;
}

/** The change in the mean loss, and its sign in words. @param {Answer} answer */
function lossSentence({ losses, without }) {
  const mean = (/** @type {Float32Array} */ data) =>
    data.reduce((sum, loss) => sum + loss, 0) / data.length;
  const [from, to] = [mean(losses.data), mean(without.data)];
  if (Number.isNaN(from)) return "A text of one token has no loss.";
  const change = digits(Math.abs(to - from), 4);
  if (Math.abs(to - from) < 5e-5) return html`The mean ${Term("loss")} stays ${digits(from)} nats.`;
  return html`<b data-change=${to - from}>${to > from ? "+" : "−"}${change}</b> The model gets ${to > from ? "worse" : "better"}: its mean ${Term("loss")} ${to > from ? "rises" : "falls"} from ${digits(from)} to ${digits(to)} nats.`;
}

/** The probabilities of the likely next tokens, with and without the parts. @param {{state: State, tokens: Tokens, answer: Answer}} props */
function NextTokens({ tokens, answer }) {
  const { pieces, following, chances, request } = answer;
  const { data } = chances;
  const count = pieces.length;
  const highest = Math.max(...data);
  const bar = (/** @type {number} */ share, /** @type {number} */ y, /** @type {string} */ kind) =>
    html`<rect y=${y} width=${(share / highest) * 100} height="5" class=${kind} />`;
  return html`<table class="next"><caption>next token after <${Token} tokens=${tokens} callId=${request?.call} axis="queries" index=${request?.at} />${following.length ? " (◂ follows in the text)" : ""}</caption>
    <thead><tr><th scope="col">token</th><th><span class="hidden">as bars</span></th><th scope="col"><i class="swatch with"></i>with</th><th scope="col"><i class="swatch less"></i>without</th></tr></thead>
    <tbody>${pieces.map(
      (/** @type {string} */ piece, /** @type {number} */ n) =>
        html`<tr class=${following.includes(n) ? "me" : ""}><th scope="row"><bdi>${readable(piece)}</bdi>${following.includes(n) ? " ◂" : ""}</th>
        <td><svg viewBox="0 0 100 11" preserveAspectRatio="none" aria-hidden="true">${bar(data[n], 0, "with")}${bar(data[count + n], 6, "less")}</svg></td>
        <td>${chance(data[n])}</td><td>${chance(data[count + n])}</td></tr>`,
    )}</tbody></table>`;
}

/** Whether the changes are proved. @param {Answer} answer */
function proofOf({ report }) {
  /** @type {{proof: string, difference: number | string | null, compared: number, lost: number}[]} */
  const all = report;
  const compared = all.reduce((sum, line) => sum + line.compared, 0);
  const proof =
    ["refuted", "unproved"].find((word) => all.some((line) => line.proof === word)) ?? "proved";
  const largest = Math.max(...all.map(({ difference }) => number(difference ?? Number.NaN)));
  const lost = all.reduce((sum, line) => sum + line.lost, 0);
  const tip = `The output that the model used is compared with the definition of the change in ${plural(compared, "row")}: the largest difference is ${largest ? largest.toExponential(0) : 0} of the largest value.`;
  return html`Change ${Explained(proof, tip)}.${lost ? ` ${plural(lost, "row")} lost all keys and gave zeros.` : ""}`;
}

/** The legend of the text that is shaded by the change in loss. @param {{state: State, tokens: Tokens, changes: Float32Array | null}} props */
export function LossLegend({ state, tokens, changes }) {
  if (!changes) return html`<p class="quiet legend">…</p>`;
  const end = largest(changes);
  const order = [...changes.keys()].slice(1);
  order.sort((a, b) => Math.abs(changes[b]) - Math.abs(changes[a]));
  const { first } = state.call.value;
  const jump = (/** @type {number} */ i) =>
    html` <button type="button" class="jump" onClick=${() => state.selectCell({ query: i - first, key: i }, true)}><${Token} tokens=${tokens} callId=${state.callId.value} axis="keys" index=${i} /> <b>${signed(changes[i])}</b></button>`;
  return html`<div class="legend short"><p>better ${scoreText(DELTA, -end)} <i class="diverging" aria-hidden="true"></i> ${scoreText(DELTA, end)} worse <span class="quiet">· ${Term("loss")}, nats</span></p>
    <p>largest: ${order.slice(0, LISTED).map(jump)}</p></div>`;
}

/** The largest absolute number, at least 1e-9. @param {Float32Array} data */
export const largest = (data) =>
  data.reduce((most, value) => Math.max(most, Math.abs(value) || 0), 1e-9);

/** A number with its sign. @param {number} change */
export const signed = (change) => (change > 0 ? "+" : "") + digits(change);
