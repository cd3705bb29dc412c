// A plane with a token's query among the keys, or with the values that move a token's vector.
import { html } from "../../explorer/page/html.js";
import { readable } from "../../explorer/page/tokens.js";
import { distinct, label, planeInputs } from "./stages.js";

/** @import { State } from "./state.js" */
/** @import { Stage, Walk } from "./types.js" */
/** @typedef {number[]} Vector */

const [WIDE, HIGH, EDGE, LINE, LETTER] = [880, 420, 120, 17, 8]; // pixels
const MOVES = 7; // arrows with labels, of a moved token

const add = (/** @type {Vector} */ a, /** @type {Vector} */ b, factor = 1) =>
  a.map((x, i) => x + factor * b[i]);
const dot = (/** @type {Vector} */ a, /** @type {Vector} */ b) =>
  a.reduce((sum, x, i) => sum + x * b[i], 0);
const unit = (/** @type {Vector} */ a) => a.map((x) => x / (Math.hypot(...a) || 1));

/** Coordinates along the path and, across it, along the first principal component of the points.
 * Vectors of two numbers are returned as they are. @param {Vector[]} points @param {Vector[]} path */
export function project(points, path) {
  const all = [...points, ...path];
  if (path[0].length === 2) return all;
  const along = unit(add(path[path.length - 1], path[0], -1));
  const rest = all.map((v) => add(v, along, -dot(v, along)));
  const mean = points.reduce(
    (sum, _, i) => add(sum, rest[i], 1 / points.length),
    add(along, along, -1),
  );
  const spread = points.map((_, i) => add(rest[i], mean, -1));
  let axis = along.map((_, i) => Math.sin(i + 1)); // any vector, for the power iteration
  for (let i = 0; i < 300; i++)
    axis = unit(spread.reduce((sum, v) => add(sum, v, dot(v, axis)), add(axis, axis, -1)));
  return all.map((v, i) => [dot(v, along), dot(rest[i], axis)]);
}

/** The points, the path, and their labels. @param {Walk} walk @param {Stage} stage @param {number} head @param {number} row */
function vectors(walk, stage, head, row) {
  const inputs = planeInputs(stage);
  const [{ [row]: shares }, ...others] = inputs.map((s) =>
    s.rows.map((r) => s.columns.map((c) => s.at(head, r, c))),
  );
  const names = shares.map(
    (share, i) => `${share.toFixed(2)} ${readable(label(walk, inputs[0], 1, i))}`,
  );
  if (stage.kind === "weights") {
    const [{ [row]: query }, keys] = others;
    const seen = shares.flatMap((share, i) => (share > 0 ? [i] : []));
    return {
      points: seen.map((i) => keys[i]),
      path: [add(query, query, -1), query],
      labels: [...seen.map((i) => names[i]), "0", "query"],
    };
  }
  const [values, weights, tokens] = others;
  const moves = values.map((value, i) =>
    weights.reduce(
      (sum, line, k) => add(sum, line, shares[i] * value[k]),
      add(tokens[0], tokens[0], -1),
    ),
  );
  const order = moves
    .map((_, i) => i)
    .sort((a, b) => Math.hypot(...moves[b]) - Math.hypot(...moves[a]));
  const path = [tokens[row]];
  for (const i of order) path.push(add(path[path.length - 1], moves[i]));
  const dots = [...new Set([row, ...order.slice(0, MOVES)])];
  const ends = order.map((i, rank) => (rank < MOVES ? `+ ${names[i]}` : ""));
  const starts = dots.map((i) => readable(distinct(walk.tokens, i)));
  return { points: dots.map((i) => tokens[i]), path, labels: [...starts, "", ...ends] };
}

/** @param {{state: State, walk: Walk, stage: Stage}} props */
export function Plane({ state, walk, stage }) {
  const tokens = stage.axes[0] === "memory" ? walk.memory : walk.tokens;
  const row = Math.min(state.selected().row, tokens.length - 1);
  const { points, path, labels } = vectors(walk, stage, state.currentHead.value, row);
  const raw = project(points, path);
  const [[left, right], [low, high]] = [0, 1].map((axis) =>
    [Math.min, Math.max].map((end) => end(...raw.map((v) => v[axis]))),
  );
  const fit = Math.min((WIDE - 2 * EDGE) / (right - left || 1), (HIGH - EDGE) / (high - low || 1));
  const places = raw.map(([x, y]) => [EDGE + (x - left) * fit, EDGE / 2 + (high - y) * fit]);
  const [n, tall] = [points.length, (high - low) * fit + EDGE];
  /** @type {number[]} the heights of the labels; −1 if there is no room for a label */
  const tops = [];
  places.forEach(([x, y], i) => {
    const isFree = (/** @type {number} */ top) =>
      places.slice(0, i).every(([other], j) => {
        const wide = labels[x < other ? i : j].length * LETTER;
        return tops[j] < 0 || Math.abs(top - tops[j]) >= LINE || Math.abs(x - other) > wide;
      });
    const tries = [0, -1, 1, 2].slice(i < n ? 0 : 1).map((k) => y + 5 + k * LINE);
    tops.push((labels[i] && tries.find(isFree)) || -1);
  });
  return html`<p class="choice">${tokens.map((token, i) => html`<button type="button" aria-pressed=${i === row} onClick=${() => state.pin(stage, i)}><bdi>${readable(token)}</bdi></button>`)}</p>
    <svg class="plane" viewBox=${`0 0 ${WIDE} ${tall}`} role="img" aria-label=${labels.filter(Boolean).join(", ")}>
    <marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" /></marker>
    ${path.slice(1).map((_, i) => html`<path class="arrow" d=${`M${places[n + i]}L${places[n + i + 1]}`} marker-end="url(#tip)" />`)}
    ${labels.map((text, i) => (tops[i] < 0 ? null : html`<text x=${places[i][0] + 9} y=${tops[i]}>${text}</text>`))}
    ${points.map((_, i) => html`<circle cx=${places[i][0]} cy=${places[i][1]} r="4.5"><title>${labels[i]}</title></circle>`)}</svg>
    <p class="quiet">${stage.kind === "weights" ? "The arrow is the token's query, and the points are keys, with their weights. The further a key lies in the direction of the arrow, the larger is its score." : "Each arrow is the projected value of a token, times its weight. Together, the arrows move the token's vector to its output."}</p>`;
}
