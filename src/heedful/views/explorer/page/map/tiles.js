// Tiles of maps: asked for in the order of their importance, few at once, kept while there is room.

import { lengthOf, textOf } from "../tokens.js";
import { painted } from "./colours.js";

/** @import { Source } from "../types.js" */

export const SIDE = 256;
const KEPT = 220; // tiles with their numbers
const AT_ONCE = 4; // a browser has six connections to a host; tiles leave two to other questions
const AGAIN = 700; // milliseconds until a sampled tile is asked for again
const FAILED = 3000; // and one that could not be had
const BLOCK = 32; // pixels of the squares whose largest numbers are kept

/**
 * @typedef {object} Tile
 * @property {string} id
 * @property {string} of whose it is: call, head, pooling
 * @property {{call: string, place: string, reduce: string}} about
 * @property {Float32Array | null} data NaN where hidden
 * @property {number} rows
 * @property {number} columns
 * @property {string} word
 * @property {boolean} bounds whether some numbers are what a weight does not exceed
 * @property {number} done how much of the exact one there is, 0 to 1
 * @property {boolean} isStale whether a better one can be had now
 * @property {number} rest until when it is not asked for
 * @property {string} note why no exact one follows
 * @property {string} failed why it could not be had
 * @property {OffscreenCanvas | null} canvas
 * @property {string} look the colours of the canvas
 * @property {Float32Array | null} blocks
 */

export class Tiles {
  /** @param {Source} source @param {() => void} changed called when a tile has come */
  constructor(source, changed) {
    this.source = source;
    this.changed = changed;
    /** @type {Map<string, Tile>} */
    this.kept = new Map();
    /** @type {Map<string, AbortController>} */
    this.asking = new Map();
    /** @type {Tile[]} */
    this.wanted = [];
    this.timer = 0;
  }

  /** Why some of what is wanted cannot be had; "" where all can. */
  get failed() {
    return this.wanted.find((tile) => tile.failed)?.failed ?? "";
  }

  /** A tile that was asked for before. @returns {Tile | undefined} @param {string} call @param {number} head @param {number[]} place @param {string} reduce */
  known(call, head, place, reduce) {
    return this.kept.get(`${settled(call, place)} ${head} ${reduce} ${place.join()}`);
  }

  /** A tile, with no numbers yet where it has not come. @returns {Tile} @param {string} call @param {number} head @param {number[]} place @param {string} reduce */
  at(call, head, place, reduce) {
    const of = `${settled(call, place)} ${head} ${reduce}`;
    const id = `${of} ${place.join()}`;
    const tile = this.kept.get(id) ?? {
      id,
      of,
      about: { call, place: [head, ...place].join(), reduce },
      data: null,
      rows: 0,
      columns: 0,
      word: "",
      bounds: false,
      done: 0,
      isStale: false,
      rest: 0,
      note: "",
      failed: "",
      canvas: null,
      look: "",
      blocks: null,
    };
    this.kept.delete(id);
    this.kept.set(id, tile); // the latest used stands last
    for (const id of this.kept.keys()) {
      if (this.kept.size <= KEPT) break;
      this.kept.delete(id);
    }
    return tile;
  }

  /**
   * Fetch for a longer text what is wanted of it now, so that it is there when the text is shown.
   * @param {string} call the longer one
   */
  async ahead(call) {
    const places = this.wanted.filter((tile) => textOf(tile.about.call) === textOf(call));
    await Promise.all(
      places.map(async ({ about }) => {
        const [head, ...place] = about.place.split(",").map(Number);
        const tile = this.at(call, head, place, about.reduce);
        if (!tile.data) this._take(tile, await this.source.ask("tile", tile.about));
      }),
    );
  }

  /** What the latest picture needs, the most urgent first; what it does not need is let go. @param {Tile[]} wanted */
  want(wanted) {
    this.wanted = wanted;
    const ids = new Set(wanted.map((tile) => tile.id));
    for (const [id, end] of this.asking) if (!ids.has(id)) end.abort();
    this._next();
  }

  /** Ask for nothing more. */
  close() {
    this.want([]);
    clearTimeout(this.timer);
  }

  /** Ask for what is missing, then whether a sampled tile has become exact. */
  _next() {
    const now = performance.now();
    clearTimeout(this.timer);
    const polled = new Set();
    let soonest = Number.POSITIVE_INFINITY;
    for (const tile of this.wanted) {
      const waits = tile.data && !tile.isStale; // all that it could have is there, as yet
      if (waits && (tile.done >= 1 || polled.has(tile.of))) continue;
      if (waits) polled.add(tile.of); // one of them tells for all of its head
      if (this.asking.has(tile.id)) continue;
      if (tile.rest > now) soonest = Math.min(soonest, tile.rest);
      else if (this.asking.size < AT_ONCE) this._ask(tile);
    }
    if (soonest < Number.POSITIVE_INFINITY)
      this.timer = setTimeout(() => this._next(), soonest - now + 5);
  }

  /** @param {Tile} tile */
  async _ask(tile) {
    const end = new AbortController();
    this.asking.set(tile.id, end);
    try {
      this._take(tile, await this.source.ask("tile", tile.about, end.signal));
    } catch (error) {
      if (!end.signal.aborted) {
        tile.failed = String(/** @type {any} */ (error).message ?? error);
        tile.rest = performance.now() + FAILED;
      }
    }
    this.asking.delete(tile.id);
    if (!end.signal.aborted) this.changed();
    this._next();
  }

  /** @param {Tile} tile @param {import("../types.js").Answer} found */
  _take(tile, found) {
    tile.data = found.tile.data;
    [tile.rows, tile.columns] = found.tile.shape;
    tile.word = found.word ?? "exact";
    tile.bounds = Boolean(found.bounds);
    tile.done = found.done ?? (tile.word === "sampled" ? 0 : 1);
    tile.isStale = false;
    tile.rest = tile.done < 1 ? performance.now() + AGAIN : 0;
    tile.look = "";
    tile.blocks = null;
    tile.note = found.note ?? "";
    tile.failed = "";
    if (tile.done < 1) return;
    for (const other of this.kept.values())
      if (other.of === tile.of && other.data && other.done < 1) {
        other.isStale = true;
        other.rest = 0;
      }
  }
}

/**
 * The name under which a tile is kept. Rows that are written never change: a tile that has all its
 * rows is the same for every length of the text.
 * @param {string} call @param {number[]} place level, row, column
 */
function settled(call, [level, row]) {
  return (row + 1) * SIDE * 2 ** level <= lengthOf(call) ? textOf(call) : call;
}

/** A tile as a picture, made anew when its colours change; hidden cells are left out of it. @param {Tile} tile @param {Uint32Array} colours @param {number} highest @param {import("../types.js").Colours} kind */
export function picture(tile, colours, highest, kind) {
  const look = `${highest} ${kind} ${colours[200]}`;
  if (!tile.canvas || tile.look !== look) {
    if (tile.canvas?.width !== tile.columns || tile.canvas.height !== tile.rows)
      tile.canvas = new OffscreenCanvas(tile.columns, tile.rows);
    const pixels = painted(/** @type {Float32Array} */ (tile.data), colours, highest, kind, 0);
    const data = new ImageData(new Uint8ClampedArray(pixels.buffer), tile.columns, tile.rows);
    tile.canvas.getContext("2d")?.putImageData(data, 0, 0);
    tile.look = look;
  }
  return tile.canvas;
}

/**
 * The largest number of each block of a tile that some of its rows and columns touch.
 * @param {Tile} tile @param {[number, number]} rows @param {[number, number]} columns
 * @param {boolean} isFirst whether the tile begins with the first key, which is then left out
 * @returns {number[]} without blocks that have nothing
 */
export function largest(tile, rows, columns, isFirst) {
  tile.blocks ??= blocksOf(tile);
  const [lastRow, lastColumn] = [Math.min(rows[1], tile.rows), Math.min(columns[1], tile.columns)];
  const across = Math.ceil(tile.columns / BLOCK);
  const found = [];
  for (let r = Math.floor(rows[0] / BLOCK); r * BLOCK < lastRow; r++)
    for (let c = Math.floor(columns[0] / BLOCK); c * BLOCK < lastColumn; c++) {
      const weight = tile.blocks[2 * (r * across + c) + (isFirst && c === 0 ? 1 : 0)];
      if (weight > 0) found.push(weight);
    }
  return found;
}

/** Each block's largest number, with its first column and without. @param {Tile} tile */
function blocksOf({ data, rows, columns }) {
  const across = Math.ceil(columns / BLOCK);
  const found = new Float32Array(2 * across * Math.ceil(rows / BLOCK));
  if (!data) return found;
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) {
      const at = 2 * (Math.floor(r / BLOCK) * across + Math.floor(c / BLOCK));
      const weight = data[r * columns + c];
      if (weight > found[at]) found[at] = weight;
      if (c > 0 && weight > found[at + 1]) found[at + 1] = weight;
    }
  return found;
}

/** Whether all of a part of a tile is hidden. @param {Tile} tile @param {number[]} rows @param {number[]} columns */
export function isHidden(tile, rows, columns) {
  if (!tile.data || tile.word === "sampled") return false;
  for (let r = Math.floor(rows[0]); r < Math.min(rows[1], tile.rows); r++)
    for (let c = Math.floor(columns[0]); c < Math.min(columns[1], tile.columns); c++)
      if (!Number.isNaN(tile.data[r * tile.columns + c])) return false;
  return true;
}
