// Weights computed from query, key and the log-sum-exp of their row, as the library computes them:
// scale, soft cap, bias, mask, softmax. This is what the worker of worker_client.js runs.
import { unpacked } from "../wire.js";
import { Mask } from "./mask.js";

const RIVALS = 8; // of a weight
const COMPUTED = 4096 ** 2; // weights of a region that are all computed; of larger ones, of some rows

/** The file's parts by their names, with their numbers decoded. @type {Map<string, any>} */
const parts = new Map();

/** @typedef {"query" | "key" | "mask" | "bias"} Kind of a part that a head needs */

/**
 * A question about a head of a call of H heads, N queries and M keys.
 * @typedef {object} Question
 * @property {"part" | "line" | "shares" | "tile" | "strongest" | "cell"} what
 * @property {number} h the place of the head in its call
 * @property {Partial<Record<Kind, string>>} parts their names
 * @property {{shape: [number, number, number], scale: number, softcap: number | null, mask: any[], group: number}} call
 */

/** One head, with its numbers decoded. */
class Head {
  /** @param {Question} question */
  constructor({ call, h, parts: names }) {
    const [query, key, mask, bias] = /** @type {Kind[]} */ (["query", "key", "mask", "bias"]).map(
      (kind) => parts.get(names[kind] ?? ""),
    );
    this.N = call.shape[1];
    this.M = call.shape[2];
    this.call = call;
    this.h = h;
    this.query = query.numbers;
    this.key = key.numbers;
    this.width = this.query.length / Math.max(1, this.N);
    this.sums = query.sums.data;
    this.sinks = query.sinks?.data;
    this.values = query.values?.data;
    this.mask = new Mask(call.mask, mask ?? {}, call.shape);
    this.bias = bias ? biasOf(bias, this.N) : null;
  }

  /** The sum of products of a query and a key. */
  product(n, m) {
    const { query, key, width } = this;
    let sum = 0;
    for (let d = 0, i = n * width, j = m * width; d < width; d++, i++, j++)
      sum += query[i] * key[j];
    return sum;
  }

  /** Masked scores of a query with keys from one up to another; −∞ where hidden. */
  scores(n, from, to, out) {
    const { scale, softcap } = this.call;
    const [first, end] = this.mask.run(n);
    out.fill(-Infinity, 0, to - from);
    for (let m = Math.max(from, first); m < Math.min(to, end); m++) {
      if (!this.mask.allows(this.h, n, m)) continue;
      let score = this.product(n, m) * scale;
      if (softcap) score = softcap * Math.tanh(score / softcap);
      if (this.bias) score += this.bias(n, m);
      out[m - from] = score > -5e29 ? score : -Infinity;
    }
    return out;
  }

  /** Weights of a query on some keys, written into `out`; 0 where hidden. */
  weights(n, from, to, out) {
    this.scores(n, from, to, out);
    for (let i = 0; i < to - from; i++) out[i] = this.share(n, out[i]);
    return out;
  }

  /** The weight of a score in the row of a query. */
  share(n, score) {
    return score === -Infinity ? 0 : Math.min(1, Math.exp(score - this.sums[n]));
  }

  /** Single cells, and which of them the mask lets be seen. */
  part({ queries, keys }) {
    const shape = [queries[1] - queries[0], keys[1] - keys[0]];
    const data = new Float32Array(shape[0] * shape[1]);
    const seen = new Uint8Array(data.length);
    for (let n = queries[0], at = 0; n < queries[1]; n++) {
      this.weights(n, ...keys, data.subarray(at, at + shape[1]));
      for (let m = keys[0]; m < keys[1]; m++, at++) seen[at] = Number(this.mask.sees(this.h, n, m));
    }
    return { weights: { data, shape }, seen: { data: seen, shape } };
  }

  /** A row or a column. */
  line({ at, isRow }) {
    if (isRow) return this.weights(at, 0, this.M, new Float32Array(this.M));
    const row = new Float32Array(1);
    return Float32Array.from({ length: this.N }, (_, n) => this.weights(n, at, at + 1, row)[0]);
  }

  /** Sums over rows of what each segment of queries gives to each of keys, as ops/segments.py has them. */
  shares({ from, to, rows }) {
    const [A, B] = [from.length, to.length];
    const sums = {
      share: new Float64Array(A * B),
      chance: new Float64Array(A * B),
      left: new Float64Array(A),
      queries: new Float64Array(A),
    };
    const row = new Float32Array(this.M);
    const [share, seen] = [new Float64Array(B), new Float64Array(B)];
    for (let n = rows[0]; n < rows[1]; n++) {
      const mine = [...from.keys()].filter((a) => from[a].some(([x, y]) => n >= x && n < y));
      const choices = this.mask.count(this.h, n);
      if (!mine.length || !choices || this.sums[n] === -Infinity) continue;
      const [first, end] = this.mask.run(n);
      this.weights(n, first, end, row);
      const left = this.sinks ? row.subarray(0, end - first).reduce((a, b) => a + b, 0) : 1;
      for (let b = 0; b < B; b++) {
        share[b] = seen[b] = 0;
        for (const [x, y] of to[b])
          for (let m = Math.max(x, first); m < Math.min(y, end); m++) {
            share[b] += row[m - first];
            seen[b] += Number(this.mask.allows(this.h, n, m));
          }
      }
      for (const a of mine) {
        sums.queries[a]++;
        sums.left[a] += left;
        for (let b = 0; b < B; b++) {
          sums.share[a * B + b] += share[b];
          sums.chance[a * B + b] += (left * seen[b]) / choices;
        }
      }
    }
    return sums;
  }

  /**
   * Pixels of size × size weights; NaN where the mask hides all of them. Of a tile of very many
   * weights, one query of each row of pixels, in its middle.
   */
  tile({ rows, columns, size, reduce }) {
    const [wide, high] = [columns[1] - columns[0], rows[1] - rows[0]];
    const [from, to] = [columns[0] * size, Math.min(this.M, columns[1] * size)];
    const last = Math.min(this.N, rows[1] * size);
    const isSampled = (last - rows[0] * size) * (to - from) > COMPUTED;
    const data = new Float32Array(wide * high).fill(NaN);
    const line = new Float32Array(to - from);
    for (let n = rows[0] * size; n < last; n++) {
      const [first, end] = this.mask.run(n);
      if (first >= to || end <= from) continue;
      const row = Math.floor(n / size);
      const start = (row - rows[0]) * wide - columns[0]; // of the row of pixels
      const count = Math.min(size, this.N - row * size);
      const [left, right] = [Math.max(from, first), Math.min(to, end)];
      if (isSampled && n !== row * size + (count >> 1)) {
        // not computed, only looked at: by pixels, or where a table says which cells may be seen, by cells
        for (let m = left; m < right; m += this.mask.tables.length ? 1 : size - (m % size))
          if (this.mask.allows(this.h, n, m)) data[start + Math.floor(m / size)] ||= 0;
        continue;
      }
      this.weights(n, from, to, line);
      const share = isSampled ? 1 : 1 / count;
      for (let m = left; m < right; m++) {
        if (!this.mask.allows(this.h, n, m)) continue;
        const at = start + Math.floor(m / size);
        const before = data[at] || 0; // NaN at first
        const weight = line[m - from];
        data[at] =
          reduce === "max"
            ? Math.max(before, weight)
            : before + (weight * share) / Math.min(size, this.M - Math.floor(m / size) * size);
      }
    }
    return { isSampled, tile: { data, shape: [high, wide] } };
  }

  /** The largest weights of a region, [weight, query, key] each; of a large one, of some rows. */
  strongest({ queries, keys, count }) {
    /** @type {number[][]} */
    let cells = [];
    const row = new Float32Array(keys[1] - keys[0]);
    const by = Math.max(1, Math.ceil(((queries[1] - queries[0]) * row.length) / COMPUTED));
    for (let n = queries[0]; n < queries[1]; n += by) {
      this.weights(n, ...keys, row);
      const least = cells.length < count ? 0 : cells[cells.length - 1][0];
      const some = [...row.keys()].filter((i) => row[i] > least);
      if (!some.length) continue;
      const more = some.map((i) => [row[i], n, keys[0] + i]);
      cells = [...cells, ...more].sort((a, b) => b[0] - a[0]).slice(0, count);
    }
    return { by, cells };
  }

  /** One weight with all that makes it, as `handlers.py` tells it. */
  cell({ n, m }) {
    const { scale, softcap, group } = this.call;
    const { width } = this;
    const query = this.query.slice(n * width, (n + 1) * width);
    const key = this.key.slice(m * width, (m + 1) * width);
    const product = this.product(n, m);
    const scaled = product * scale;
    const scores = this.scores(n, 0, this.M, new Float64Array(this.M));
    const known = [...scores.keys()].filter((i) => scores[i] > -Infinity);
    const best = [...known].sort((a, b) => scores[b] - scores[a] || a - b).slice(0, RIVALS);
    const array = (data) => ({ data, shape: [data.length] });
    return {
      product,
      scaled,
      capped: softcap ? softcap * Math.tanh(scaled / softcap) : scaled,
      bias: this.bias ? this.bias(n, m) : 0,
      score: scores[m],
      log_sum_exp: this.sums[n],
      weight: this.share(n, scores[m]),
      sink: this.sinks ? this.sinks[this.sinks.length > 1 ? n : 0] : null,
      scale,
      softcap,
      seen: known.length,
      rank: known.filter((i) => scores[i] > scores[m]).length + 1,
      hidden: scores[m] === -Infinity,
      value: this.values ? this.values[m] : null,
      group,
      query: array(query),
      key: array(key),
      products: array(query.map((part, d) => part * key[d])),
      rivals: array(Int32Array.from(best)),
      scores: array(Float32Array.from(best, (i) => scores[i])),
      weights: array(Float32Array.from(best, (i) => this.share(n, scores[i]))),
    };
  }
}

/** What is added to the score of a pair. @param {any} part @param {number} N */
function biasOf({ distances, numbers, shape }, N) {
  if (distances) return (n, m) => distances.data[m - n + N - 1];
  const [rows, columns] = shape.data;
  return (n, m) => numbers[(rows > 1 ? n : 0) * columns + (columns > 1 ? m : 0)];
}

/** The numbers of a part: single ones, or codes of two bytes (stored_inputs.py). @param {any} part */
function decoded({ numbers, low, step }) {
  const { data, shape } = numbers;
  const count = data.length / shape[0];
  const bits = low ? new Uint16Array(count) : new Uint32Array(count);
  for (let plane = 0; plane < shape[0]; plane++)
    for (let i = 0; i < count; i++) bits[i] |= data[plane * count + i] << (8 * plane);
  if (!low) return new Float32Array(bits.buffer);
  const width = low.data.length;
  const decoded = new Float32Array(count);
  for (let i = 0; i < count; i++)
    decoded[i] = bits[i] ? low.data[i % width] + (bits[i] - 1) * step.data[i % width] : -Infinity;
  return decoded;
}

/** Take in a part of the file. @param {string} name @param {ArrayBuffer} bytes */
export function bring(name, bytes) {
  const part = unpacked(bytes);
  parts.set(name, part.numbers?.shape ? { ...part, numbers: decoded(part) } : part);
}

/** @param {Question} question */
export const computed = (question) =>
  new Head(question)[question.what](/** @type {any} */ (question));

globalThis.onmessage = ({ data }) => {
  if (data.bytes) return bring(data.name, data.bytes);
  try {
    globalThis.postMessage({ found: computed(data) });
  } catch (error) {
    globalThis.postMessage({ failed: String(/** @type {any} */ (error).message ?? error) });
  }
};
