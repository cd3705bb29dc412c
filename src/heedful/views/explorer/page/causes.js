// Weights computed from query, key and the log-sum-exp of their row, as the library computes them:
// scale, soft cap, bias, mask, softmax. This is what the worker of computing.js runs.
import { Mask } from "./mask.js";
import { joined, whole } from "./wire.js";

const KEPT = 8; // heads whose numbers stand ready
const RIVALS = 8;

/** One call. H heads, N queries, M keys, `width` numbers in each. */
export class Causes {
  /** @param {any} part of the file @param {any} shared mask and bias @param {number[]} shape */
  constructor(part, shared, shape) {
    this.about = part;
    this.shape = shape;
    this.mask = new Mask(part.mask, shared, shape);
    this.sums = part.sums.data;
    this.query = joined(part.query).bits;
    this.key = joined(part.key).bits;
    this.bias = part.bias ? bias(part.bias, shared, shape) : null;
    this.ready = new globalThis.Map();
  }

  /** A head's queries (N, width) and keys (M, width). @param {number} h */
  head(h) {
    const known = this.ready.get(h);
    if (known) return known;
    const [H, N, M] = this.shape;
    const { width, groups } = this.about;
    const group = Math.floor(h / (H / groups));
    const made = {
      query: this._numbers(this.query, h * N * width, N * width, this.about["query up"]),
      key: this._numbers(this.key, group * M * width, M * width, this.about["key up"]),
    };
    if (this.ready.size >= KEPT) this.ready.delete(this.ready.keys().next().value);
    this.ready.set(h, made);
    return made;
  }

  _numbers(bits, start, count, up) {
    const some = bits.slice(start, start + count);
    if (!this.about.half) return new Float32Array(some.buffer);
    const numbers = whole(some);
    const by = 2 ** up;
    for (let i = 0; i < count; i++) numbers[i] *= by;
    return numbers;
  }

  /** Masked scores of a query with keys from one up to another; −∞ where hidden. */
  scores(h, n, from, to, out) {
    const { query, key } = this.head(h);
    const { width, scale, softcap } = this.about;
    const [first, end] = this.mask.run(n);
    out.fill(-Infinity, 0, to - from);
    const q = query.subarray(n * width, (n + 1) * width);
    for (let m = Math.max(from, first); m < Math.min(to, end); m++) {
      if (!this.mask.allows(h, n, m)) continue;
      let score = 0;
      for (let d = 0, at = m * width; d < width; d++, at++) score += q[d] * key[at];
      score *= scale;
      if (softcap) score = softcap * Math.tanh(score / softcap);
      if (this.bias) score += this.bias(h, n, m);
      out[m - from] = score > -5e29 ? score : -Infinity;
    }
    return out;
  }

  /** Weights of a query on some keys, written into `out`; 0 where hidden. */
  weights(h, n, from, to, out) {
    this.scores(h, n, from, to, out);
    const sum = this.sums[h * this.shape[1] + n];
    for (let i = 0; i < to - from; i++)
      out[i] = out[i] === -Infinity ? 0 : Math.min(1, Math.exp(out[i] - sum));
    return out;
  }

  /** (n, m) weights. @param {{h: number, queries: number[], keys: number[]}} asked */
  part({ h, queries, keys }) {
    const wide = keys[1] - keys[0];
    const data = new Float32Array((queries[1] - queries[0]) * wide);
    for (let n = queries[0]; n < queries[1]; n++)
      this.weights(h, n, keys[0], keys[1], data.subarray((n - queries[0]) * wide));
    return data;
  }

  /** The mean of some heads' rows or columns. */
  line({ heads, at, isRow }) {
    const [, N, M] = this.shape;
    const data = new Float32Array(isRow ? M : N);
    const one = new Float32Array(isRow ? M : 1);
    for (const h of heads)
      if (isRow) {
        this.weights(h, at, 0, M, one);
        for (let m = 0; m < M; m++) data[m] += one[m] / heads.length;
      } else
        for (let n = 0; n < N; n++)
          data[n] += this.weights(h, n, at, at + 1, one)[0] / heads.length;
    return data;
  }

  /** Sums over rows of what each segment of queries gives to each of keys, as ops/segments.py has them. */
  shares({ h, from, to, rows }) {
    const [, N, M] = this.shape;
    const [A, B] = [from.length, to.length];
    const found = {
      share: new Float64Array(A * B),
      chance: new Float64Array(A * B),
      left: new Float64Array(A),
      queries: new Float64Array(A),
      sinks: Boolean(this.about.sinks),
    };
    const one = new Float32Array(M);
    const [share, seen] = [new Float64Array(B), new Float64Array(B)];
    for (let n = rows[0]; n < rows[1]; n++) {
      const mine = [...from.keys()].filter((a) => from[a].some(([x, y]) => n >= x && n < y));
      const choices = this.mask.count(h, n);
      if (!mine.length || !choices || this.sums[h * N + n] === -Infinity) continue;
      const [first, end] = this.mask.run(n);
      this.weights(h, n, first, end, one);
      let left = 1;
      if (found.sinks) {
        left = 0;
        for (let i = 0; i < end - first; i++) left += one[i];
      }
      for (let b = 0; b < B; b++) {
        share[b] = seen[b] = 0;
        for (const [x, y] of to[b]) {
          const [begin, stop] = [Math.max(x, first), Math.min(y, end)];
          for (let m = begin; m < stop; m++) share[b] += one[m - first];
          if (!this.mask.tables.length) seen[b] += Math.max(0, stop - begin);
          else for (let m = begin; m < stop; m++) seen[b] += Number(this.mask.allows(h, n, m));
        }
      }
      for (const a of mine) {
        found.queries[a]++;
        found.left[a] += left;
        for (let b = 0; b < B; b++) {
          found.share[a * B + b] += share[b];
          found.chance[a * B + b] += (left * seen[b]) / choices;
        }
      }
    }
    return found;
  }

  /** Pixels of size × size weights; NaN where the mask hides all of them. */
  tile({ h, rows, columns, size, reduce }) {
    const [, N, M] = this.shape;
    const [wide, high] = [columns[1] - columns[0], rows[1] - rows[0]];
    const [from, to] = [columns[0] * size, Math.min(M, columns[1] * size)];
    const data = new Float32Array(wide * high).fill(NaN);
    const one = new Float32Array(to - from);
    for (let n = rows[0] * size; n < Math.min(N, rows[1] * size); n++) {
      const [first, end] = this.mask.run(n);
      if (first >= to || end <= from) continue;
      this.weights(h, n, from, to, one);
      const start = (Math.floor(n / size) - rows[0]) * wide;
      const count = Math.min(size, N - Math.floor(n / size) * size);
      for (let m = Math.max(from, first); m < Math.min(to, end); m++) {
        if (this.mask.tables.length && !this.mask.allows(h, n, m)) continue;
        const column = Math.floor(m / size);
        const at = start + column - columns[0];
        const before = Number.isNaN(data[at]) ? 0 : data[at];
        const weight = one[m - from];
        data[at] =
          reduce === "max"
            ? Math.max(before, weight)
            : before + weight / (count * Math.min(size, M - column * size));
      }
    }
    return data;
  }

  /** The largest weights of a region, [weight, query, key] each. */
  strongest({ h, queries, keys, count }) {
    /** @type {number[][]} */
    let best = [];
    const one = new Float32Array(keys[1] - keys[0]);
    for (let n = queries[0]; n < queries[1]; n++) {
      this.weights(h, n, keys[0], keys[1], one);
      const least = best.length < count ? 0 : best[best.length - 1][0];
      const some = [...one.keys()].filter((i) => one[i] > least);
      if (!some.length) continue;
      const more = some.map((i) => [one[i], n, keys[0] + i]);
      best = [...best, ...more].sort((a, b) => b[0] - a[0]).slice(0, count);
    }
    return best;
  }

  /** One weight with all that makes it, as `answers.py` tells it. */
  cell({ h, n, m }) {
    const [H, N, M] = this.shape;
    const { width, scale, softcap, groups, sinks, values } = this.about;
    const { query, key } = this.head(h);
    const q = query.slice(n * width, (n + 1) * width);
    const k = key.slice(m * width, (m + 1) * width);
    const products = q.map((one, d) => one * k[d]);
    let product = 0;
    for (let d = 0; d < width; d++) product += q[d] * k[d];
    const scaled = product * scale;
    const scores = this.scores(h, n, 0, M, new Float64Array(M));
    const sum = this.sums[h * N + n];
    const share = (score) => (score === -Infinity ? 0 : Math.min(1, Math.exp(score - sum)));
    const known = [...scores.keys()].filter((i) => scores[i] > -Infinity);
    const best = [...known].sort((a, b) => scores[b] - scores[a] || a - b).slice(0, RIVALS);
    const array = (data) => ({ data, shape: [data.length] });
    const value = values ? values.data[Math.floor(h / (H / values.shape[0])) * M + m] : null;
    return {
      product,
      scaled,
      capped: softcap ? softcap * Math.tanh(scaled / softcap) : scaled,
      bias: this.bias ? this.bias(h, n, m) : 0,
      score: scores[m],
      log_sum_exp: sum,
      weight: share(scores[m]),
      sink: sinks ? sinks.data[sinks.shape.length > 1 ? h * N + n : h] : null,
      scale,
      softcap,
      seen: known.length,
      rank: known.filter((i) => scores[i] > scores[m]).length + 1,
      hidden: scores[m] === -Infinity,
      value,
      group: H / groups,
      query: array(q),
      key: array(k),
      products: array(products),
      rivals: array(Int32Array.from(best)),
      scores: array(Float32Array.from(best, (i) => scores[i])),
      weights: array(Float32Array.from(best, (i) => share(scores[i]))),
    };
  }
}

/**
 * What is added to the score of a pair.
 * @param {string} kind @param {any} shared @param {number[]} shape
 * @returns {(h: number, n: number, m: number) => number}
 */
function bias(kind, shared, [, N, M]) {
  if (kind === "distances") {
    const { data, shape } = shared.bias;
    return (h, n, m) => data[(shape[0] === 1 ? 0 : h) * (N + M - 1) + m - n + N - 1];
  }
  const data = kind === "halves" ? whole(joined(shared.bias).bits) : shared.bias.data;
  const shape = kind === "halves" ? [...shared.shape.data] : shared.bias.shape;
  const at = (index, size) => (size === 1 ? 0 : index);
  return (h, n, m) =>
    data[(at(h, shape[0]) * shape[1] + at(n, shape[1])) * shape[2] + at(m, shape[2])];
}

const calls = new globalThis.Map();

/** A call that is brought, or a question about one. @param {MessageEvent} event */
function answer({ data }) {
  if (data.load) calls.set(data.load, new Causes(data.part, data.shared, data.shape));
  if (data.load) return;
  try {
    globalThis.postMessage({ found: calls.get(data.call)[data.what](data) });
  } catch (error) {
    globalThis.postMessage({ failed: String(/** @type {any} */ (error).message ?? error) });
  }
}

globalThis.onmessage = answer;
