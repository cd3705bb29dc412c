// A plane with a token's query among the keys, or with the values that move a token's vector.
import { html } from "../../explorer/page/html.js";
import { readable } from "../../explorer/page/tokens.js";
import { label, planeInputs } from "./stages.js";

/** @import { State } from "./state.js" */
/** @import { Stage, Walk } from "./types.js" */
/** @typedef {number[]} Vector */

const [WIDE, HIGH, EDGE, LINE, LETTER] = [880, 420, 120, 17, 8]; // pixels

/** @type {Record<string, string>} */
const SENTENCES = {
  weights:
    "The arrow is the token's query, and the points are keys, with their weights. The further a key lies in the direction of the arrow, the larger is its score.",
  sum: "Each arrow is the projected value of a token, times its weight. Together, the arrows move the token's vector to its output.",
};

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
  return {
    points: tokens,
    path,
    labels: [
      ...walk.tokens.map((token) => readable(token)),
      "",
      ...order.map((i) => `+ ${names[i]}`),
    ],
  };
}

/** @param {State} state @param {Stage} stage @param {number} row */
function select(state, stage, row) {
  state.point(stage, row, 0);
  state.pinned.value = true;
}

/** @param {{state: State, walk: Walk, stage: Stage}} props */
export function Plane({ state, walk, stage }) {
  const tokens = stage.axes[0] === "memory" ? walk.memory : walk.tokens;
  const row = Math.min(state.position.value.row, tokens.length - 1);
  const { points, path, labels } = vectors(walk, stage, state.currentHead.value, row);
  const raw = project(points, path);
  const [[left, right], [low, high]] = [0, 1].map((axis) =>
    [Math.min, Math.max].map((end) => end(...raw.map((v) => v[axis]))),
  );
  const scale = Math.min(
    (WIDE - 2 * EDGE) / (right - left || 1),
    (HIGH - EDGE) / (high - low || 1),
  );
  const places = raw.map(([x, y]) => [EDGE + (x - left) * scale, EDGE / 2 + (high - y) * scale]);
  /** @type {number[]} the heights of the labels, which do not overlap if possible */
  const tops = [];
  for (const [i, [x, y]] of places.entries()) {
    const isFree = (/** @type {number} */ top) =>
      tops.every(
        (other, j) =>
          Math.abs(top - other) >= LINE ||
          x + labels[i].length * LETTER < places[j][0] ||
          x > places[j][0] + labels[j].length * LETTER,
      );
    const tries = [0, -1, 1, -2, 2, -3, 3]
      .map((n) => y + 5 + n * LINE)
      .slice(i < points.length ? 0 : 1);
    tops.push(tries.find(isFree) ?? tries[0]);
  }
  const arrows = path
    .slice(1)
    .map((_, i) => places.slice(points.length + i, points.length + i + 2));
  return html`<p class="choice">${tokens.map((token, i) => html`<button type="button" aria-pressed=${i === row} onClick=${() => select(state, stage, i)}><bdi>${readable(token)}</bdi></button>`)}</p>
    <svg class="plane" viewBox=${`0 0 ${WIDE} ${(high - low) * scale + EDGE}`} role="img" aria-label=${labels.filter(Boolean).join(", ")}>
    <marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" /></marker>
    ${arrows.map(([a, b]) => html`<path class="arrow" d=${`M${a}L${b}`} marker-end="url(#tip)" />`)}
    ${places.slice(0, points.length).map(([x, y]) => html`<circle cx=${x} cy=${y} r="4.5" />`)}
    ${labels.map((text, i) => html`<text x=${places[i][0] + 9} y=${tops[i]}>${text}</text>`)}</svg>
    <p class="quiet">${SENTENCES[stage.kind]}</p>`;
}
