// Paints the attention map of a head into a canvas: tiles, marks, labels. Rows are queries.
import { signal } from "../html.js";
import { COLOURS } from "../segments/segments.js";
import { diverging, table } from "./colours.js";
import { drawLabels, labelsOf, measuring } from "./labels.js";
import { drawBands, drawMarks } from "./overlay.js";
import { cover, pixels } from "./tile_cover.js";
import { largest, picture } from "./tiles.js";
import { cellAt, gutter, placed } from "./viewport.js";

/** @import { State } from "../state.js" */
/** @import { Axis, Cell, Ink, Side } from "../types.js" */
/** @import { Part } from "./tile_cover.js" */
/** @import { Place } from "./viewport.js" */
/** @import { Scale } from "./scale.js" */
/** @import { Tile, Tiles } from "./tiles.js" */

/** @typedef {CanvasRenderingContext2D} Context */

const PATIENCE = 400; // milliseconds to keep the previous image while no new tile has arrived

export class Painter {
  /** @param {HTMLCanvasElement} canvas @param {State} state @param {Side} side @param {Tiles} tiles @param {any} tokens @param {Scale} scale */
  constructor(canvas, state, side, tiles, tokens, scale) {
    this.canvas = canvas;
    this.context = /** @type {Context} */ (canvas.getContext("2d"));
    this.state = state;
    this.side = side;
    this.tiles = tiles;
    this.tokens = tokens;
    this.scale = scale;
    this.measure = measuring(/** @type {any} */ (new OffscreenCanvas(1, 1).getContext("2d")));
    this.caption = signal("");
    this.painted = signal(""); // the painted head and tiles
    this.legend = signal({
      highest: 1,
      kind: this.kind,
      colours: this._table(false),
      hasNaN: false,
    });
    this.frame = 0;
    this.timer = 0;
    this.emptySince = 0; // when the view lost its last loaded tile; 0: a tile is loaded
    /** @type {Part[]} */
    this.parts = [];
    this.level = 0;
    this.ink = inkOf(canvas);
    this.colours = this._table(this.ink.isDark);
  }

  /** How weights become colours. */
  get kind() {
    return this.side.isDifference ? "difference" : this.state.colours.value;
  }

  _table(/** @type {boolean} */ isDark) {
    return this.side.isDifference ? diverging(isDark) : table(isDark);
  }

  /** Paint in the next frame. */
  requestPaint() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  /** Paint after some milliseconds. @param {number} wait */
  paintLater(wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.requestPaint(), wait);
  }

  /** Read the colours again after a change of the theme. */
  updateInk() {
    const wasDark = this.ink.isDark;
    this.ink = inkOf(this.canvas);
    if (wasDark !== this.ink.isDark) this.colours = this._table(this.ink.isDark);
    this.hatch = undefined;
    this.requestPaint();
  }

  close() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    this.tiles.close();
    this.scale.leave(this);
  }

  get ratio() {
    return devicePixelRatio || 1;
  }

  /** @returns {Place} */
  get place() {
    return this.placeIn(this.canvas.clientWidth, this.canvas.clientHeight, this.ratio);
  }

  placeIn(/** @type {number} */ width, /** @type {number} */ height, /** @type {number} */ ratio) {
    const [, N, M] = this.side.call.value.shape;
    return placed(this.state.view.value, [N, M], width, height, ratio);
  }

  paint() {
    const { canvas, ratio } = this;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !height) return;
    const place = this.place;
    const covered = cover(this.tiles, this.side, place, this.state.reduce.value, ratio);
    this.tiles.setNeeded(covered.needed);
    if (this._keepsImage(covered.parts)) return;
    this.parts = covered.parts;
    this.level = covered.level;
    this.painted.value = `${this._headKey} ${covered.parts.map(({ tile }) => tile && tile.id + tile.precision).join()}`;
    const wait = this.scale.report(this, this._largest(place));
    if (wait) this.paintLater(wait);
    const size = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
    this.draw(this.context, place, width, height, ratio);
    this._updateCaption();
  }

  /** Whether to keep the previous image, because no new tile has arrived. @param {Part[]} parts */
  _keepsImage(parts) {
    if (parts.some((part) => part.tile) || this.tiles.failed || !this.parts.length) {
      this.emptySince = 0;
      return false;
    }
    this.emptySince ||= performance.now();
    const remaining = PATIENCE - (performance.now() - this.emptySince);
    if (remaining > 0) this.paintLater(remaining);
    return remaining > 0;
  }

  /** Draw the map with its marks and labels into a context. @param {Context} context @param {Place} place @param {number} width @param {number} height @param {number} ratio */
  draw(context, place, width, height, ratio) {
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this._drawCells(context, place, ratio);
    const gutters = gutter(width, height);
    drawBands(context, place, this.segments, this.ink, this.measure, gutters);
    drawMarks(context, place, this.state, this.ink);
    context.strokeStyle = this.ink.line;
    context.lineWidth = 1;
    context.strokeRect(place.left - 0.5, place.top - 0.5, place.wide + 1, place.high + 1);
    drawLabels(context, this.labels(place, width, height), this.ink, this.measure);
    this._drawAxisNames(context, place);
  }

  /** Draw the cells. @param {Context} context @param {Place} place */
  _drawCells(context, place, /** @type {number} */ ratio) {
    context.save();
    context.beginPath();
    context.rect(place.left, place.top, place.wide, place.high);
    context.clip();
    context.fillStyle = this.hatching;
    context.fillRect(place.left, place.top, place.wide, place.high);
    context.imageSmoothingEnabled = false;
    for (const part of this.parts) this._drawPart(context, part, place, ratio);
    this._drawVeil(context, place);
    context.restore();
  }

  /** @returns {Record<Axis, import("../segments/segments.js").Segment[]>} */
  get segments() {
    const call = this.side.call.value;
    const along = (/** @type {Axis} */ axis) => this.state.segments.along(call, axis);
    return { queries: along("queries"), keys: along("keys") };
  }

  labels(/** @type {Place} */ place, /** @type {number} */ width, /** @type {number} */ height) {
    const { cell, highlighted } = this.state;
    const callId = this.side.callId.value;
    const marked = {
      queries: { chosen: cell.value?.query ?? null, highlighted: highlighted.value.query },
      keys: { chosen: cell.value?.key ?? null, highlighted: highlighted.value.key },
    };
    const { named, kind } = this.side.call.value;
    const isNamed = named || kind === "cross"; // within one text, queries have names if keys do
    const name = (/** @type {Axis} */ axis, /** @type {number} */ index) =>
      isNamed ? this.tokens.name(callId, axis, index) : null;
    return labelsOf(place, name, marked, this.measure, gutter(width, height));
  }

  /** The largest weight of each block in view, without the first key if the scale excludes it. @param {Place} place */
  _largest(place) {
    /** @type {number[]} */
    const result = [];
    const rows = [place.y, place.y + place.high / place.scale];
    const columns = [place.x, place.x + place.wide / place.scale];
    const clip = (/** @type {number[]} */ [from, to], /** @type {number[]} */ [first, end]) =>
      /** @type {[number, number]} */ ([Math.max(from, first), Math.min(to, end)]);
    for (const part of this.parts) {
      if (!part.tile) continue;
      const isFirst = !this.state.sink.value && part.corner[1] === 0;
      const r = pixels(part, clip(part.rows, rows), 0);
      const c = pixels(part, clip(part.columns, columns), 1);
      result.push(...largest(part.tile, r, c, isFirst));
    }
    return result;
  }

  /** Draw a part, with its edges on device pixels. @param {Context} context @param {Part} part @param {Place} place */
  _drawPart(context, part, place, /** @type {number} */ ratio) {
    if (part.isMasked) return;
    const snap = (/** @type {number} */ value) => Math.round(value * ratio) / ratio;
    const [x0, x1] = part.columns.map((key) => snap(place.left + (key - place.x) * place.scale));
    const [y0, y1] = part.rows.map((query) => snap(place.top + (query - place.y) * place.scale));
    if (!part.tile) {
      context.fillStyle = this.ink.panel;
      context.fillRect(x0, y0, x1 - x0, y1 - y0);
      return;
    }
    const { kind } = this;
    const highest = this.scale.highest.value;
    const image = picture(part.tile, this.colours, highest, kind);
    const [[top, end], [left, right]] = [pixels(part, part.rows, 0), pixels(part, part.columns, 1)];
    context.drawImage(image, left, top, right - left, end - top, x0, y0, x1 - x0, y1 - y0);
  }

  /** Veil the first key's column if the colour scale excludes it. @param {Context} context @param {Place} place */
  _drawVeil(context, place) {
    const width = Math.max(3, place.scale, place.scale * 2 ** this.level) - place.x * place.scale;
    if (this.state.sink.value || width <= 0) return;
    context.fillStyle = this.ink.ground;
    context.globalAlpha = 0.8;
    context.fillRect(place.left, place.top, width, place.high);
    context.globalAlpha = 1;
  }

  /** The hatching of masked cells. */
  get hatching() {
    if (this.hatch) return this.hatch;
    const side = Math.max(4, Math.round(5 * this.ratio));
    const tile = new OffscreenCanvas(side, side);
    const pen = /** @type {OffscreenCanvasRenderingContext2D} */ (tile.getContext("2d"));
    pen.fillStyle = this.ink.panel;
    pen.fillRect(0, 0, side, side);
    pen.strokeStyle = this.ink.line;
    pen.lineWidth = this.ratio;
    pen.beginPath();
    for (const shift of [-side, 0, side]) {
      pen.moveTo(shift - 1, side + 1);
      pen.lineTo(shift + side + 1, -1);
    }
    pen.stroke();
    const pattern = /** @type {CanvasPattern} */ (this.context.createPattern(tile, "repeat"));
    pattern.setTransform(new DOMMatrix().scale(1 / this.ratio));
    this.hatch = pattern;
    return pattern;
  }

  /** Draw the names of the axes. @param {Context} context @param {Place} place */
  _drawAxisNames(context, place) {
    context.fillStyle = this.ink.quiet;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "alphabetic";
    context.fillText("keys →", place.left - 9, place.top - 36);
    context.fillText("queries ↓", place.left - 9, place.top - 22);
  }

  /** Update the legend, and the caption that describes the precision of the visible numbers. */
  _updateCaption() {
    const drawn = this.parts.filter((part) => !part.isMasked);
    const sampled = drawn.find((part) => part.tile && part.tile.done < 1)?.tile ?? null;
    const precisions = new Set(drawn.flatMap((part) => (part.tile ? [part.tile.precision] : [])));
    const cells = 2 ** this.level;
    const isLoading = drawn.some((part) => !part.tile || part.cell !== cells);
    const each = cells === 1 ? "every weight" : `${this.state.reduce.value} of ${cells} × ${cells}`;
    const note = drawn.find((part) => part.tile?.note)?.tile?.note;
    const precision = `${precisionText(precisions, sampled, isLoading)}${note ? `; ${note}` : ""}`;
    const bounds = drawn.some((part) => part.tile?.bounds); // in a one-file page that lacks some queries and keys
    this.caption.value = this.tiles.failed || (bounds ? precision : `${each} · ${precision}`);
    const { colours, kind } = this;
    const highest = this.scale.highest.value;
    const old = this.legend.value;
    const hasNaN = drawn.some((part) => part.tile?.hasNaN);
    if (
      old.highest !== highest ||
      old.kind !== kind ||
      old.colours !== colours ||
      old.hasNaN !== hasNaN
    )
      this.legend.value = { highest, kind, colours, hasNaN };
  }

  /** The weight of a cell, if an exact tile of single cells contains it; NaN if masked. @param {Cell} cell @returns {number | undefined} */
  valueAt(cell) {
    const part = this._partAt(cell);
    if (!part) return undefined;
    if (part.isMasked) return Number.NaN;
    return part.cell === 1 && part.tile?.precision === "exact" ? pixelValue(part, cell) : undefined;
  }

  /** The value of a cell's pixel, its precision, and the number of cells per side of the pixel. @param {Cell} cell */
  pixelAt(cell) {
    const part = this._partAt(cell);
    if (!part?.tile) return null;
    const { precision, bounds } = part.tile;
    return { value: pixelValue(part, cell), precision, bounds, cells: part.cell };
  }

  get _headKey() {
    return `${this.side.callId.value} ${this.side.head.value} ${this.state.reduce.value}`;
  }

  /** @param {Cell} cell */
  _partAt(cell) {
    if (!this.painted.value.startsWith(`${this._headKey} `)) return undefined; // another head is still painted
    return this.parts.find(
      ({ rows, columns }) =>
        cell.query >= rows[0] &&
        cell.query < rows[1] &&
        cell.key >= columns[0] &&
        cell.key < columns[1],
    );
  }

  /** The cell at a point of the canvas. @returns {Cell | null} */
  cellAt(/** @type {number} */ x, /** @type {number} */ y) {
    return cellAt(this.place, x, y);
  }
}

/** @param {Part} part @param {Cell} cell */
function pixelValue({ tile, corner, cell: size }, { query, key }) {
  const [row, column] = [query - corner[0], key - corner[1]].map((offset) =>
    Math.floor(offset / size),
  );
  if (!tile || row >= tile.rows || column >= tile.columns) return undefined;
  return tile.data?.[row * tile.columns + column];
}

/** @param {Set<string>} precisions @param {Tile | null} sampled @param {boolean} isLoading */
function precisionText(precisions, sampled, isLoading) {
  if (sampled) {
    const done = Math.floor(sampled.done * 100);
    return `sampled; exact map ${done} % computed`;
  }
  if (isLoading) return "loading";
  const others = [...precisions].filter((precision) => precision !== "exact");
  return others.length ? others.join(", ") : "exact";
}

/** @param {HTMLElement} element @returns {Ink} */
function inkOf(element) {
  const style = getComputedStyle(element);
  const colour = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim();
  return {
    text: style.color,
    quiet: colour("quiet"),
    ground: colour("ground"),
    mark: colour("mark"),
    highlight: colour("link"),
    match: colour("match"),
    line: colour("line"),
    panel: colour("panel"),
    segments: Array.from({ length: COLOURS }, (_, i) => colour(`segment-${i}`)),
    isDark: colour("dark") === "1",
  };
}
