// Tiles of maps, kept while there is room; the coarser one stands in until the finer one is there.
import { painted } from "./colours.js";

const MOST = 300;

export class Tiles {
  /** @param {any} source @param {() => void} changed called when a tile has come */
  constructor(source, changed) {
    this.source = source;
    this.changed = changed;
    this.kept = new Map();
    this.failed = "";
  }

  /** A tile that is known, or undefined; asked for if `fetch`. */
  tile(where, place, reduce, fetch) {
    const id = `${where} ${place.join()} ${reduce}`;
    const known = this.kept.get(id);
    if (known) {
      this.kept.delete(id);
      this.kept.set(id, known); // the latest used stands last
      const again = known.word === "sampled" && !known.asking && performance.now() > known.again;
      if (fetch && again) this._ask(id, known, where, place, reduce);
      known.wanted = performance.now();
      return known.data ? known : undefined;
    }
    if (fetch) {
      const tile = { wanted: performance.now(), place, word: "", data: null };
      this.kept.set(id, tile);
      this._ask(id, tile, where, place, reduce);
      this._forget();
    }
    return undefined;
  }

  async _ask(id, tile, where, place, reduce) {
    const end = new AbortController();
    tile.asking = end;
    try {
      const found = await this.source.ask(
        "tile",
        { call: where, place: place.join(), reduce },
        end.signal,
      );
      tile.data = found.tile.data;
      [tile.rows, tile.columns] = found.tile.shape;
      tile.word = found.word;
      tile.done = found.done;
      tile.again = performance.now() + 700;
      tile.canvas = null;
      tile.asking = null;
      this.failed = "";
      this.changed();
    } catch (error) {
      if (!tile.data) this.kept.delete(id);
      tile.asking = null;
      tile.again = performance.now() + 3000;
      if (!end.signal.aborted) {
        this.failed = String(/** @type {any} */ (error).message ?? error);
        this.changed();
      }
    }
  }

  /** Let go what is asked for and was not wanted in the latest picture. @param {number} since */
  abandon(since) {
    for (const tile of this.kept.values())
      if (tile.asking && tile.wanted < since) tile.asking.abort();
  }

  _forget() {
    for (const [id, tile] of this.kept) {
      if (this.kept.size <= MOST) return;
      tile.asking?.abort();
      this.kept.delete(id);
    }
  }
}

/** A tile as a picture, made anew when its colours change. */
export function picture(tile, colours, highest, kind, hidden) {
  const look = `${highest} ${kind} ${hidden} ${colours[200]}`;
  if (!tile.canvas || tile.look !== look) {
    tile.canvas ??= new OffscreenCanvas(tile.columns, tile.rows);
    const pixels = painted(tile.data, colours, highest, kind, hidden);
    const data = new ImageData(new Uint8ClampedArray(pixels.buffer), tile.columns, tile.rows);
    tile.canvas.getContext("2d").putImageData(data, 0, 0);
    tile.look = look;
  }
  return tile.canvas;
}

/** The largest number of a tile, without its first key where the sink is left out. */
export function largest(tile, sink) {
  const name = sink ? "with" : "without";
  tile.largest ??= {};
  if (tile.of !== tile.data) [tile.largest, tile.of] = [{}, tile.data];
  if (tile.largest[name] === undefined) {
    const skip = !sink && tile.place[3] === 0 ? 1 : 0;
    let found = 0;
    for (let r = 0; r < tile.rows; r++)
      for (let c = skip; c < tile.columns; c++) {
        const weight = tile.data[r * tile.columns + c];
        if (weight > found) found = weight;
      }
    tile.largest[name] = found;
  }
  return tile.largest[name];
}
