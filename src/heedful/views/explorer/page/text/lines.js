// Two columns of tokens with lines between them, as thick as the weight (after BertViz, Vig 2019).

import { Word } from "../glossary.js";
import { html, signal, useEffect, useRef, useState } from "../html.js";
import { prepared, useWalk } from "../list_navigation.js";
import { COLOURS } from "../segments/segments.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Answer, Axis, Source } from "../types.js" */
/** @import { Reading } from "./chosen_token.js" */

const HIGH = 20; // pixels of a line of a column
const LEAST = 0.02; // weights below are not drawn
const BETWEEN = 220; // pixels from column to column

/** @param {{state: State, source: Source, tokens: Tokens, reading: Reading, id: string}} given */
export function Lines({ state, source, tokens, reading, id }) {
  const [, N, M] = state.call.value.shape;
  const [summed, setSummed] = useState(false);
  const answers = useParts(state, source, reading);
  const parts = answers.map((answer) => answer?.weights.data ?? null);
  const other = answers.find((answer) => answer && answer.word !== "exact");
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const heads = reading.heads.value;
  const each = reading.which.value === "several" && !summed && heads.length > 1;
  const at = state.cell.value;
  const first = reading.first.value;
  const token = reading.pointed.value;
  state.worn.value; // it is drawn in other colours then
  useEffect(() => {
    if (canvas.current)
      draw(canvas.current, parts, N, M, { only: token, strong: at?.query ?? -1, each });
  });
  const column = (/** @type {Axis} */ axis, /** @type {number} */ size) =>
    html`<${Column} state=${state} tokens=${tokens} reading=${reading} axis=${axis} size=${size} id=${`${id}-${axis}`} first=${first} />`;
  return html`<p class="quiet">Left the queries, right the keys. A line is as thick as the weight; those under ${LEAST} are left out. Point at a token for its lines alone.${other ? html` <${Word} answer=${other} />` : null}
    ${
      reading.which.value === "several" && heads.length > 1
        ? html` <label><input type="checkbox" checked=${summed} onChange=${() => setSummed(!summed)} /> their mean</label> ${summed ? null : heads.map((head, n) => html`<span class="swatch-head" style=${`--kind:var(--segment-${n % COLOURS})`}>head ${head}</span> `)}`
        : null
    }</p>
    <div class="columns" style=${`--between:${BETWEEN}px`}>${column("queries", N)}<canvas ref=${canvas} aria-hidden="true"></canvas>${column("keys", M)}</div>`;
}

/** The whole maps of the heads that are shown, as they come. @param {State} state @param {Source} source @param {Reading} reading */
function useParts(state, source, reading) {
  const known = useRef(/** @type {Map<string, Answer>} */ (new Map()));
  const version = useState(() => signal(0))[0];
  version.value;
  const [, N, M] = state.call.value.shape;
  const where = state.where.value;
  const heads = reading.heads.value;
  useEffect(() => {
    const stop = new AbortController();
    for (const head of heads) {
      if (known.current.has(`${where} ${head}`)) continue;
      const about = { call: where, head, queries: `0-${N}`, keys: `0-${M}` };
      source.ask("part", about, stop.signal).then(
        (found) => {
          known.current.set(`${where} ${head}`, found);
          version.value++;
        },
        () => {},
      );
    }
    return () => stop.abort();
  }, [where, heads.join()]);
  return heads.map((head) => known.current.get(`${where} ${head}`) ?? null);
}

/** @param {{state: State, tokens: Tokens, reading: Reading, axis: Axis, size: number, id: string, first: number}} given */
function Column({ state, tokens, reading, axis, size, id, first }) {
  const where = state.where.value;
  const at = state.cell.value;
  const mine = at ? (axis === "queries" ? at.query : at.key) : null;
  const point = (/** @type {number | null} */ i) => {
    reading.pointed.value = i === null ? null : { axis, at: i };
  };
  const choose = (/** @type {number} */ i) => {
    const other = at ?? { query: Math.max(0, i - first), key: i + first };
    const cell = axis === "queries" ? { ...other, query: i } : { ...other, key: i };
    state.look(state.inside(cell), true);
  };
  /** @param {string} key @param {number} now @param {KeyboardEvent} event */
  const moved = (key, now, event) => {
    const by = { ArrowUp: -1, ArrowDown: 1, Home: -size, End: size }[key];
    if (by) return Math.max(0, Math.min(size - 1, now + by));
    if (key !== "ArrowLeft" && key !== "ArrowRight") return null;
    const { parentElement: both } = /** @type {HTMLElement} */ (event.currentTarget);
    const lists = both?.querySelectorAll('[role="listbox"]');
    /** @type {HTMLElement | undefined} */ (lists?.[key === "ArrowLeft" ? 0 : 1])?.focus();
    return now;
  };
  const walk = useWalk(mine ?? 0, moved, point, choose);
  const cursor = walk.cursor.value;
  const now = cursor ?? mine ?? 0;
  return html`<div class=${`column ${axis}`} role="listbox" tabindex="0" aria-label=${axis} aria-activedescendant=${`${id}-${now}`} ...${walk.on} onPointerLeave=${() => point(null)}>
    ${Array.from(
      { length: size },
      (
        _,
        i,
      ) => html`<div key=${i} id=${`${id}-${i}`} role="option" aria-selected=${i === mine} aria-label=${`${tokens.label(where, axis, i)}, ${i}`} class=${`${i === mine ? "mine" : ""} ${i === cursor ? "cursor" : ""}`}
      onPointerEnter=${(/** @type {PointerEvent} */ e) => e.pointerType === "mouse" && point(i)} onClick=${() => choose(i)}><bdi>${tokens.label(where, axis, i)}</bdi><small>${i}</small></div>`,
    )}</div>`;
}

/**
 * @param {HTMLCanvasElement} canvas @param {(Float32Array | null)[]} parts a map of each head
 * @param {number} N @param {number} M
 * @param {{only: {axis: Axis, at: number} | null, strong: number, each: boolean}} shown lines of
 *   one token alone; the query whose lines are strong; whether each head has a colour, else their
 *   mean is drawn
 */
function draw(canvas, parts, N, M, { only, strong, each }) {
  const high = Math.max(N, M) * HIGH;
  const wide = canvas.clientWidth;
  canvas.style.height = `${high}px`;
  const { context, ink } = prepared(canvas, wide, high);
  const maps = each ? parts : [mean(parts)];
  maps.forEach((map, n) => {
    if (!map) return; // it is still to come
    context.strokeStyle = ink(each ? `segment-${n % COLOURS}` : "link");
    const shift = each ? (n - (maps.length - 1) / 2) * Math.min(3, 14 / maps.length) : 0;
    for (let q = 0; q < N; q++) {
      if (only?.axis === "queries" && only.at !== q) continue;
      for (let k = 0; k < M; k++) {
        const weight = map[q * M + k];
        if (!(weight >= LEAST) || (only?.axis === "keys" && only.at !== k)) continue;
        context.globalAlpha = only || q === strong ? 0.3 + 0.7 * weight : 0.04 + 0.6 * weight;
        context.lineWidth = 0.6 + 4.4 * weight;
        const [from, to] = [(q + 0.5) * HIGH + shift, (k + 0.5) * HIGH + shift];
        context.beginPath();
        context.moveTo(0, from);
        context.bezierCurveTo(wide * 0.4, from, wide * 0.6, to, wide, to);
        context.stroke();
      }
    }
  });
}

/** Of all heads: none of some of them. @param {(Float32Array | null)[]} maps */
function mean(maps) {
  const all = maps.filter((map) => map !== null);
  if (all.length < maps.length || !all.length) return null;
  if (all.length === 1) return all[0];
  return all[0].map((_, i) => all.reduce((sum, map) => sum + map[i], 0) / all.length);
}
