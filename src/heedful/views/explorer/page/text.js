// The tokens as running text: shaded by where the chosen one looks, underlined by who looks at it.

import { share } from "./colours.js";
import { html, useState } from "./html.js";

const AROUND = 400; // tokens to each side of the chosen one
const MOST_LINES = 80; // tokens up to which lines are drawn between two columns

export function TextPane({ state, tokens, row, column, lines }) {
  const [, N, M] = state.call.value.shape;
  const cross = state.call.value.kind === "cross";
  const [drawn, setDrawn] = useState(false);
  const few = Math.max(N, M) <= MOST_LINES;
  return html`<section class="text" aria-label="The text">
    ${
      few
        ? html`<div class="choice" role="group"><button aria-pressed=${!drawn} onClick=${() => setDrawn(false)}>text</button>
      <button aria-pressed=${drawn} onClick=${() => setDrawn(true)}>lines</button></div>`
        : null
    }
    <p class="quiet">Shaded: where the chosen token looks. Underlined: who looks at it.${state.cell.value ? "" : " Choose a token."}</p>
    ${
      drawn && few
        ? html`<${Lines} state=${state} tokens=${tokens} lines=${lines} />`
        : cross
          ? html`<h3>queries</h3><${Run} state=${state} tokens=${tokens} axis="queries" size=${N} under=${column} />
          <h3>keys</h3><${Run} state=${state} tokens=${tokens} axis="keys" size=${M} shaded=${row} />`
          : html`<${Run} state=${state} tokens=${tokens} axis="keys" size=${M} shaded=${row} under=${column} />`
    }
  </section>`;
}

function Run({ state, tokens, axis, size, shaded, under }) {
  const about = state.call.value;
  const first = axis === "keys" && about.kind !== "cross" ? about.first : 0; // the key of query 0
  const at = state.cell.value;
  const centre = at
    ? axis === "queries"
      ? at.query
      : shaded && about.kind !== "cross"
        ? at.query + first
        : at.key
    : 0;
  const [moved, setMoved] = useState(0);
  const start = Math.max(0, Math.min(centre + moved - AROUND, size - 2 * AROUND));
  const end = Math.min(size, start + 2 * AROUND);
  const looks = shaded?.value?.weights?.data;
  const looked = under?.value?.weights?.data;
  const most = looks ? Math.max(...looks.subarray(start, end), 1e-9) : 1;
  const mostUnder = looked
    ? Math.max(...looked.subarray(Math.max(0, start - first), Math.max(1, end - first)), 1e-9)
    : 1;
  const where = state.where.value;
  const choose = (i) => {
    const [, N, M] = about.shape;
    const query = axis === "queries" ? i : about.kind === "cross" ? (at?.query ?? 0) : i - first;
    const key =
      axis === "keys" ? i : about.kind === "cross" ? (at?.key ?? 0) : Math.min(M - 1, i + first);
    if (query >= 0 && query < N)
      state.cell.value = { query, key: about.kind === "cross" ? key : (at?.key ?? key) };
    setMoved(0);
  };
  const spans = [];
  for (let i = start; i < end; i++) {
    const weight = looks?.[i] ?? 0;
    const back = looked?.[i - first] ?? 0;
    const mine =
      axis === "queries"
        ? i === at?.query
        : about.kind === "cross"
          ? i === at?.key
          : i - first === at?.query;
    const style = `--share:${share(weight, most, state.colours.value).toFixed(3)};--under:${share(back, mostUnder, state.colours.value).toFixed(3)}`;
    spans.push(html`<button key=${i} class=${mine ? "token mine" : "token"} style=${style} title=${`${i}${looks ? ` · ${weight.toPrecision(3)}` : ""}`}
      onClick=${() => choose(i)}><bdi>${tokens.label(where, axis, i)}</bdi></button>`);
  }
  return html`<div class="run">
    ${start > 0 ? html`<button class="more" onClick=${() => setMoved(moved - AROUND)}>… ${start.toLocaleString("en")} before</button>` : null}
    ${spans}
    ${end < size ? html`<button class="more" onClick=${() => setMoved(moved + AROUND)}>${(size - end).toLocaleString("en")} after …</button>` : null}</div>`;
}

/** Two columns with lines between them, as thick as the weight. */
function Lines({ state, tokens, lines }) {
  const [, N, M] = state.call.value.shape;
  const part = lines.value?.weights;
  const where = state.where.value;
  const at = state.cell.value;
  const high = 20;
  const y = (i) => i * high + 14;
  const marks = [];
  if (part)
    for (let n = 0; n < N; n++)
      for (let m = 0; m < M; m++) {
        const weight = part.data[n * M + m];
        if (weight > 0.02 && (!at || !state.pinned.value || at.query === n))
          marks.push(
            html`<line x1="150" y1=${y(n) - 4} x2="330" y2=${y(m) - 4} style=${`stroke-opacity:${weight.toFixed(3)};stroke-width:${1 + 3 * weight}`} />`,
          );
      }
  const name = (
    axis,
    i,
    x,
    anchor,
  ) => html`<text x=${x} y=${y(i)} text-anchor=${anchor} class=${at && (axis === "queries" ? at.query : at.key) === i ? "mine" : ""}
    onClick=${() => {
      state.cell.value = {
        query: axis === "queries" ? i : (at?.query ?? 0),
        key: axis === "keys" ? i : (at?.key ?? 0),
      };
      state.pinned.value = true;
    }}>${tokens.label(where, axis, i)}</text>`;
  return html`<svg class="lines" viewBox=${`0 0 480 ${Math.max(N, M) * high + 10}`} role="img" aria-label="Lines from each query to the keys that it looks at">
    ${marks}${Array.from({ length: N }, (_, i) => name("queries", i, 142, "end"))}${Array.from({ length: M }, (_, i) => name("keys", i, 338, "start"))}</svg>`;
}
