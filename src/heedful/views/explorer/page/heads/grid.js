// A grid of small pictures of all heads; unless the heads are sorted, each call begins a new row. One
// canvas, as large as the visible part, is repainted on scrolling: thousands of heads stay fast.
import { html, useEffect, useRef, useState } from "../html.js";
import { nearest, prepareCanvas, useKeyboardCursor, useWidth } from "../list_navigation.js";
import { diverging, paintPixels, share, table } from "../map/colours.js";
import { download } from "../map/save.js";
import { Colours } from "../map/scale.js";
import {
  callTitle,
  DELTA,
  groups,
  headText,
  isSame,
  KINDS,
  scaleEnd,
  scoreText,
} from "./scores.js";

/** @import { State } from "../state.js" */
/** @import { HeadEntry, Heads } from "./scores.js" */
/** @typedef {{entry: HeadEntry, x: number, y: number}} Place */
/** @typedef {{text: string, y: number, high: number}} Label */
/** @typedef {{size: number, places: Place[], labels: Label[], high: number, across: number}} Layout */

const [SMALLEST, LARGEST, ENLARGED] = [21, 54, 150]; // pixels of a picture
const LABEL = 44; // pixels of the label of a picture
const GUTTER = 20; // pixels for a layer's number
const ABOVE = 17; // pixels for a call's longer title above its pictures

/**
 * @typedef {object} Props
 * @property {State} state
 * @property {Heads} heads
 * @property {HeadEntry[]} entries the heads in the order of the grid
 * @property {boolean} layered whether each call begins a new row
 * @property {"picture" | "kind" | "score"} paint
 * @property {string} score
 * @property {(entry: HeadEntry | null) => void} point called with the head under the pointer
 * @property {string} id unique in the document
 */

/** @param {Props} props */
export function Grid(props) {
  const { state, heads, entries, layered, score, point, id } = props;
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const wide = useWidth(box, 280);
  const [top, setTop] = useState(0);
  state.activeTheme.value; // read here, so that a change of the theme redraws
  const [hovered, setHovered] = useState(/** @type {HeadEntry | null} */ (null));
  const largest = state.largeHeads.value ? ENLARGED : layered ? LARGEST : 34;
  const layout = layoutOf(entries, wide, layered, largest);
  const chosen = layout.places.findIndex(({ entry }) => isChosen(entry, state));
  const { cursor, handlers } = useKeyboardCursor(
    Math.max(0, chosen),
    (key, n) => destination(key, layout, n),
    (n) => {
      const place = n === null ? null : layout.places[n];
      point(place?.entry ?? null);
      if (!place || !box.current) return;
      const { clientHeight: high } = box.current;
      if (place.y < top) box.current.scrollTop = place.y - ABOVE;
      if (place.y + layout.size > top + high) box.current.scrollTop = place.y + layout.size - high;
    },
    (n) => layout.places[n] && choose(state, layout.places[n].entry),
  );
  const index = cursor.value;
  const now = index === null ? chosen : Math.min(index, layout.places.length - 1);
  const focused = index === null ? null : layout.places[now]?.entry;

  useEffect(() => {
    const high = box.current?.clientHeight ?? 300;
    const visible = layout.places.filter(
      ({ y }) => y + layout.size > top - 100 && y < top + high + 100,
    );
    heads.request([...new Set(visible.map(({ entry }) => entry.call))]);
  });
  useEffect(() => {
    if (canvas.current && box.current)
      draw(canvas.current, box.current, layout, { ...props, top, hovered, focused });
  });
  const placeUnder = (/** @type {PointerEvent | MouseEvent} */ event) => {
    const from = /** @type {HTMLElement} */ (box.current).getBoundingClientRect();
    const [x, y] = [event.clientX - from.left, event.clientY - from.top + top];
    const { size } = layout;
    return layout.places.find(
      (place) => x >= place.x && x < place.x + size && y >= place.y && y < place.y + size,
    );
  };
  const hover = (/** @type {HeadEntry | null} */ entry) => {
    if (entry === hovered) return;
    setHovered(entry);
    point(entry);
  };
  const current = layout.places[now]?.entry;
  const pointed = layout.places.find(({ entry }) => isSame(entry, hovered));
  return html`<div class="grid" ref=${box} role="listbox" tabindex="0" aria-label="Heads, a small picture each"
    aria-activedescendant=${current ? id : undefined} onScroll=${(/** @type {Event} */ e) => setTop(/** @type {HTMLElement} */ (e.target).scrollTop)}
    ...${handlers}
    onPointerMove=${(/** @type {PointerEvent} */ e) => hover(placeUnder(e)?.entry ?? null)} onPointerLeave=${() => hover(null)}
    onClick=${(/** @type {MouseEvent} */ e) => {
      const place = placeUnder(e);
      if (place) choose(state, place.entry);
      cursor.value = null;
    }}>
    ${current ? html`<span class="hidden" role="option" id=${id} aria-selected=${isChosen(current, state)} aria-posinset=${now + 1} aria-setsize=${layout.places.length}>${headText(current, score)}</span>` : html`<span class="hidden" role="option" aria-selected="false">no head</span>`}
    ${pointed ? html`<div class="readout" style=${`top:${pointed.y + layout.size + LABEL > layout.high && pointed.y > LABEL ? pointed.y - LABEL : pointed.y + layout.size}px;${pointed.x < wide / 2 ? `left:${pointed.x}` : `right:${wide - pointed.x - layout.size}`}px`}>${headText(pointed.entry, score)}</div>` : null}
    ${state.largeHeads.value ? html`<button type="button" class="save" onClick=${() => canvas.current && box.current && savePicture(canvas.current, box.current, layout, props)}>save as PNG</button>` : null}
    <div style=${`height:${layout.high}px`}><canvas ref=${canvas} aria-hidden="true"></canvas></div></div>`;
}

/** @param {HeadEntry} entry @param {State} state */
export const isChosen = (entry, state) =>
  entry.call === state.path.value[2] && entry.head === state.head.value;

/** A head in the lists of starred and of removed heads. @param {HeadEntry} entry */
export const starOf = ({ call, head }) => `${call}.${head}`;

/** @param {HeadEntry} entry @param {State} state */
export const isStarred = (entry, state) => state.stars.value.includes(starOf(entry));

/** Show a head. @param {State} state @param {HeadEntry} entry */
export const choose = (state, entry) => {
  state.largeHeads.value = false;
  state.show(entry.call, entry.head);
};

/** Compute the place of each picture. With `layered`, each call begins a row. @param {HeadEntry[]} entries @param {number} wide @param {boolean} layered @param {number} largest pixels of a picture @returns {Layout} */
function layoutOf(entries, wide, layered, largest) {
  const lists = layered ? groups(entries, (entry) => entry.call) : [entries];
  const isShort = (/** @type {HeadEntry["about"]} */ about) =>
    callTitle(about) === `layer ${about.layer}`;
  const short = lists.every(([entry]) => entry && isShort(entry.about));
  const left = layered && short ? GUTTER : 0;
  const room = Math.max(SMALLEST, wide - left);
  const longest = Math.max(1, ...lists.map((group) => group.length));
  const lines = Math.ceil(longest / Math.floor(room / SMALLEST));
  const size = Math.max(SMALLEST, Math.min(largest, Math.floor(room / Math.ceil(longest / lines))));
  const across = Math.max(1, Math.floor(room / size));
  /** @type {Layout} */
  const layout = { size, places: [], labels: [], high: 0, across };
  for (const group of lists) {
    if (!group.length) continue;
    if (layered) {
      const [text, high] = short
        ? [String(group[0].about.layer), size]
        : [callTitle(group[0].about), ABOVE];
      layout.labels.push({ text, y: layout.high, high });
      if (!short) layout.high += ABOVE;
    }
    group.forEach((entry, n) => {
      const [x, y] = [left + (n % across) * size, layout.high + Math.floor(n / across) * size];
      layout.places.push({ entry, x, y });
    });
    layout.high += Math.ceil(group.length / across) * size;
  }
  return layout;
}

/** The index of the place to which a key moves the cursor; null for other keys. @param {string} key @param {Layout} layout @param {number} now */
function destination(key, layout, now) {
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
 * @param {Props & {top: number, hovered: HeadEntry | null, focused: HeadEntry | null | undefined}} props
 */
function draw(canvas, box, layout, props) {
  const [wide, high] = [box.clientWidth, Math.min(box.clientHeight, layout.high)];
  const { context, ink } = prepareCanvas(canvas, wide, high);
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${high}px`;
  const dark = ink("dark") === "1";
  context.translate(0, -props.top);
  context.textBaseline = "middle";
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = ink("quiet");
  for (const label of layout.labels)
    if (label.y + label.high > props.top && label.y < props.top + high)
      context.fillText(label.text, 2, label.y + label.high / 2, wide - 4);
  const { size } = layout;
  const colours = table(dark);
  const maximum = scaleEnd(props.entries, props.score);
  for (const { entry, x, y } of layout.places) {
    if (y + size < props.top || y > props.top + high) continue;
    const inner = size - 3;
    context.fillStyle = ink("line");
    if (props.paint === "picture") picture(context, entry, x + 1, y + 1, inner, colours, dark);
    else if (props.paint === "kind") {
      context.fillStyle = KINDS[entry.kind] ?? ink("line");
      context.fillRect(x + 1, y + 1, inner, inner);
    } else heat(context, entry, props.score, maximum, x + 1, y + 1, inner, ink);
    if (props.paint !== "kind" && KINDS[entry.kind]) {
      context.fillStyle = KINDS[entry.kind];
      context.fillRect(x + 1, y + size - 5, inner, 3);
    }
    if (isStarred(entry, props.state)) {
      context.fillStyle = ink("mark");
      context.fillText("★", x + 2, y + 8);
    }
    if (props.state.removed.value.includes(starOf(entry))) {
      context.strokeStyle = ink("mark");
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(x + 3, y + size - 5);
      context.lineTo(x + size - 5, y + 3);
      context.stroke();
    }
    const mark = isChosen(entry, props.state)
      ? ink("mark")
      : props.focused && isSame(entry, props.focused)
        ? ink("link")
        : props.hovered && isSame(entry, props.hovered)
          ? ink("quiet")
          : "";
    if (!mark) continue;
    context.strokeStyle = mark;
    context.lineWidth =
      props.hovered && isSame(entry, props.hovered) && !isChosen(entry, props.state) ? 1 : 2;
    context.strokeRect(x + 0.5, y + 0.5, size - 2, size - 2);
  }
}

/** Save all pictures, including those out of view. @param {HTMLCanvasElement} canvas @param {HTMLElement} box @param {Layout} layout @param {Props} props */
function savePicture(canvas, box, layout, props) {
  const size = { clientWidth: box.clientWidth, clientHeight: layout.high };
  const all = { ...props, top: 0, hovered: null, focused: null };
  const copy = /** @type {HTMLCanvasElement} */ (canvas.cloneNode());
  box.append(copy); // for the colours of the page
  draw(copy, /** @type {HTMLElement} */ (size), layout, all);
  copy.toBlob((blob) => blob && download(blob, "heads.png"));
  copy.remove();
}

/** The colour scale of a score. @param {{maximum: number, isSigned: boolean, dark: boolean}} props */
export const Scale = ({ maximum, isSigned, dark }) =>
  html`<span class="scale">${isSigned ? scoreText(DELTA, -maximum) : 0}<${Colours} colours=${isSigned ? diverging(dark) : table(dark)} />${isSigned ? scoreText(DELTA, maximum) : +maximum.toPrecision(3)}</span>`;

/** Painted pictures of each answer. @type {WeakMap<import("../types.js").Answer, Map<string, OffscreenCanvas>>} */
const PAINTED = new WeakMap();

/**
 * Draw a head's small map. The colour scale ignores the first key, which often has the largest weights.
 * @param {CanvasRenderingContext2D} context @param {HeadEntry} entry @param {number} x @param {number} y
 * @param {number} size @param {Uint32Array} colours @param {boolean} dark
 */
function picture(context, entry, x, y, size, colours, dark) {
  const { small } = entry.answers;
  if (!small) return context.fillRect(x, y, size, size);
  const [, r, c] = small.maps.shape;
  const images = PAINTED.get(small) ?? new Map();
  PAINTED.set(small, images);
  const name = `${entry.i} ${dark}`;
  if (!images.has(name)) {
    const data = small.maps.data.subarray(entry.i * r * c, (entry.i + 1) * r * c);
    let highest = 0;
    for (let i = 0; i < data.length; i++)
      if (i % c && data[i] > highest && data[i] < Infinity) highest = data[i];
    const image = new OffscreenCanvas(c, r);
    const pixels = paintPixels(data, colours, highest || 1, "sqrt", 0);
    image
      .getContext("2d")
      ?.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), c, r), 0, 0);
    images.set(name, image);
  }
  context.imageSmoothingEnabled = false;
  const longer = Math.max(r, c);
  context.fillStyle = dark ? "#24272c" : "#eef0f2";
  context.fillRect(x, y, size, size);
  context.drawImage(images.get(name), x, y, (size * c) / longer, (size * r) / longer);
}

/**
 * Draw a score as a colour, and as a number if there is room.
 * @param {CanvasRenderingContext2D} context @param {HeadEntry} entry @param {string} score
 * @param {number} maximum @param {number} x @param {number} y @param {number} size
 * @param {(name: string) => string} ink
 */
function heat(context, entry, score, maximum, x, y, size, ink) {
  context.fillRect(x, y, size, size);
  const value = entry.values[score];
  const isSigned = score === DELTA;
  if (!Number.isFinite(value) && !isSigned) return;
  const part = share(value, maximum, isSigned ? "difference" : "linear");
  if (Number.isFinite(value)) {
    const word = (isSigned ? diverging : table)(ink("dark") === "1")[Math.round(part * 255)];
    context.fillStyle = `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;
    context.fillRect(x, y, size, size);
  }
  const decimals = Math.max(0, 1 - Math.floor(Math.log10(maximum)));
  const short = isSigned ? +value.toFixed(decimals) : value;
  const text = value >= 9.95 && !isSigned ? value.toFixed(0) : scoreText(score, short);
  if (size < 26 || context.measureText(text).width > size) return;
  const isStrong = isSigned ? Math.abs(part - 0.5) > 0.3 : part > 0.45;
  context.fillStyle = isStrong ? ink("ground") : ink("text");
  context.textAlign = "center";
  context.fillText(text, x + size / 2, y + size / 2);
  context.textAlign = "left";
}
