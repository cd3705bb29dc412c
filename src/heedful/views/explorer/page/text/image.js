// The image of a call's patches, shaded by the weights in the row or the column of a patch.
import { Choice } from "../controls.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { prepareCanvas, useKeyboardCursor, useWidth } from "../list_navigation.js";
import { formatWeight } from "../number_format.js";
import { liveAnswer } from "../request.js";
import { strongest } from "./chosen_token.js";
import { pointer, TextFlow } from "./text_flow.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Answer, Axis, Source } from "../types.js" */
/** @import { ChosenToken } from "./chosen_token.js" */

const SHADE = "255, 92, 0"; // visible on any grey
const OPACITY = 0.88; // of the largest weight
const BOXES = 16; // maximum number of listed tokens that are not patches

/**
 * @typedef {object} Props
 * @property {Float32Array | null} weights of each token of the axis; null: no token is chosen
 * @property {boolean} [isSelf] whether queries and keys are patches of this one image
 */

/** @param {Props & Pick<import("./text_flow.js").Props, "state" | "chosenToken" | "axis" | "label" | "chosen" | "other" | "choose"> & {source: Source}} props */
function ImagePane(props) {
  const { state, source, chosenToken, axis, weights } = props;
  const question = () => ["image", { call: state.callId.value, axis }];
  const [image] = useState(() => liveAnswer(source, /** @type {any} */ (question)));
  useEffect(() => () => image.end(), []);
  const answer = image.value;
  if (answer?.failed) return html`<p class="wrong">${answer.failed}</p>`;
  const [, N, M] = state.call.value.shape;
  if (!answer?.places || answer.places.data.length !== (axis === "keys" ? M : N))
    return html`<p class="quiet">…</p>`;
  const tokens = [...answer.places.data.keys()];
  const patches = tokens.filter((token) => answer.places.data[token] >= 0);
  const others = tokens.filter((token) => answer.places.data[token] < 0);
  const onPatches = patches.map((token) => weights?.[token] || 0); // 0 instead of NaN
  const largestWeight = onPatches.reduce((a, b) => Math.max(a, b), 0);
  const shared = { ...props, image: answer, point: pointer(chosenToken, axis), largestWeight };
  return html`<div class="image-pane"><${Canvas} ...${shared} patches=${patches} />
    <div class="figures"><${Boxes} ...${shared} others=${others} />
      ${weights ? html`<${ShadeLegend} sum=${onPatches.reduce((a, b) => a + b, 0)} largestWeight=${largestWeight} />` : null}
      <p class="quiet">${description(answer, patches.length, N)}</p></div></div>`;
}

/** The size of the image, its patches, and assumptions about the patches. @param {Answer} image @param {number} tokens number of patches @param {number} N number of queries */
function description(image, tokens, N) {
  const { rows, columns, size, assumed, pixels } = image;
  const part = tokens < rows * columns ? `, of which ${tokens} in this window` : "";
  const smaller = pixels.shape[0] < size[0] ? ", shown smaller" : "";
  const grid = assumed.startsWith("patches")
    ? assumed
    : `${rows} × ${columns} patches${part}${assumed ? `; ${assumed}` : ""}`;
  return `${size[0]} × ${size[1]} pixels${smaller}, ${grid}${N === 1 ? "; one query" : ""}`;
}

/** A token of the axis as text: its row and column, or its name. @param {Answer} image @param {number} token its index */
export function tokenText(image, token) {
  const place = image.places.data[token];
  if (place < 0) return image.before[token] ?? `token ${token}`;
  return `row ${Math.floor(place / image.columns)}, column ${place % image.columns}`;
}

/** The image on a canvas. @param {any} props */
function Canvas(props) {
  const { state, image, weights, chosen, other, point, choose, label } = props;
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const width = useWidth(canvas, 0);
  const { rows, columns } = image;
  const { cursor, handlers } = useKeyboardCursor(
    /** @type {number} */ (chosen ?? tokenOf(image, 0) ?? 0),
    (key, now) => destination(key, image, now),
    point,
    choose,
  );
  const theme = state.activeTheme.value;
  useLayoutEffect(() => {
    draw(/** @type {HTMLCanvasElement} */ (canvas.current), props, cursor.value);
  }, [image, weights, chosen, other, cursor.value, width, theme]);
  const tokenAt = (/** @type {MouseEvent} */ event) => {
    const box = /** @type {HTMLElement} */ (canvas.current).getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    if (row < 0 || column < 0 || row >= rows || column >= columns) return null;
    return tokenOf(image, row * columns + column);
  };
  const token = cursor.value ?? chosen;
  const target = props.isSelf && weights ? strongest(weights, 1, 0)[0] : null;
  const details = target
    ? `: largest weight on ${tokenText(image, target.index)}, ${formatWeight(target.weight)}`
    : weights && `, ${formatWeight(weights[token])}`;
  const text = token === null ? "" : tokenText(image, token) + (details ?? "");
  const ratio = image.size[1] / image.size[0];
  return html`<div class="canvas" style=${`--ratio:${ratio.toFixed(4)}`}><canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="picture"
      aria-label=${`${label}: a picture of ${rows} rows and ${columns} columns of patches. Arrow keys move by patch, Enter selects a patch.`}
      ...${handlers}
      onPointerMove=${(/** @type {PointerEvent} */ e) => e.pointerType === "mouse" && point(tokenAt(e))} onPointerLeave=${() => point(null)}
      onClick=${(/** @type {MouseEvent} */ e) => {
        const token = tokenAt(e);
        if (token !== null) choose(token);
        cursor.value = null;
      }}></canvas><div class="hidden" role="status" aria-live="polite" data-patch>${text}</div></div>`;
}

/** The token of a patch; null if the axis does not contain the patch, as outside a window. @param {Answer} image @param {number} place */
function tokenOf(image, place) {
  const token = image.places.data.indexOf(place);
  return token < 0 ? null : token;
}

/** The token to which an arrow key, Home or End moves; null for other keyboard keys. @param {string} key @param {Answer} image @param {number} now @returns {number | null} */
function destination(key, image, now) {
  const { columns, rows } = image;
  const place = Math.max(0, image.places.data[now]);
  const [row, column] = [Math.floor(place / columns), place % columns];
  const [r, c] =
    {
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      Home: [row, 0],
      End: [row, columns - 1],
    }[key] ?? [];
  if (r === undefined) return null;
  const inside = r >= 0 && c >= 0 && r < rows && c < columns;
  return (inside ? tokenOf(image, r * columns + c) : null) ?? now;
}

/** The tokens that are not patches, with their weights. @param {any} props */
function Boxes({ image, others, weights, largestWeight, chosen, other, choose, point }) {
  if (!others.length) return null;
  const box = (/** @type {number} */ token) => {
    const name = ["apart"];
    if (token === chosen) name.push("mine");
    if (token === other) name.push("other");
    const share = weights && largestWeight ? Math.min(1, (weights[token] || 0) / largestWeight) : 0;
    return html`<button type="button" class=${name.join(" ")} data-token=${token} style=${`--share:${(share * OPACITY).toFixed(3)}`} onClick=${() => choose(token)}
      onPointerEnter=${() => point(token)} onPointerLeave=${() => point(null)} onFocus=${() => point(token)} onBlur=${() => point(null)}>
      <bdi>${tokenText(image, token)}</bdi>${weights ? html` <b>${formatWeight(weights[token])}</b>` : null}</button>`;
  };
  return html`<div class="boxes" role="group" aria-label="Tokens that are not patches">${others.slice(0, BOXES).map(box)}
    ${others.length > BOXES ? html`<small>and ${others.length - BOXES} more</small>` : null}</div>`;
}

/** The legend of the shades. @param {{sum: number, largestWeight: number}} props */
function ShadeLegend({ sum, largestWeight }) {
  return html`<div class="shades"><span>0</span><i></i><span>${formatWeight(largestWeight)}</span></div>
    <p class="quiet">The opacity is proportional to the weight. Sum over patches: <b data-sum=${sum}>${formatWeight(sum)}</b></p>`;
}

/** @type {WeakMap<object, Record<string, OffscreenCanvas>>} */
const canvases = new WeakMap(); // by the pixels of an answer

/** The image in its colours, or pale, so that shades on it are visible. @param {Answer} image @param {"original" | "light" | "dark"} variant */
function canvasOf(image, variant) {
  const variants = canvases.get(image.pixels) ?? {};
  canvases.set(image.pixels, variants);
  if (variants[variant]) return variants[variant];
  const [h, w] = image.pixels.shape;
  const bytes = image.pixels.data;
  const rgba = new Uint8ClampedArray(h * w * 4);
  for (let i = 0; i < h * w; i++) {
    const [r, g, b] = [bytes[3 * i], bytes[3 * i + 1], bytes[3 * i + 2]];
    const grey = 0.299 * r + 0.587 * g + 0.114 * b;
    const pale = variant === "light" ? 70 + grey * 0.7 : 12 + grey * 0.66;
    for (const [n, value] of [r, g, b].entries())
      rgba[4 * i + n] = variant === "original" ? value : 0.4 * value + 0.6 * pale;
    rgba[4 * i + 3] = 255;
  }
  const canvas = new OffscreenCanvas(w, h);
  canvas.getContext("2d")?.putImageData(new ImageData(rgba, w, h), 0, 0);
  variants[variant] = canvas;
  return canvas;
}

/** @param {HTMLCanvasElement} canvas @param {any} props of `Canvas` @param {number | null} cursor */
function draw(canvas, { image, patches, weights, largestWeight, chosen, other }, cursor) {
  const { context, ink } = prepareCanvas(canvas, canvas.clientWidth, canvas.clientHeight);
  const { width, height } = canvas;
  if (!width || !height) return;
  context.resetTransform(); // the edges of patches are on device pixels
  context.imageSmoothingEnabled = width < 3 * image.pixels.shape[1]; // show the pixels of small images
  const pale = ink("dark") === "1" ? "dark" : "light";
  context.drawImage(canvasOf(image, weights ? pale : "original"), 0, 0, width, height);
  const { rows, columns, places } = image;
  /** @param {number} place @returns {[number, number, number, number]} */
  const cell = (place) => {
    const [row, column] = [Math.floor(place / columns), place % columns];
    const [across, down] = [width / columns, height / rows];
    const [x, y] = [Math.round(column * across), Math.round(row * down)];
    return [x, y, Math.round((column + 1) * across) - x, Math.round((row + 1) * down) - y];
  };
  const inside = new Set(places.data);
  context.fillStyle = ink("ground");
  context.globalAlpha = 0.72;
  for (let place = 0; place < rows * columns; place++)
    if (!inside.has(place)) context.fillRect(...cell(place));
  context.globalAlpha = 1;
  for (const token of weights ? patches : []) {
    if (!(weights[token] > 0)) continue;
    context.fillStyle = `rgba(${SHADE}, ${(OPACITY * weights[token]) / largestWeight})`;
    context.fillRect(...cell(places.data[token]));
  }
  /** @param {number | null} token @param {string} colour @param {number[]} dash */
  const mark = (token, colour, dash) => {
    const place = token === null ? -1 : places.data[token];
    if (place >= 0) outline(context, cell(place), ink(colour), dash);
  };
  mark(other, "mark", [4, 3]);
  mark(chosen, "mark", []);
  mark(cursor, "link", []);
}

/** Outline a patch with a line that is visible on any image. @param {CanvasRenderingContext2D} context @param {[number, number, number, number]} cell @param {string} colour @param {number[]} dash */
function outline(context, cell, colour, dash) {
  const ratio = devicePixelRatio || 1;
  context.lineWidth = 4 * ratio;
  context.strokeStyle = "#fff";
  context.strokeRect(...cell);
  context.lineWidth = 2 * ratio;
  context.strokeStyle = colour;
  context.setLineDash(dash.map((n) => n * ratio));
  context.strokeRect(...cell);
  context.setLineDash([]);
}

/** The choice between row and column, if queries and keys are one image. @param {{state: State}} props */
export const Mode = ({ state }) =>
  html`<${Choice} label="Weights over the image" options=${[["row", "what it attends to"], ["column", "what attends to it"]]} selected=${state.profile.value} choose=${(/** @type {"row" | "column"} */ name) => (state.profile.value = name)} />`;

/** Whether queries and keys are patches of the same image. @param {State} state */
export const hasSingleImage = (state) =>
  state.call.value.kind !== "cross" && state.call.value.pictured?.length === 2;

/** @param {{state: State, source: Source, tokens: Tokens, chosenToken: ChosenToken, id: string, best: (query: number) => number | null}} props `best` returns the key with the largest weight */
export function ImageView({ state, source, tokens, chosenToken, id, best }) {
  const [, N, M] = state.call.value.shape;
  const { query, key } = state.cell.value ?? { query: null, key: null };
  const rowWeights = chosenToken.row?.weights.data ?? null;
  const columnWeights = chosenToken.column?.weights.data ?? null;
  const select = (/** @type {number} */ query, /** @type {number} */ key) =>
    state.selectCell({ query, key }, true);
  const props = { state, source, tokens, chosenToken, promptLength: null, offset: 0, added: null };
  const chooseQuery = (/** @type {number} */ query) => select(query, best(query) ?? key ?? 0);
  const chooseKey = (/** @type {number} */ key) => select(query ?? 0, key);
  if (hasSingleImage(state)) {
    const isRow = state.profile.value === "row";
    return html`<${ImagePane} ...${props} axis="keys" isSelf=${true} label="The image" weights=${isRow ? rowWeights : columnWeights}
      chosen=${isRow ? query : key} other=${isRow ? key : query}
      choose=${isRow ? chooseQuery : (/** @type {number} */ key) => select((columnWeights && strongest(columnWeights, 1, 0)[0]?.index) ?? query ?? 0, key)} />`;
  }
  const part = (/** @type {Axis} */ axis) => {
    const isKeys = axis === "keys";
    const [chosen, choose] = isKeys ? [key, chooseKey] : [query, chooseQuery];
    const shared = { ...props, axis, label: axis, chosen, choose, other: null };
    const isPicture = state.call.value.pictured?.includes(axis);
    return html`<h3>${axis}${isPicture ? ": the image" : ""}</h3>${
      isPicture
        ? html`<${ImagePane} ...${shared} weights=${isKeys ? rowWeights : columnWeights} />`
        : html`<${TextFlow} ...${shared} role=${state.segments.roleOf(state.call.value, axis)} id=${`${id}-${axis}`} size=${isKeys ? M : N} rowWeights=${isKeys ? rowWeights : null} columnWeights=${isKeys ? null : columnWeights} />`
    }`;
  };
  return html`<div class="pair">${part("queries")}${part("keys")}</div>`;
}
