// The weight of the pinned cell in every head of the text: a grid of layers × heads, and a sorted list.
import { title } from "../heads/scores.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { prepareCanvas, useWidth } from "../list_navigation.js";
import { share, table } from "../map/colours.js";
import { formatWeight } from "../number_format.js";
import { liveAnswer } from "../request.js";

/** @import { State } from "../state.js" */
/** @import { LiveAnswer, Source } from "../types.js" */
/** @typedef {{call: number, head: number, weight: number}} HeadWeight */

const [LISTED, LARGEST, GUTTER] = [5, 18, 16]; // heads; pixels of a head, and of a layer's number

/** The weights of the pinned cell in all calls with maps of the same shape. @param {State} state @param {Source} source */
export function pinnedWeights(state, source) {
  /** @type {Source["ask"]} */
  const ask = async (name, { path, query, key } = {}, signal = undefined) => {
    const calls = state.calls.peek();
    const size = String(state.call.peek().shape.slice(1));
    const answers = calls.map(async ({ heads, shape }, call) => {
      if (String(shape.slice(1)) !== size) return [];
      const callId = state.callIdOf([...path, call]);
      const { weights } = await source.ask(name, { call: callId, query, key }, signal);
      return heads.map((head, h) => ({ call, head, weight: weights.data[h] }));
    });
    const heads = await Promise.all(answers.map((answer) => answer.catch(() => []))); // of failed calls, none
    return { heads: heads.flat() };
  };
  return liveAnswer(
    { ask },
    () => {
      const [path, cell] = [state.path.value.slice(0, 2), state.cell.value];
      const fields = { path, ...cell, size: state.callId.value };
      return state.pinned.value && cell ? ["all_heads", fields] : null;
    },
    120,
  );
}

/** @param {{state: State, liveAnswer: LiveAnswer}} props */
export function AllHeads({ state, liveAnswer }) {
  const [isLong, setLong] = useState(false);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const wide = useWidth(box, 280);
  state.activeTheme.value; // read here, so that a change of the theme redraws
  const { request, heads: all = [] } = liveAnswer.value ?? {};
  const { query, key } = state.cell.value ?? {};
  const place = [...state.path.value.slice(0, 2), query, key];
  /** @type {HeadWeight[]} */
  const heads = String([request?.path, request?.query, request?.key]) === String(place) ? all : [];
  const rows = [...new Set(heads.map(({ call }) => call))];
  const columns = [...new Set(heads.map(({ head }) => head))].sort((a, b) => a - b);
  const size = Math.min(LARGEST, (wide - GUTTER) / Math.max(1, columns.length));
  const high = Math.max(8, Math.min(size, 14));
  useEffect(() => {
    if (!canvas.current) return;
    const { context, ink } = prepareCanvas(canvas.current, wide, rows.length * high);
    const colours = table(ink("dark") === "1");
    context.font = "10px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = ink("quiet");
    rows.forEach((call, row) => {
      const layer = state.calls.value[call]?.layer; // another text may be open meanwhile
      context.fillText(String(layer ?? call), 0, (row + 0.5) * high, GUTTER - 2);
    });
    for (const { call, head, weight } of heads) {
      const word = colours[Math.round(share(weight, 1, "sqrt") * 255)] ?? colours[256];
      const [x, y] = [GUTTER + columns.indexOf(head) * size, rows.indexOf(call) * high];
      context.fillStyle = `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;
      context.fillRect(x, y, size - 1, high - 1);
      if (call !== state.path.value[2] || head !== state.head.value) continue;
      context.strokeStyle = ink("mark");
      context.lineWidth = 2;
      context.strokeRect(x, y, size - 1, high - 1);
    }
  });
  if (heads.length < 2) return null;
  const under = (/** @type {MouseEvent} */ event) => {
    const call = rows[Math.floor(event.offsetY / high)];
    const column = columns[Math.floor((event.offsetX - GUTTER) / size)];
    return heads.find((entry) => entry.call === call && entry.head === column);
  };
  const name = (/** @type {HeadWeight} */ { call, head }) =>
    title({ about: state.calls.value[call], head });
  const point = (/** @type {MouseEvent} */ event) => {
    const entry = under(event);
    const text = entry ? `${name(entry)}: ${formatWeight(entry.weight)}` : "";
    canvas.current?.setAttribute("title", text);
  };
  const show = (/** @type {HeadWeight | undefined} */ entry) =>
    entry && state.show(entry.call, entry.head);
  const sorted = heads.toSorted((a, b) => (b.weight || 0) - (a.weight || 0));
  return html`<div class="all-heads" ref=${box}><h3>this cell in all ${heads.length.toLocaleString("en")} heads</h3>
    <canvas ref=${canvas} style=${`width:${wide}px;height:${rows.length * high}px`} aria-hidden="true" onPointerMove=${point} onClick=${(/** @type {MouseEvent} */ e) => show(under(e))}></canvas>
    <ol>${sorted.slice(0, isLong ? sorted.length : LISTED).map((entry) => html`<li key=${`${entry.call} ${entry.head}`}><button type="button" aria-current=${entry.call === state.path.value[2] && entry.head === state.head.value ? "true" : undefined} onClick=${() => show(entry)}><span>${name(entry)}</span><b>${Number.isNaN(entry.weight) ? "–" : formatWeight(entry.weight)}</b></button></li>`)}</ol>
    ${heads.length > LISTED ? html`<button type="button" class="plain" aria-expanded=${isLong} onClick=${() => setLong(!isLong)}>${isLong ? "fewer" : "more"}</button>` : null}</div>`;
}
