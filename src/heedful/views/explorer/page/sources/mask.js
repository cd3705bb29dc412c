// Masks of the one-file page, from their stored parameters and bits (stored_inputs.py).

/**
 * @typedef {{data: Float32Array | Int32Array | Uint8Array, shape: number[]}} Numbers
 * @typedef {{causal?: number, window?: number, offset?: number, runs?: string, bits?: string}} Part
 */

export class Mask {
  /** @param {Part[]} parts @param {Record<string, Numbers>} arrays @param {number[]} shape H, N, M */
  constructor(parts, arrays, [, N, M]) {
    this.parts = parts;
    this.arrays = arrays;
    this.N = N;
    this.M = M;
    this.tables = parts.filter((part) => part.bits).map((part) => arrays[part.bits ?? ""]);
  }

  /** A range [first, end) outside which all keys are masked for a query. @param {number} n */
  range(n) {
    let [first, end] = [0, this.M];
    for (const part of this.parts) {
      if (part.causal !== undefined) end = Math.min(end, n + part.causal + 1);
      if (part.window !== undefined) {
        const position = n + (part.offset ?? 0);
        first = Math.max(first, position - part.window + 1);
        end = Math.min(end, position + part.window);
      }
      if (part.runs) {
        const { data } = this.arrays[part.runs];
        first = Math.max(first, data[n]);
        end = Math.min(end, data[this.N + n]);
      }
    }
    return [first, Math.max(first, end)];
  }

  /** Whether a query may attend to a key that is within the query's `range`. @param {number} h @param {number} n @param {number} m */
  allows(h, n, m) {
    for (const { data, shape } of this.tables) {
      const head = shape[0] === 1 ? 0 : h;
      const row = shape[1] === 1 ? 0 : n;
      const byte = data[(head * shape[1] + row) * shape[2] + (m >> 3)];
      if (!((byte >> (m & 7)) & 1)) return false;
    }
    return true;
  }

  /** Whether a query may attend to a key. @param {number} h @param {number} n @param {number} m */
  allowsPair(h, n, m) {
    const [first, end] = this.range(n);
    return m >= first && m < end && this.allows(h, n, m);
  }

  /** The number of keys that a query may attend to. @param {number} h @param {number} n */
  count(h, n) {
    const [first, end] = this.range(n);
    if (!this.tables.length) return end - first;
    let count = 0;
    for (let m = first; m < end; m++) count += Number(this.allows(h, n, m));
    return count;
  }
}
