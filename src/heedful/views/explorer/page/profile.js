// The row or the column of the chosen cell as a curve over the whole text.
import { html, useEffect, useRef, useState } from "./html.js";
import { digits } from "./weight.js";

/** The largest of each of `count` pieces. @param {Float32Array} data */
export function pieces(data, count) {
  const size = Math.max(1, data.length / count);
  const found = new Float32Array(Math.ceil(data.length / size));
  for (let i = 0; i < data.length; i++) {
    const at = Math.min(found.length - 1, Math.floor(i / size));
    if (data[i] > found[at]) found[at] = data[i];
  }
  return found;
}

export function Profile({ state, row, column, tokens }) {
  const [axis, setAxis] = useState("row");
  const canvas = useRef(null);
  const answer = (axis === "row" ? row : column).value;
  const at = state.cell.value;
  const data = answer?.weights?.data;
  useEffect(() => draw(canvas.current, data, axis === "row" ? at?.key : at?.query));
  if (!at) return null;
  const where = state.where.value;
  const name =
    axis === "row" ? tokens.label(where, "queries", at.query) : tokens.label(where, "keys", at.key);
  const move = (event) => {
    if (!data) return;
    const box = canvas.current.getBoundingClientRect();
    const place = Math.min(
      data.length - 1,
      Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * data.length)),
    );
    state.cell.value =
      axis === "row" ? { query: at.query, key: place } : { query: place, key: at.key };
  };
  return html`<section class="profile" aria-label="Profile">
    <div class="choice" role="group" aria-label="Row or column">
      ${[
        ["row", "where it looks"],
        ["column", "who looks at it"],
      ].map(
        ([id, says]) =>
          html`<button aria-pressed=${axis === id} onClick=${() => setAxis(id)}>${says}</button>`,
      )}
      <span><bdi>${name}</bdi> <small>${axis === "row" ? at.query : at.key}</small>${data ? html` · largest ${digits(Math.max(...pieces(data, 2000)))}` : ""}</span></div>
    <canvas ref=${canvas} onClick=${move}></canvas></section>`;
}

function draw(canvas, data, mark) {
  if (!canvas) return;
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  if (!data || !width) return;
  const context = canvas.getContext("2d");
  const look = getComputedStyle(canvas);
  context.scale(ratio, ratio);
  const found = pieces(data, Math.max(1, Math.floor(width)));
  const most = Math.max(...found, 1e-12);
  context.fillStyle = look.getPropertyValue("--curve");
  const wide = width / found.length;
  found.forEach((weight, i) => {
    const high = (weight / most) * (height - 4);
    context.fillRect(i * wide, height - high, Math.max(1, wide - (wide > 6 ? 1 : 0)), high);
  });
  context.fillStyle = look.getPropertyValue("--mark");
  context.fillRect(((mark + 0.5) / data.length) * width - 1, 0, 2, height);
}
