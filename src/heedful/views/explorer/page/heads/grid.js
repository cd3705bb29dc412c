// A small picture of every head, layers down. One canvas as large as what is in view is painted
// anew as it scrolls, so that three thousand heads are as light as sixteen.

import { html, useEffect, useRef, useState } from "../html.js";
import { nearest, prepared, useWalk, useWidth } from "../list_navigation.js";
import { painted, share, table } from "../map/colours.js";
import { Colours } from "../map/scale.js";
import { callTitle, groups, KINDS, OPEN, same, spoken } from "./scores.js";

/** @import { State } from "../state.js" */
/** @import { Heads, One } from "./scores.js" */
/** @typedef {{one: One, x: number, y: number}} Place */
/** @typedef {{text: string, y: number, high: number}} Label */
/** @typedef {{size: number, places: Place[], labels: Label[], high: number, across: number}} Layout */

const [LEAST, MOST] = [21, 54]; // pixels of a picture
const GUTTER = 20; // for a layer's number
const ABOVE = 17; // for a name that is longer than a number

/**
 * @typedef {object} Given
 * @property {State} state
 * @property {Heads} heads
 * @property {One[]} shown in their order
 * @property {boolean} layered whether a line is a call
 * @property {"picture" | "kind" | "score"} paint
 * @property {string} score
 * @property {(one: One | null) => void} point what is under the pointer
 * @property {string} id a name of its own in the document
 */

/** @param {Given} given */
export function Grid(given) {
  const { state, heads, shown, layered, score, point, id } = given;
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const wide = useWidth(box, 280);
  const [top, setTop] = useState(0);
  state.worn.value; // it is drawn in other colours then
  const [over, setOver] = useState(/** @type {One | null} */ (null));
  const layout = laid(shown, wide, layered);
  const mine = layout.places.findIndex(({ one }) => isMine(one, state));
  const { cursor, on } = useWalk(
    Math.max(0, mine),
    (key, n) => moved(key, layout, n),
    (n) => {
      const place = n === null ? null : layout.places[n];
      point(place?.one ?? null);
      if (!place || !box.current) return;
      const { clientHeight: high } = box.current;
      if (place.y < top) box.current.scrollTop = place.y - ABOVE;
      if (place.y + layout.size > top + high) box.current.scrollTop = place.y + layout.size - high;
    },
    (n) => layout.places[n] && choose(state, layout.places[n].one),
  );
  const at = cursor.value;
  const now = at === null ? mine : Math.min(at, layout.places.length - 1);
  const focused = at === null ? null : layout.places[now]?.one;

  useEffect(() => {
    const high = box.current?.clientHeight ?? 300;
    const seen = layout.places.filter(
      ({ y }) => y + layout.size > top - 100 && y < top + high + 100,
    );
    heads.want([...new Set(seen.map(({ one }) => one.call))]);
  });
  useEffect(() => {
    if (canvas.current && box.current)
      draw(canvas.current, box.current, layout, { ...given, top, over, focused });
  });
  const under = (/** @type {PointerEvent | MouseEvent} */ event) => {
    const from = /** @type {HTMLElement} */ (box.current).getBoundingClientRect();
    const [x, y] = [event.clientX - from.left, event.clientY - from.top + top];
    const { size } = layout;
    return layout.places.find(
      (one) => x >= one.x && x < one.x + size && y >= one.y && y < one.y + size,
    );
  };
  const look = (/** @type {One | null} */ one) => {
    if (one === over) return;
    setOver(one);
    point(one);
  };
  const said = layout.places[now]?.one;
  return html`<div class="grid" ref=${box} role="listbox" tabindex="0" aria-label="Heads, a small picture each"
    aria-activedescendant=${said ? id : undefined} onScroll=${(/** @type {Event} */ e) => setTop(/** @type {HTMLElement} */ (e.target).scrollTop)}
    ...${on}
    onPointerMove=${(/** @type {PointerEvent} */ e) => look(under(e)?.one ?? null)} onPointerLeave=${() => look(null)}
    onClick=${(/** @type {MouseEvent} */ e) => {
      const place = under(e);
      if (place) choose(state, place.one);
      cursor.value = null;
    }}>
    ${said ? html`<span class="hidden" role="option" id=${id} aria-selected=${isMine(said, state)} aria-posinset=${now + 1} aria-setsize=${layout.places.length}>${spoken(said, score)}</span>` : html`<span class="hidden" role="option" aria-selected="false">no head</span>`}
    <div style=${`height:${layout.high}px`}><canvas ref=${canvas} aria-hidden="true"></canvas></div></div>`;
}

/** @param {One} one @param {State} state */
export const isMine = (one, state) =>
  one.call === state.at.value[2] && one.head === state.head.value;

/** Show a head. @param {State} state @param {One} one */
export const choose = (state, one) => state.show(one.call, one.head);

/** Where each picture lies. @param {One[]} shown @param {number} wide @param {boolean} layered @returns {Layout} */
function laid(shown, wide, layered) {
  const lists = layered ? groups(shown, (one) => one.call) : [shown];
  const short = lists.every(([one]) => one && callTitle(one.about) === `layer ${one.about.layer}`);
  const left = layered && short ? GUTTER : 0;
  const room = Math.max(LEAST, wide - left);
  const most = Math.max(1, ...lists.map((group) => group.length));
  const lines = Math.ceil(most / Math.floor(room / LEAST));
  const size = Math.max(
    LEAST,
    Math.min(layered ? MOST : 34, Math.floor(room / Math.ceil(most / lines))),
  );
  const across = Math.max(1, Math.floor(room / size));
  /** @type {Layout} */
  const found = { size, places: [], labels: [], high: 0, across };
  for (const group of lists) {
    if (!group.length) continue;
    if (layered) {
      const [text, high] = short
        ? [String(group[0].about.layer), size]
        : [callTitle(group[0].about), ABOVE];
      found.labels.push({ text, y: found.high, high });
      if (!short) found.high += ABOVE;
    }
    group.forEach((one, n) => {
      const [x, y] = [left + (n % across) * size, found.high + Math.floor(n / across) * size];
      found.places.push({ one, x, y });
    });
    found.high += Math.ceil(group.length / across) * size;
  }
  return found;
}

/** The place to which a key leads; null where it is none that moves. @param {string} key @param {Layout} layout @param {number} now */
function moved(key, layout, now) {
  const { places } = layout;
  const last = places.length - 1;
  if (key === "Home") return 0;
  if (key === "End") return last;
  if (key === "ArrowLeft") return Math.max(0, now - 1);
  if (key === "ArrowRight") return Math.min(last, now + 1);
  const down = key === "ArrowDown" ? 1 : key === "ArrowUp" ? -1 : 0;
  if (!down) return null;
  return nearest(places, now, down);
}

/**
 * @param {HTMLCanvasElement} canvas @param {HTMLElement} box @param {Layout} layout
 * @param {Given & {top: number, over: One | null, focused: One | null | undefined}} given
 */
function draw(canvas, box, layout, given) {
  const [wide, high] = [box.clientWidth, Math.min(box.clientHeight, layout.high)];
  const { context, ink } = prepared(canvas, wide, high);
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${high}px`;
  const dark = ink("dark") === "1";
  context.translate(0, -given.top);
  context.textBaseline = "middle";
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = ink("quiet");
  for (const label of layout.labels)
    if (label.y + label.high > given.top && label.y < given.top + high)
      context.fillText(label.text, 2, label.y + label.high / 2, wide - 4);
  const { size } = layout;
  const colours = table(dark);
  const most = OPEN.includes(given.score)
    ? Math.max(...given.shown.map((one) => one.values[given.score] || 0), 1e-9)
    : 1;
  for (const { one, x, y } of layout.places) {
    if (y + size < given.top || y > given.top + high) continue;
    const inner = size - 3;
    context.fillStyle = ink("line");
    if (given.paint === "picture") picture(context, one, x + 1, y + 1, inner, colours, dark);
    else if (given.paint === "kind") {
      context.fillStyle = KINDS[one.kind] ?? ink("line");
      context.fillRect(x + 1, y + 1, inner, inner);
    } else heat(context, one.values[given.score], most, x + 1, y + 1, inner, colours, ink);
    if (given.paint !== "kind" && KINDS[one.kind]) {
      context.fillStyle = KINDS[one.kind];
      context.fillRect(x + 1, y + size - 5, inner, 3);
    }
    const mark = isMine(one, given.state)
      ? ink("mark")
      : given.focused && same(one, given.focused)
        ? ink("link")
        : given.over && same(one, given.over)
          ? ink("quiet")
          : "";
    if (!mark) continue;
    context.strokeStyle = mark;
    context.lineWidth = given.over && same(one, given.over) && !isMine(one, given.state) ? 1 : 2;
    context.strokeRect(x + 0.5, y + 0.5, size - 2, size - 2);
  }
}

/** The colours of a score, from 0 to its end. @param {{most: number, dark: boolean}} given */
export const Scale = ({ most, dark }) =>
  html`<span class="scale">0<${Colours} colours=${table(dark)} />${+most.toPrecision(3)}</span>`;

/** Pictures as they were painted, of an answer. @type {WeakMap<import("../types.js").Answer, Map<string, OffscreenCanvas>>} */
const PAINTED = new WeakMap();

/**
 * A head's map, small. The first key is left out of the scale, else nothing else would be seen.
 * @param {CanvasRenderingContext2D} context @param {One} one @param {number} x @param {number} y
 * @param {number} size @param {Uint32Array} colours @param {boolean} dark
 */
function picture(context, one, x, y, size, colours, dark) {
  const { small } = one.known;
  if (!small) return context.fillRect(x, y, size, size);
  const [, r, c] = small.maps.shape;
  const made = PAINTED.get(small) ?? new Map();
  PAINTED.set(small, made);
  const name = `${one.i} ${dark}`;
  if (!made.has(name)) {
    const data = small.maps.data.subarray(one.i * r * c, (one.i + 1) * r * c);
    let highest = 0;
    for (let i = 0; i < data.length; i++) if (i % c && data[i] > highest) highest = data[i];
    const image = new OffscreenCanvas(c, r);
    const pixels = painted(data, colours, highest || 1, "sqrt", 0);
    image
      .getContext("2d")
      ?.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), c, r), 0, 0);
    made.set(name, image);
  }
  context.imageSmoothingEnabled = false;
  const long = Math.max(r, c);
  context.fillStyle = dark ? "#24272c" : "#eef0f2";
  context.fillRect(x, y, size, size);
  context.drawImage(made.get(name), x, y, (size * c) / long, (size * r) / long);
}

/**
 * A score as a colour, and as a number where there is room.
 * @param {CanvasRenderingContext2D} context @param {number} value @param {number} most
 * @param {number} x @param {number} y @param {number} size @param {Uint32Array} colours
 * @param {(name: string) => string} ink
 */
function heat(context, value, most, x, y, size, colours, ink) {
  context.fillRect(x, y, size, size);
  if (!Number.isFinite(value)) return;
  const part = share(value, most, "linear");
  const word = colours[Math.round(part * 255)];
  context.fillStyle = `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;
  context.fillRect(x, y, size, size);
  if (size < 26) return;
  context.fillStyle = part > 0.45 ? ink("ground") : ink("text");
  context.textAlign = "center";
  context.fillText(value < 9.95 ? value.toFixed(2) : value.toFixed(0), x + size / 2, y + size / 2);
  context.textAlign = "left";
}
