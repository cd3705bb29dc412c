// What a file without query and key knows of a call: pooled maps, and the largest weights of rows.
import { Mask } from "./mask.js";
import { joined, whole } from "./wire.js";

const FINER = 2 ** 15; // half-precision weights are kept times this (summaries.py)

/** A pooled map: halves that were made larger, or single ones. */
function weights(planes, isHalf) {
  const { bits, shape } = joined(planes);
  const data = isHalf ? whole(/** @type {any} */ (bits)) : new Float32Array(bits.buffer);
  if (isHalf) for (let i = 0; i < data.length; i++) data[i] /= FINER;
  return { data, shape };
}

/**
 * @typedef {{weight: number, atMost: number, hidden: boolean}} Known a weight; NaN where the file
 *   has it not, and then a number that it does not exceed
 */

export class Kept {
  /** @param {any} part of the file @param {any} about the call @param {any} mask null: not in it */
  constructor(part, about, mask) {
    this.shape = about.shape;
    this.cell = part.cell;
    this.half = part.half;
    this.mask = mask && new Mask(mask.parts, mask.arrays, about.shape);
    this.most = weights(part.most, part.half);
    this.mean = part.mean ? weights(part.mean, part.half) : this.most;
    this.top = 0;
    this.single = new Float32Array(0);
    this.keys = new Int32Array(0);
    this.rows = new globalThis.Map([...(part.rows?.data ?? [])].map((query, i) => [query, i]));
    if (part.weights) {
      this.single = new Float32Array(joined(part.weights).bits.buffer);
      const steps = joined(part.steps);
      this.keys = new Int32Array(steps.bits.buffer);
      this.top = steps.shape[2];
      let key = -1;
      for (let i = 0; i < this.keys.length; i++) {
        if (!(i % this.top)) key = -1;
        key += this.keys[i];
        this.keys[i] = key;
      }
    }
  }

  /** The word for what the maps have. */
  get word() {
    return this.half ? "half precision" : "exact";
  }

  get isWhole() {
    return this.cell === 1;
  }

  /** Whether the mask hides a pair, as far as the file can tell. */
  hides(h, n, m) {
    if (this.mask) return !this.mask.sees(h, n, m);
    return Number.isNaN(this.pooled(this.most, h, n, m));
  }

  pooled({ data, shape }, h, n, m) {
    const [, r, c] = shape;
    return data[h * r * c + Math.floor(n / this.cell) * c + Math.floor(m / this.cell)];
  }

  /**
   * The largest weights of a row, [key, weight] each, by their keys; null where it is not kept.
   * @returns {[number, number][] | null}
   */
  largest(h, n) {
    const at = this.rows.get(n);
    if (at === undefined) return null;
    const start = (h * this.rows.size + at) * this.top;
    /** @type {[number, number][]} */
    const found = [];
    for (let i = start; i < start + this.top; i++)
      if (this.keys[i] >= 0) found.push([this.keys[i], this.single[i]]);
    return found;
  }

  /**
   * The weights of a row that the file has, [key, weight] each: all that may be seen, or the largest.
   * @returns {[number, number][]}
   */
  known(h, n) {
    const largest = this.largest(h, n);
    if (!this.isWhole) return largest ?? [];
    /** @type {[number, number][]} */
    const found = [];
    for (let m = 0; m < this.shape[2]; m++) {
      const { weight, hidden } = this.weight(h, n, m, largest);
      if (!hidden) found.push([m, weight]);
    }
    return found;
  }

  /** What no other weight of a row exceeds; 0 where it has no other, 1 where the row is not kept. */
  below(largest) {
    if (!largest) return 1;
    if (largest.length < this.top) return 0;
    return Math.min(...largest.map(([, weight]) => weight));
  }

  /** One weight. @returns {Known} */
  weight(h, n, m, largest = this.largest(h, n)) {
    if (this.hides(h, n, m)) return { weight: 0, atMost: 0, hidden: true };
    const single = largest?.find(([key]) => key === m);
    const most = this.pooled(this.most, h, n, m);
    const weight = single ? single[1] : this.isWhole ? most : NaN;
    const atMost = Number.isNaN(weight) ? Math.min(this.below(largest), most) : weight;
    return { weight, atMost, hidden: false };
  }

  /** A tile whose pixels have `size` × `size` weights. */
  tile(h, [rows, columns], size, reduce) {
    if (size >= this.cell)
      return { word: this.word, data: this._coarse(h, rows, columns, size, reduce) };
    if (size > 1 && reduce === "mean")
      return {
        word: `mean of ${this.cell} × ${this.cell}, all that this file has`,
        data: this._repeated(h, rows, columns, size),
      };
    const which = this.rows.size === this.shape[1] ? "a row" : "some rows";
    return {
      word: this.top
        ? `the ${this.top} largest of ${which}; the rest: at most`
        : `at most: the largest of ${this.cell} × ${this.cell}`,
      data: this._bounded(h, rows, columns, size),
    };
  }

  /** Pixels of whole cells. */
  _coarse(h, rows, columns, size, reduce) {
    const map = reduce === "max" ? this.most : this.mean;
    const [, r, c] = map.shape;
    const [, N, M] = this.shape;
    const by = size / this.cell;
    const data = new Float32Array((rows[1] - rows[0]) * (columns[1] - columns[0]));
    let at = 0;
    for (let i = rows[0]; i < rows[1]; i++)
      for (let j = columns[0]; j < columns[1]; j++) {
        let [sum, most, count, seen] = [0, 0, 0, false];
        for (let y = i * by; y < Math.min(r, (i + 1) * by); y++)
          for (let x = j * by; x < Math.min(c, (j + 1) * by); x++) {
            // a cell at the edge has fewer weights
            const high = Math.min(this.cell, N - y * this.cell);
            const share = high * Math.min(this.cell, M - x * this.cell);
            const weight = map.data[(h * r + y) * c + x];
            count += share;
            if (Number.isNaN(weight)) continue;
            seen = true;
            sum += weight * share;
            if (weight > most) most = weight;
          }
        data[at++] = !seen ? NaN : reduce === "max" ? most : sum / count;
      }
    return data;
  }

  /** Pixels of a part of a cell, each with the cell's mean. */
  _repeated(h, rows, columns, size) {
    const data = this._bounded(h, rows, columns, size); // what is hidden
    const wide = columns[1] - columns[0];
    return data.map((weight, at) => {
      const [i, j] = [rows[0] + Math.floor(at / wide), columns[0] + (at % wide)];
      return Number.isNaN(weight) ? NaN : this.pooled(this.mean, h, i * size, j * size);
    });
  }

  /** Pixels of a part of a cell: single weights that are known, and what the others do not exceed. */
  _bounded(h, rows, columns, size) {
    const [, N, M] = this.shape;
    const wide = columns[1] - columns[0];
    const data = new Float32Array((rows[1] - rows[0]) * wide).fill(NaN);
    for (let n = rows[0] * size; n < Math.min(N, rows[1] * size); n++) {
      const start = (Math.floor(n / size) - rows[0]) * wide;
      const largest = this.largest(h, n);
      const below = this.below(largest);
      const [first, end] = this.mask?.run(n) ?? [0, M];
      const from = Math.max(columns[0], Math.floor(first / size));
      for (let j = from; j < Math.min(columns[1], Math.ceil(end / size)); j++) {
        if (size === 1 && this.mask && !this.mask.allows(h, n, j)) continue;
        const most = Math.min(below, this.pooled(this.most, h, n, j * size));
        const before = data[start + j - columns[0]];
        if (!(before >= most)) data[start + j - columns[0]] = most;
      }
      for (const [key, weight] of largest ?? []) {
        const j = Math.floor(key / size);
        if (j < columns[0] || j >= columns[1]) continue;
        const at = start + j - columns[0];
        if (!(data[at] >= weight)) data[at] = weight;
      }
    }
    return data;
  }
}
