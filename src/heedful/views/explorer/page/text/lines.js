// Two columns of tokens with lines; larger weights have thicker lines (after BertViz, Vig 2019).
import { Precision } from "../glossary.js";
import { html, signal, useEffect, useRef, useState } from "../html.js";
import { prepareCanvas, useKeyboardCursor } from "../list_navigation.js";
import { download } from "../map/save.js";
import { SvgPen } from "../map/svg_canvas.js";
import { COLOURS } from "../segments/segments.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Answer, Axis, Source } from "../types.js" */
/** @import { ChosenToken } from "./chosen_token.js" */

const ROW_HEIGHT = 20; // pixels per token
const SMALLEST = 0.02; // smaller weights are not drawn

/** @param {{state: State, source: Source, tokens: Tokens, chosenToken: ChosenToken, id: string}} props */
export function Lines({ state, source, tokens, chosenToken, id }) {
  const [, N, M] = state.call.value.shape;
  const [isMean, setMean] = useState(false);
  const answers = useMaps(state, source, chosenToken);
  const maps = answers.map((answer) => answer?.weights.data ?? null);
  const inexact = answers.find((answer) => answer && answer.word !== "exact");
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const heads = chosenToken.heads.value;
  const hasColours = chosenToken.headChoice.value === "several" && !isMean && heads.length > 1;
  const cell = state.cell.value;
  const first = chosenToken.first.value;
  const token = chosenToken.pointed.value;
  state.activeTheme.value; // read here, so that a change of the theme redraws
  const options = { only: token, strong: cell?.query ?? -1, hasColours };
  useEffect(() => {
    if (!canvas.current) return;
    const [wide, high] = [canvas.current.clientWidth, Math.max(N, M) * ROW_HEIGHT];
    canvas.current.style.height = `${high}px`;
    const { context, ink } = prepareCanvas(canvas.current, wide, high);
    draw(context, ink, wide, maps, N, M, options);
  });
  const save = () => {
    if (!canvas.current) return;
    const style = getComputedStyle(canvas.current);
    const ink = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim();
    const names = (/** @type {Axis} */ axis, /** @type {number} */ size) =>
      Array.from({ length: size }, (_, i) => tokens.label(state.callId.value, axis, i));
    saveSvg(ink, [names("queries", N), names("keys", M)], (pen, wide) =>
      draw(/** @type {any} */ (pen), ink, wide, maps, N, M, options),
    );
  };
  const column = (/** @type {Axis} */ axis, /** @type {number} */ size) =>
    html`<${Column} state=${state} tokens=${tokens} chosenToken=${chosenToken} axis=${axis} size=${size} id=${`${id}-${axis}`} first=${first} />`;
  return html`<p class="quiet">Queries are on the left, keys on the right. The larger a weight, the thicker its line; weights below ${SMALLEST} are omitted. Point at a token to see only the lines of that token. <button type="button" onClick=${save}>save as SVG</button>${inexact ? html` <${Precision} answer=${inexact} />` : null}
    ${
      chosenToken.headChoice.value === "several" && heads.length > 1
        ? html` <label><input type="checkbox" checked=${isMean} onChange=${() => setMean(!isMean)} /> mean of the heads</label> ${isMean ? null : heads.map((head, n) => html`<span class="swatch-head" style=${`--kind:var(--segment-${n % COLOURS})`}>head ${head}</span> `)}`
        : null
    }</p>
    <div class="columns">${column("queries", N)}<canvas ref=${canvas} aria-hidden="true"></canvas>${column("keys", M)}</div>`;
}

/** The full maps of the selected heads; null until they arrive. @param {State} state @param {Source} source @param {ChosenToken} chosenToken */
function useMaps(state, source, chosenToken) {
  const cache = useRef(/** @type {Map<string, Answer>} */ (new Map()));
  const version = useState(() => signal(0))[0];
  version.value;
  const [, N, M] = state.call.value.shape;
  const callId = state.callId.value;
  const heads = chosenToken.heads.value;
  useEffect(() => {
    const stop = new AbortController();
    for (const head of heads) {
      if (cache.current.has(`${callId} ${head}`)) continue;
      const about = { call: callId, head, queries: `0-${N}`, keys: `0-${M}` };
      source.ask("part", about, stop.signal).then(
        (answer) => {
          cache.current.set(`${callId} ${head}`, answer);
          version.value++;
        },
        () => {},
      );
    }
    return () => stop.abort();
  }, [callId, heads.join()]);
  return heads.map((head) => cache.current.get(`${callId} ${head}`) ?? null);
}

/** @param {{state: State, tokens: Tokens, chosenToken: ChosenToken, axis: Axis, size: number, id: string, first: number}} props */
function Column({ state, tokens, chosenToken, axis, size, id, first }) {
  const callId = state.callId.value;
  const cell = state.cell.value;
  const chosen = cell ? (axis === "queries" ? cell.query : cell.key) : null;
  const point = (/** @type {number | null} */ i) => {
    chosenToken.pointed.value = i === null ? null : { axis, index: i };
  };
  const choose = (/** @type {number} */ i) => {
    const base = cell ?? { query: Math.max(0, i - first), key: i + first };
    const target = axis === "queries" ? { ...base, query: i } : { ...base, key: i };
    state.selectCell(state.clamp(target), true);
  };
  /** @param {string} key @param {number} now @param {KeyboardEvent} event */
  const destination = (key, now, event) => {
    const step = { ArrowUp: -1, ArrowDown: 1, Home: -size, End: size }[key];
    if (step) return Math.max(0, Math.min(size - 1, now + step));
    if (key !== "ArrowLeft" && key !== "ArrowRight") return null;
    const { parentElement: columns } = /** @type {HTMLElement} */ (event.currentTarget);
    const lists = columns?.querySelectorAll('[role="listbox"]');
    /** @type {HTMLElement | undefined} */ (lists?.[key === "ArrowLeft" ? 0 : 1])?.focus();
    return now;
  };
  const navigation = useKeyboardCursor(chosen ?? 0, destination, point, choose);
  const cursor = navigation.cursor.value;
  const now = cursor ?? chosen ?? 0;
  return html`<div class=${`column ${axis}`} role="listbox" tabindex="0" aria-label=${axis} aria-activedescendant=${`${id}-${now}`} ...${navigation.handlers} onPointerLeave=${() => point(null)}>
    ${Array.from(
      { length: size },
      (
        _,
        i,
      ) => html`<div key=${i} id=${`${id}-${i}`} role="option" aria-selected=${i === chosen} aria-label=${`${tokens.label(callId, axis, i)}, ${i}`} class=${`${i === chosen ? "mine" : ""} ${i === cursor ? "cursor" : ""}`}
      onPointerEnter=${(/** @type {PointerEvent} */ e) => e.pointerType === "mouse" && point(i)} onClick=${() => choose(i)}><bdi>${tokens.label(callId, axis, i)}</bdi><small>${i}</small></div>`,
    )}</div>`;
}

/** Save the lines between two columns of names. @param {(name: string) => string} ink @param {[string[], string[]]} names @param {(pen: SvgPen, wide: number) => void} drawLines */
function saveSvg(ink, names, drawLines) {
  const [lines, column] = [260, 180]; // pixels
  const pen = new SvgPen({ line: ink("line"), panel: ink("panel") });
  const high = Math.max(...names.map(({ length }) => length)) * ROW_HEIGHT;
  pen.fillStyle = ink("ground");
  pen.fillRect(0, 0, lines + 2 * column, high);
  pen.fillStyle = ink("text");
  pen.textBaseline = "middle";
  names.forEach((all, side) => {
    pen.textAlign = side ? "left" : "right";
    const x = side ? column + lines + 6 : column - 6;
    for (const [i, name] of all.entries()) pen.fillText(name, x, (i + 0.5) * ROW_HEIGHT);
  });
  pen.save();
  pen.translate(column, 0);
  drawLines(pen, lines);
  pen.restore();
  const text = pen.text(lines + 2 * column, high);
  download(new Blob([text], { type: "image/svg+xml" }), "lines.svg");
}

/**
 * @param {CanvasRenderingContext2D} context @param {(name: string) => string} ink @param {number} wide
 * @param {(Float32Array | null)[]} maps of the heads; null: not loaded
 * @param {number} N @param {number} M
 * @param {{only: {axis: Axis, index: number} | null, strong: number, hasColours: boolean}} options
 *   `only`: draw the lines of this token (null: all lines); `strong`: the query with darker lines;
 *   `hasColours`: draw each head in a colour, instead of the mean over the heads
 */
function draw(context, ink, wide, maps, N, M, { only, strong, hasColours }) {
  const drawn = hasColours ? maps : [mean(maps)];
  drawn.forEach((map, n) => {
    if (!map) return; // not loaded yet
    context.strokeStyle = ink(hasColours ? `segment-${n % COLOURS}` : "link");
    const shift = hasColours ? (n - (drawn.length - 1) / 2) * Math.min(3, 14 / drawn.length) : 0;
    for (let q = 0; q < N; q++) {
      if (only?.axis === "queries" && only.index !== q) continue;
      for (let k = 0; k < M; k++) {
        const weight = map[q * M + k];
        if (!(weight >= SMALLEST) || (only?.axis === "keys" && only.index !== k)) continue;
        context.globalAlpha = only || q === strong ? 0.3 + 0.7 * weight : 0.04 + 0.6 * weight;
        context.lineWidth = 0.6 + 4.4 * weight;
        const [from, to] = [(q + 0.5) * ROW_HEIGHT + shift, (k + 0.5) * ROW_HEIGHT + shift];
        context.beginPath();
        context.moveTo(0, from);
        context.bezierCurveTo(wide * 0.4, from, wide * 0.6, to, wide, to);
        context.stroke();
      }
    }
  });
}

/** The mean of all maps; null until all are loaded. @param {(Float32Array | null)[]} maps */
function mean(maps) {
  const loaded = maps.filter((map) => map !== null);
  if (loaded.length < maps.length || !loaded.length) return null;
  if (loaded.length === 1) return loaded[0];
  return loaded[0].map((_, i) => loaded.reduce((sum, map) => sum + map[i], 0) / loaded.length);
}
