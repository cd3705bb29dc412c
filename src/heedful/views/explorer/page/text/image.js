// The image that a call attends over: shaded by where a patch looks, or by who looks at it.

import { Choice } from "../controls.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { useWalk, useWidth } from "../list_navigation.js";
import { weighed } from "../number_format.js";
import { asked } from "../request.js";
import { strongest } from "./chosen_token.js";
import { Run } from "./text_flow.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Answer, Axis, Source } from "../types.js" */
/** @import { Reading } from "./chosen_token.js" */

const GLOW = "255, 92, 0"; // the shade's hue: seen on every grey
const MOST = 0.88; // opacity of the largest weight
const BOXES = 16; // tokens that are no patches, each with a box

/**
 * @typedef {object} Given
 * @property {State} state
 * @property {Source} source
 * @property {Tokens} tokens
 * @property {Reading} reading
 * @property {Axis} axis
 * @property {string} label
 * @property {Float32Array | null} weights of each token of the axis; null: nothing is pointed at
 * @property {number | null} chosen
 * @property {number | null} other a second token that is marked: the key of the chosen cell
 * @property {boolean} [isOwn] whether the weights are those of a patch of this image
 * @property {(at: number) => void} choose
 */

/** @param {Given} given */
export function Picture(given) {
  const { state, source, reading, axis } = given;
  const [image] = useState(() => asked(source, () => ["image", { call: state.where.value, axis }]));
  useEffect(() => () => image.end(), []);
  const found = image.value;
  if (found?.failed) return html`<p class="wrong">${found.failed}</p>`;
  const [, N, M] = state.call.value.shape;
  if (!found?.places || found.places.data.length !== (axis === "keys" ? M : N))
    return html`<p class="quiet">…</p>`;
  const point = (/** @type {number | null} */ at) => {
    const now = reading.pointed.peek();
    if (at === null ? now : now?.axis !== axis || now.at !== at)
      reading.pointed.value = at === null ? null : { axis, at };
  };
  const most = largest(given.weights, found);
  return html`<div class="seen"><${Canvas} ...${given} image=${found} point=${point} most=${most} />
    <div class="figures"><${Boxes} ...${given} image=${found} point=${point} most=${most} />
      ${given.weights ? html`<${Key} weights=${given.weights} image=${found} most=${most} />` : null}
      <p class="quiet">${said(found, state.call.value.shape)}</p></div></div>`;
}

/** The patches, and what is a guess of them. @param {Answer} image @param {number[]} shape */
function said(image, shape) {
  const { rows, columns, size, assumed, pixels } = image;
  const tokens = image.places.data.filter((/** @type {number} */ place) => place >= 0).length;
  const part = tokens < rows * columns ? `, of which ${tokens} in this window` : "";
  const smaller = pixels.shape[0] < size[0] ? ", shown smaller" : "";
  const grid = assumed.startsWith("patches")
    ? assumed
    : `${rows} × ${columns} patches${part}${assumed ? `; ${assumed}` : ""}`;
  return `${size[0]} × ${size[1]} pixels${smaller}, ${grid}${shape[1] === 1 ? "; one query" : ""}`;
}

/** The largest weight on a patch. @param {Float32Array | null} weights @param {Answer} image */
function largest(weights, image) {
  let most = 0;
  if (weights)
    image.places.data.forEach((/** @type {number} */ place, /** @type {number} */ at) => {
      if (place >= 0 && weights[at] > most) most = weights[at];
    });
  return most;
}

/** A token of the axis in words. @param {Answer} image @param {number} at */
export function wording(image, at) {
  const place = image.places.data[at];
  if (place < 0) return image.before[at] ?? `token ${at}`;
  return `row ${Math.floor(place / image.columns)}, column ${place % image.columns}`;
}

/** The image itself. @param {any} given */
function Canvas(given) {
  const { state, image, weights, most, chosen, other, point, choose, label } = given;
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const width = useWidth(canvas, 0);
  const { rows, columns } = image;
  const { cursor, on } = useWalk(
    /** @type {number} */ (chosen ?? tokenOf(image, 0) ?? 0),
    (key, now) => moved(key, image, now),
    point,
    choose,
  );
  const theme = state.worn.value;
  useLayoutEffect(() => {
    const marks = { chosen, other, cursor: cursor.value };
    draw(/** @type {HTMLCanvasElement} */ (canvas.current), image, weights, most, marks);
  }, [image, weights, most, chosen, other, cursor.value, width, theme]);
  const tokenAt = (/** @type {MouseEvent} */ event) => {
    const box = /** @type {HTMLElement} */ (canvas.current).getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    if (row < 0 || column < 0 || row >= rows || column >= columns) return null;
    return tokenOf(image, row * columns + column);
  };
  const at = cursor.value ?? chosen;
  const top = given.isOwn && weights ? strongest(weights, 1, 0)[0] : null;
  const told =
    at === null
      ? ""
      : top
        ? `${wording(image, at)}: most ${wording(image, top.at)}, ${weighed(top.weight)}`
        : `${wording(image, at)}${weights ? `, ${weighed(weights[at])}` : ""}`;
  const high = image.size[0] / image.size[1];
  return html`<div class="canvas" style=${`--ratio:${(1 / high).toFixed(4)}`}><canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="picture"
      aria-label=${`${label}: a picture of ${rows} rows and ${columns} columns of patches. Arrow keys move by patch, Enter chooses it.`}
      ...${on}
      onPointerMove=${(/** @type {PointerEvent} */ e) => e.pointerType === "mouse" && point(tokenAt(e))} onPointerLeave=${() => point(null)}
      onClick=${(/** @type {MouseEvent} */ e) => {
        const found = tokenAt(e);
        if (found !== null) choose(found);
        cursor.value = null;
      }}></canvas><div class="hidden" role="status" aria-live="polite" data-patch>${told}</div></div>`;
}

/** The token of a patch; null where it is none of the axis, as outside of a window. @param {Answer} image @param {number} place */
function tokenOf(image, place) {
  const at = image.places.data.indexOf(place);
  return at < 0 ? null : at;
}

/** Where a key leads by patches. @param {string} key @param {Answer} image @param {number} now @returns {number | null} */
function moved(key, image, now) {
  const { columns, rows } = image;
  const place = Math.max(0, image.places.data[now]);
  const [row, column] = [Math.floor(place / columns), place % columns];
  /** @type {Record<string, [number, number]>} */
  const to = {
    ArrowLeft: [row, column - 1],
    ArrowRight: [row, column + 1],
    ArrowUp: [row - 1, column],
    ArrowDown: [row + 1, column],
    Home: [row, 0],
    End: [row, columns - 1],
  };
  if (!to[key]) return null;
  const [r, c] = to[key];
  const inside = r >= 0 && c >= 0 && r < rows && c < columns;
  return (inside ? tokenOf(image, r * columns + c) : null) ?? now;
}

/** The tokens that are no patches, each with its own weight. @param {any} given */
function Boxes({ image, weights, most, chosen, other, choose, point }) {
  /** @type {number[]} */
  const all = [];
  image.places.data.forEach((/** @type {number} */ place, /** @type {number} */ at) => {
    if (place < 0) all.push(at);
  });
  if (!all.length) return null;
  const box = (/** @type {number} */ at) => {
    const name = ["apart"];
    if (at === chosen) name.push("mine");
    if (at === other) name.push("other");
    const share = weights && most ? Math.min(1, (weights[at] || 0) / most) : 0;
    return html`<button type="button" class=${name.join(" ")} data-token=${at} style=${`--share:${(share * MOST).toFixed(3)}`} onClick=${() => choose(at)}
      onPointerEnter=${() => point(at)} onPointerLeave=${() => point(null)} onFocus=${() => point(at)} onBlur=${() => point(null)}>
      <bdi>${wording(image, at)}</bdi>${weights ? html` <b>${weighed(weights[at])}</b>` : null}</button>`;
  };
  return html`<div class="boxes" role="group" aria-label="Tokens that are no patches">${all.slice(0, BOXES).map(box)}
    ${all.length > BOXES ? html`<small>and ${all.length - BOXES} more</small>` : null}</div>`;
}

/** The scale of the shade. @param {{weights: Float32Array, image: Answer, most: number}} given */
function Key({ weights, image, most }) {
  let sum = 0;
  image.places.data.forEach((/** @type {number} */ place, /** @type {number} */ at) => {
    if (place >= 0) sum += weights[at] || 0;
  });
  return html`<div class="shades"><span>0</span><i></i><span data-most=${most}>${weighed(most)}</span></div>
    <p class="quiet">opacity is the weight, linear; on patches together <b data-sum=${sum}>${weighed(sum)}</b></p>`;
}

/** @type {WeakMap<object, Record<string, HTMLCanvasElement>>} */
const made = new WeakMap(); // images as canvases, by the pixels of an answer

/** The image in its colours, or pale under a shade. @param {Answer} image @param {"whole" | "light" | "dark"} how */
function canvasOf(image, how) {
  const known = made.get(image.pixels) ?? {};
  made.set(image.pixels, known);
  if (known[how]) return known[how];
  const [h, w] = image.pixels.shape;
  const bytes = image.pixels.data;
  const rgba = new Uint8ClampedArray(h * w * 4);
  for (let i = 0; i < h * w; i++) {
    const [r, g, b] = [bytes[3 * i], bytes[3 * i + 1], bytes[3 * i + 2]];
    const grey = 0.299 * r + 0.587 * g + 0.114 * b;
    const pale = how === "light" ? 70 + grey * 0.7 : 12 + grey * 0.66;
    for (const [n, value] of [r, g, b].entries())
      rgba[4 * i + n] = how === "whole" ? value : 0.4 * value + 0.6 * pale;
    rgba[4 * i + 3] = 255;
  }
  const canvas = document.createElement("canvas");
  canvas.width = w;
  canvas.height = h;
  canvas.getContext("2d")?.putImageData(new ImageData(rgba, w, h), 0, 0);
  known[how] = canvas;
  return canvas;
}

/** @param {HTMLCanvasElement} canvas @param {Answer} image @param {Float32Array | null} weights @param {number} most @param {Record<string, number | null>} marks */
function draw(canvas, image, weights, most, marks) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((n) =>
    Math.round(n * ratio),
  );
  const context = canvas.getContext("2d");
  if (!width || !height || !context) return;
  canvas.width = width;
  canvas.height = height;
  const look = getComputedStyle(canvas);
  const isDark = look.getPropertyValue("--dark").trim() === "1";
  context.imageSmoothingEnabled = width < 3 * image.pixels.shape[1]; // a small image is shown by its pixels
  context.drawImage(
    canvasOf(image, weights ? (isDark ? "dark" : "light") : "whole"),
    0,
    0,
    width,
    height,
  );
  const { rows, columns } = image;
  /** @param {number} place @returns {[number, number, number, number]} */
  const cell = (place) => {
    const [row, column] = [Math.floor(place / columns), place % columns];
    const [across, down] = [width / columns, height / rows];
    const [x, y] = [Math.round(column * across), Math.round(row * down)];
    return [x, y, Math.round((column + 1) * across) - x, Math.round((row + 1) * down) - y];
  };
  const inside = new Set(image.places.data);
  context.fillStyle = look.getPropertyValue("--ground");
  context.globalAlpha = 0.72;
  for (let place = 0; place < rows * columns; place++)
    if (!inside.has(place)) context.fillRect(...cell(place));
  context.globalAlpha = 1;
  image.places.data.forEach((/** @type {number} */ place, /** @type {number} */ at) => {
    if (place < 0 || !weights) return;
    if (weights[at] > 0) {
      context.fillStyle = `rgba(${GLOW}, ${(MOST * weights[at]) / most})`;
      context.fillRect(...cell(place));
    }
  });
  for (const [name, dash] of /** @type {[string, number[]][]} */ ([
    ["other", [4, 3]],
    ["chosen", []],
    ["cursor", []],
  ])) {
    const at = marks[name];
    const place = at === null || at === undefined ? -1 : image.places.data[at];
    if (place >= 0)
      outlined(
        context,
        cell(place),
        ratio,
        dash,
        look.getPropertyValue(name === "cursor" ? "--link" : "--mark"),
      );
  }
}

/** A patch that is marked: a line that is seen on any picture. @param {CanvasRenderingContext2D} context @param {number[]} cell @param {number} ratio @param {number[]} dash @param {string} colour */
function outlined(context, [x, y, w, h], ratio, dash, colour) {
  context.lineWidth = 4 * ratio;
  context.strokeStyle = "#fff";
  context.strokeRect(x, y, w, h);
  context.lineWidth = 2 * ratio;
  context.strokeStyle = colour;
  context.setLineDash(dash.map((n) => n * ratio));
  context.strokeRect(x, y, w, h);
  context.setLineDash([]);
}

/** Which of the two is shown over one image. @param {{state: State}} given */
export const Mode = ({ state }) =>
  html`<${Choice} label="What is shown over the picture" ways=${[["row", "what it looks at"], ["column", "who looks at it"]]} now=${state.profile.value} choose=${(/** @type {"row" | "column"} */ way) => (state.profile.value = way)} />`;

/** Whether queries and keys are the patches of one image. @param {State} state */
export const isOne = (state) =>
  state.call.value.kind !== "cross" && state.call.value.pictured?.length === 2;

/**
 * @param {object} given
 * @param {State} given.state @param {Source} given.source @param {Tokens} given.tokens
 * @param {Reading} given.reading @param {string} given.id
 * @param {(query: number) => number | null} given.best what a query looks at most
 */
export function Pictured({ state, source, tokens, reading, id, best }) {
  const [, N, M] = state.call.value.shape;
  const at = state.cell.value;
  const [looks, looked] = [reading.row?.weights.data ?? null, reading.column?.weights.data ?? null];
  const look = (/** @type {number} */ query, /** @type {number} */ key) =>
    state.look({ query, key }, true);
  const given = { state, source, tokens, reading, ends: null, offset: 0, added: null };
  const chooseQuery = (/** @type {number} */ query) => look(query, best(query) ?? at?.key ?? 0);
  const chooseKey = (/** @type {number} */ key) => look(at?.query ?? 0, key);
  if (isOne(state)) {
    const isRow = state.profile.value === "row";
    return html`<${Picture} ...${given} axis="keys" isOwn=${true} label="The image" weights=${isRow ? looks : looked}
      chosen=${at ? (isRow ? at.query : at.key) : null} other=${at ? (isRow ? at.key : at.query) : null}
      choose=${isRow ? chooseQuery : (/** @type {number} */ key) => look((looked && strongest(looked, 1, 0)[0]?.at) ?? at?.query ?? 0, key)} />`;
  }
  const part = (/** @type {Axis} */ axis) => {
    const isKeys = axis === "keys";
    const own = {
      axis,
      label: isKeys ? "keys" : "queries",
      chosen: at ? (isKeys ? at.key : at.query) : null,
      choose: isKeys ? chooseKey : chooseQuery,
    };
    const isPicture = state.call.value.pictured?.includes(axis);
    return html`<h3>${own.label}${isPicture ? ": the image" : ""}</h3>${
      isPicture
        ? html`<${Picture} ...${given} ...${own} weights=${isKeys ? looks : looked} other=${null} />`
        : html`<${Run} ...${given} ...${own} reads=${state.segments.reads(state.call.value, axis)} id=${`${id}-${axis}`} size=${isKeys ? M : N} looks=${isKeys ? looks : null} looked=${isKeys ? null : looked} other=${null} />`
    }`;
  };
  return html`<div class="pair">${part("queries")}${part("keys")}</div>`;
}
