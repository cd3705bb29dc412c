// The worker of the one-file page. It computes weights from queries, keys and the log-sum-exp of
// each row as the library does: scale, soft cap, bias, mask, softmax.
import { unpacked } from "../wire.js";
import { Mask } from "./mask.js";

const RIVALS = 8; // number of keys with the largest weights in the answer about a cell
const COMPUTED = 4096 ** 2; // maximum number of weights of a region; in a larger region, rows are sampled

/** Parts of the file by their names, with decoded arrays. @type {Map<string, any>} */
const parts = new Map();

/**
 * A question about a head of a call of H heads, N queries and M keys.
 * @typedef {object} Question
 * @property {"part" | "line" | "shares" | "tile" | "strongest" | "cell" | "norms"} what
 * @property {number} h the index of the head in its call
 * @property {Record<string, string>} parts the names of the parts of the head
 * @property {{shape: [number, number, number], scale: number, softcap: number | null, mask: any[], group: number}} call
 */

/** A head with its decoded arrays. */
class Head {
  /** @param {Question} question */
  constructor({ call, h, parts: names }) {
    const [query, key, mask, bias] = ["query", "key", "mask", "bias"].map((kind) =>
      parts.get(names[kind] ?? ""),
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

  /** The dot product of a query and a key. */
  product(n, m) {
    const { query, key, width } = this;
    let sum = 0;
    for (let d = 0, i = n * width, j = m * width; d < width; d++, i++, j++)
      sum += query[i] * key[j];
    return sum;
  }

  /** Scores of a query with the keys [from, to), written into `out`; −∞ if masked. */
  scores(n, from, to, out) {
    const { scale, softcap } = this.call;
    const [first, end] = this.mask.range(n);
    out.fill(-Infinity, 0, to - from);
    for (let m = Math.max(from, first); m < Math.min(to, end); m++) {
      if (!this.mask.allows(this.h, n, m)) continue;
      let score = this.product(n, m) * scale;
      if (softcap) score = softcap * Math.tanh(score / softcap);
      if (this.bias) score += this.bias(n, m);
      out[m - from] = score <= -5e29 ? -Infinity : score;
    }
    return out;
  }

  /** Weights of a query on the keys [from, to), written into `out`; 0 if masked. */
  weights(n, from, to, out) {
    this.scores(n, from, to, out);
    for (let i = 0; i < to - from; i++) out[i] = this.share(n, out[i]);
    return out;
  }

  /** The weight of a score in the row of a query. */
  share(n, score) {
    return score === -Infinity ? 0 : Math.min(1, Math.exp(score - this.sums[n]));
  }

  /** The weights of a region, and which of its cells are not masked. */
  part({ queries, keys }) {
    const shape = [queries[1] - queries[0], keys[1] - keys[0]];
    const data = new Float32Array(shape[0] * shape[1]);
    const isAllowed = new Uint8Array(data.length);
    for (let n = queries[0], i = 0; n < queries[1]; n++) {
      this.weights(n, ...keys, data.subarray(i, i + shape[1]));
      for (let m = keys[0]; m < keys[1]; m++, i++)
        isAllowed[i] = Number(this.mask.allowsPair(this.h, n, m));
    }
    return { weights: { data, shape }, seen: { data: isAllowed, shape } };
  }

  /** The weights of a row or a column. */
  line({ at, isRow }) {
    if (isRow) return this.weights(at, 0, this.M, new Float32Array(this.M));
    const row = new Float32Array(1);
    return Float32Array.from({ length: this.N }, (_, n) => this.weights(n, at, at + 1, row)[0]);
  }

  /** The weight of each query segment on each key segment, summed over rows (as in ops/segments.py). */
  shares({ from, to, rows }) {
    const [A, B] = [from.length, to.length];
    const [share, chance] = [0, 1].map(() => new Float64Array(A * B));
    const [total, queries] = [0, 1].map(() => new Float64Array(A));
    const row = new Float32Array(this.M);
    const [ofRow, allowed] = [new Float64Array(B), new Float64Array(B)];
    for (let n = rows[0]; n < rows[1]; n++) {
      const segments = [...from.keys()].filter((a) => from[a].some(([x, y]) => n >= x && n < y));
      const allowedKeys = this.mask.count(this.h, n);
      if (!segments.length || !allowedKeys || this.sums[n] === -Infinity) continue;
      const [first, end] = this.mask.range(n);
      this.weights(n, first, end, row);
      const sum = this.sinks ? row.subarray(0, end - first).reduce((a, b) => a + b, 0) : 1;
      for (let b = 0; b < B; b++) {
        ofRow[b] = allowed[b] = 0;
        for (const [x, y] of to[b])
          for (let m = Math.max(x, first); m < Math.min(y, end); m++) {
            ofRow[b] += row[m - first];
            allowed[b] += Number(this.mask.allows(this.h, n, m));
          }
      }
      for (const a of segments) {
        queries[a]++;
        total[a] += sum;
        for (let b = 0; b < B; b++) {
          share[a * B + b] += ofRow[b];
          chance[a * B + b] += (sum * allowed[b]) / allowedKeys;
        }
      }
    }
    return { share, chance, total, queries };
  }

  /** Pixels of size × size weights; NaN if all of them are masked, Infinity if one is not a number. In a tile of more than COMPUTED weights, each row of pixels uses only its middle query. */
  tile({ rows, columns, size, reduce }) {
    const [wide, high] = [columns[1] - columns[0], rows[1] - rows[0]];
    const [from, to] = [columns[0] * size, Math.min(this.M, columns[1] * size)];
    const last = Math.min(this.N, rows[1] * size);
    const isSampled = (last - rows[0] * size) * (to - from) > COMPUTED;
    const data = new Float32Array(wide * high).fill(NaN);
    const line = new Float32Array(to - from);
    for (let n = rows[0] * size; n < last; n++) {
      const [first, end] = this.mask.range(n);
      if (first >= to || end <= from) continue;
      const row = Math.floor(n / size);
      const start = (row - rows[0]) * wide - columns[0]; // offset of the row of pixels
      const count = Math.min(size, this.N - row * size);
      const [left, right] = [Math.max(from, first), Math.min(to, end)];
      if (isSampled && n !== row * size + (count >> 1)) {
        // find the pixels that are not fully masked; if the mask has a table, look at each cell
        for (let m = left; m < right; m += this.mask.tables.length ? 1 : size - (m % size))
          if (this.mask.allows(this.h, n, m)) data[start + Math.floor(m / size)] ||= 0;
        continue;
      }
      this.weights(n, from, to, line);
      const share = isSampled ? 1 : 1 / count;
      for (let m = left; m < right; m++) {
        if (!this.mask.allows(this.h, n, m)) continue;
        const pixel = start + Math.floor(m / size);
        const previous = data[pixel] || 0; // initially NaN
        const weight = Number.isNaN(line[m - from]) ? Infinity : line[m - from];
        data[pixel] =
          reduce === "max"
            ? Math.max(previous, weight)
            : previous + (weight * share) / Math.min(size, this.M - Math.floor(m / size) * size);
      }
    }
    return { isSampled, tile: { data, shape: [high, wide] } };
  }

  /** The largest weights of a region as [weight, query, key]; large regions are sampled by rows. */
  strongest({ queries, keys, count }) {
    /** @type {number[][]} */
    let cells = [];
    const row = new Float32Array(keys[1] - keys[0]);
    const step = Math.max(1, Math.ceil(((queries[1] - queries[0]) * row.length) / COMPUTED));
    for (let n = queries[0]; n < queries[1]; n += step) {
      this.weights(n, ...keys, row);
      const smallest = cells.length < count ? 0 : cells[cells.length - 1][0];
      const candidates = [...row.keys()].filter((i) => row[i] > smallest);
      if (!candidates.length) continue;
      const more = candidates.map((i) => [row[i], n, keys[0] + i]);
      cells = [...cells, ...more].sort((a, b) => b[0] - a[0]).slice(0, count);
    }
    return { step, cells };
  }

  /** The norm of each key's value. @param {Question} _ */
  norms(_) {
    return this.values;
  }

  /** A weight with its calculation, in the format of handlers.py. */
  cell({ n, m }) {
    const { scale, softcap, group } = this.call;
    const { width } = this;
    const query = this.query.slice(n * width, (n + 1) * width);
    const key = this.key.slice(m * width, (m + 1) * width);
    const product = this.product(n, m);
    const scaled = product * scale;
    const scores = this.scores(n, 0, this.M, new Float64Array(this.M));
    const visible = [...scores.keys()].filter((i) => scores[i] !== -Infinity);
    const best = [...visible].sort((a, b) => scores[b] - scores[a] || a - b).slice(0, RIVALS);
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
      seen: visible.length,
      rank: visible.filter((i) => scores[i] > scores[m]).length + 1,
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

/** A function that returns the bias of a query and a key. @param {any} part @param {number} N */
function biasOf({ distances, numbers, shape }, N) {
  if (distances) return (n, m) => distances.data[m - n + N - 1];
  const [rows, columns] = shape.data;
  return (n, m) => numbers[(rows > 1 ? n : 0) * columns + (columns > 1 ? m : 0)];
}

/** Decode the numbers of a part: float32, or two-byte codes (stored_inputs.py). @param {any} part */
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

/** Store a part of the file. @param {string} name @param {ArrayBuffer} bytes */
export function storePart(name, bytes) {
  const part = unpacked(bytes);
  parts.set(name, part.numbers?.shape ? { ...part, numbers: decoded(part) } : part);
}

/** Answer a question. @param {Question} question */
export const computed = (question) =>
  new Head(question)[question.what](/** @type {any} */ (question));

globalThis.onmessage = ({ data }) => {
  if (data.bytes) return storePart(data.name, data.bytes);
  try {
    globalThis.postMessage({ result: computed(data) });
  } catch (error) {
    globalThis.postMessage({ failed: String(/** @type {any} */ (error).message ?? error) });
  }
};
