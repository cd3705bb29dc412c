// Tiles of maps: requested in order of urgency, few at a time, and cached.
import { lengthOf, textOf } from "../tokens.js";
import { paintPixels } from "./colours.js";

/** @import { Source } from "../types.js" */

export const SIDE = 256;
const CACHED = 220; // tiles
const PARALLEL = 4; // a browser opens six connections to a host; two remain for other requests
const POLL_PAUSE = 700; // milliseconds before a sampled tile is requested again
const RETRY_PAUSE = 3000; // milliseconds before a failed tile is requested again
const BLOCK = 32; // pixels per side of a block; the colour scale uses the largest weight of each block

export class Tile {
  /** @type {Float32Array | null} */
  data = null; // NaN: masked; Infinity: not a number
  hasNaN = false; // whether some weights are not numbers
  rows = 0;
  columns = 0;
  precision = "";
  bounds = false; // whether some numbers are upper bounds of the weights
  done = 0; // the computed fraction of the exact tile
  isStale = false; // whether the source has a more exact tile
  pausedUntil = 0; // when it may be requested again
  note = ""; // why no exact tile follows
  failed = ""; // why the request failed
  /** @type {OffscreenCanvas | null} */
  canvas = null;
  colourKey = ""; // the colours of the canvas
  /** @type {Float32Array | null} */
  blocks = null;

  /** @param {string} id @param {string} map call, head, pooling @param {{call: string, place: string, reduce: string}} fields of its request */
  constructor(id, map, fields) {
    this.id = id;
    this.map = map;
    this.fields = fields;
  }
}

export class Tiles {
  /** @param {Source} source @param {() => void} changed called when a tile arrives */
  constructor(source, changed) {
    this.source = source;
    this.changed = changed;
    /** @type {Map<string, Tile>} */
    this.cache = new Map();
    /** @type {Map<string, AbortController>} */
    this.requests = new Map();
    /** @type {Tile[]} */
    this.needed = [];
    this.timer = 0;
  }

  /** Why a needed tile failed; "" if none did. */
  get failed() {
    return this.needed.find((tile) => tile.failed)?.failed ?? "";
  }

  /** A cached tile. @returns {Tile | undefined} @param {string} call @param {number} head @param {number[]} place @param {string} reduce */
  find(call, head, place, reduce) {
    return this.cache.get(`${cacheKey(call, place)} ${head} ${reduce} ${place.join()}`);
  }

  /** A tile from the cache, or a new one, whose data is null until it arrives. @returns {Tile} @param {string} call @param {number} head @param {number[]} place @param {string} reduce */
  get(call, head, place, reduce) {
    const map = `${cacheKey(call, place)} ${head} ${reduce}`;
    const id = `${map} ${place.join()}`;
    const fields = { call, place: [head, ...place].join(), reduce };
    const tile = this.cache.get(id) ?? new Tile(id, map, fields);
    this.cache.delete(id);
    this.cache.set(id, tile); // the most recently used is last
    const [oldest] = this.cache.keys();
    if (this.cache.size > CACHED) this.cache.delete(oldest);
    return tile;
  }

  /** Prefetch the needed tiles of a text that has grown. @param {string} call the id with the new number of tokens */
  async prefetch(call) {
    const tiles = this.needed.filter((tile) => textOf(tile.fields.call) === textOf(call));
    await Promise.all(
      tiles.map(async ({ fields }) => {
        const [head, ...place] = fields.place.split(",").map(Number);
        const tile = this.get(call, head, place, fields.reduce);
        if (!tile.data) this._store(tile, await this.source.ask("tile", tile.fields));
      }),
    );
  }

  /** Set the tiles that are needed, the most urgent first; abort other requests. @param {Tile[]} needed */
  setNeeded(needed) {
    this.needed = needed;
    const ids = new Set(needed.map((tile) => tile.id));
    for (const [id, end] of this.requests) if (!ids.has(id)) end.abort();
    this._next();
  }

  /** Stop requesting. */
  close() {
    this.setNeeded([]);
    clearTimeout(this.timer);
  }

  /** Request missing tiles, and sampled tiles again. */
  _next() {
    const now = performance.now();
    clearTimeout(this.timer);
    const polled = new Set();
    let soonest = Number.POSITIVE_INFINITY;
    for (const tile of this.needed) {
      const isLoaded = tile.data && !tile.isStale;
      if (isLoaded && (tile.done >= 1 || polled.has(tile.map))) continue;
      if (isLoaded) polled.add(tile.map); // polling one tile is enough for all tiles of a map
      if (this.requests.has(tile.id)) continue;
      if (tile.pausedUntil > now) soonest = Math.min(soonest, tile.pausedUntil);
      else if (this.requests.size < PARALLEL) this._ask(tile);
    }
    if (soonest < Number.POSITIVE_INFINITY)
      this.timer = setTimeout(() => this._next(), soonest - now + 5);
  }

  /** @param {Tile} tile */
  async _ask(tile) {
    const end = new AbortController();
    this.requests.set(tile.id, end);
    try {
      this._store(tile, await this.source.ask("tile", tile.fields, end.signal));
    } catch (error) {
      if (!end.signal.aborted) {
        tile.failed = String(/** @type {any} */ (error).message ?? error);
        tile.pausedUntil = performance.now() + RETRY_PAUSE;
      }
    }
    this.requests.delete(tile.id);
    if (!end.signal.aborted) this.changed();
    this._next();
  }

  /** Store an answer in a tile. @param {Tile} tile @param {import("../types.js").Answer} answer */
  _store(tile, answer) {
    tile.data = answer.tile.data;
    tile.hasNaN = answer.tile.data.includes(Infinity);
    [tile.rows, tile.columns] = answer.tile.shape;
    tile.precision = answer.word ?? "exact";
    tile.bounds = Boolean(answer.bounds);
    tile.done = answer.done ?? (tile.precision === "sampled" ? 0 : 1);
    tile.isStale = false;
    tile.pausedUntil = tile.done < 1 ? performance.now() + POLL_PAUSE : 0;
    tile.colourKey = "";
    tile.blocks = null;
    tile.note = answer.note ?? "";
    tile.failed = "";
    if (tile.done < 1) return;
    for (const other of this.cache.values())
      if (other.map === tile.map && other.data && other.done < 1) {
        other.isStale = true;
        other.pausedUntil = 0;
      }
  }
}

/** The call id for the cache: a tile whose rows all exist stays the same when the text grows. @param {string} call @param {number[]} place level, row, column */
function cacheKey(call, [level, row]) {
  return (row + 1) * SIDE * 2 ** level <= lengthOf(call) ? textOf(call) : call;
}

/** A tile as an image, cached per colour scale; masked cells are transparent. @param {Tile} tile @param {Uint32Array} colours @param {number} highest @param {import("../types.js").Colours} kind */
export function picture(tile, colours, highest, kind) {
  const colourKey = `${highest} ${kind} ${colours[200]}`;
  if (!tile.canvas || tile.colourKey !== colourKey) {
    if (tile.canvas?.width !== tile.columns || tile.canvas.height !== tile.rows)
      tile.canvas = new OffscreenCanvas(tile.columns, tile.rows);
    const pixels = paintPixels(/** @type {Float32Array} */ (tile.data), colours, highest, kind, 0);
    const data = new ImageData(new Uint8ClampedArray(pixels.buffer), tile.columns, tile.rows);
    tile.canvas.getContext("2d")?.putImageData(data, 0, 0);
    tile.colourKey = colourKey;
  }
  return tile.canvas;
}

/** The largest weight of each nonempty block of a tile within some rows and columns. @param {Tile} tile @param {[number, number]} rows @param {[number, number]} columns @param {boolean} isFirst whether the tile begins with the first key and that key is excluded */
export function largest(tile, rows, columns, isFirst) {
  tile.blocks ??= blocksOf(tile);
  const [lastRow, lastColumn] = [Math.min(rows[1], tile.rows), Math.min(columns[1], tile.columns)];
  const across = Math.ceil(tile.columns / BLOCK);
  const weights = [];
  for (let r = Math.floor(rows[0] / BLOCK); r * BLOCK < lastRow; r++)
    for (let c = Math.floor(columns[0] / BLOCK); c * BLOCK < lastColumn; c++) {
      const weight = tile.blocks[2 * (r * across + c) + (isFirst && c === 0 ? 1 : 0)];
      if (weight > 0) weights.push(weight);
    }
  return weights;
}

/** Each block's largest weight, with and without the tile's first column. @param {Tile} tile */
function blocksOf({ data, rows, columns }) {
  const across = Math.ceil(columns / BLOCK);
  const blocks = new Float32Array(2 * across * Math.ceil(rows / BLOCK));
  if (!data) return blocks;
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) {
      const index = 2 * (Math.floor(r / BLOCK) * across + Math.floor(c / BLOCK));
      const weight = Math.abs(data[r * columns + c]);
      if (weight === Infinity) continue; // not a number
      if (weight > blocks[index]) blocks[index] = weight;
      if (c > 0 && weight > blocks[index + 1]) blocks[index + 1] = weight;
    }
  return blocks;
}

/** Whether all cells of a part of a tile are masked. @param {Tile} tile @param {number[]} rows @param {number[]} columns */
export function isMasked(tile, rows, columns) {
  if (!tile.data || tile.precision === "sampled") return false;
  for (let r = Math.floor(rows[0]); r < Math.min(rows[1], tile.rows); r++)
    for (let c = Math.floor(columns[0]); c < Math.min(columns[1], tile.columns); c++)
      if (!Number.isNaN(tile.data[r * tile.columns + c])) return false;
  return true;
}
