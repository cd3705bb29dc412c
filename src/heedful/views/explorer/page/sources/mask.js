// Which pairs may attend, by the numbers and bits that the file has of a mask (stored_inputs.py).

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

  /** The keys that a query may see at the most, from the first up to the second. @param {number} n */
  run(n) {
    let [first, end] = [0, this.M];
    for (const part of this.parts) {
      if (part.causal !== undefined) end = Math.min(end, n + part.causal + 1);
      if (part.window !== undefined) {
        const own = n + (part.offset ?? 0);
        first = Math.max(first, own - part.window + 1);
        end = Math.min(end, own + part.window);
      }
      if (part.runs) {
        const { data } = this.arrays[part.runs];
        first = Math.max(first, data[n]);
        end = Math.min(end, data[this.N + n]);
      }
    }
    return [first, Math.max(first, end)];
  }

  /** Whether a key within the run is allowed. @param {number} h @param {number} n @param {number} m */
  allows(h, n, m) {
    for (const { data, shape } of this.tables) {
      const head = shape[0] === 1 ? 0 : h;
      const row = shape[1] === 1 ? 0 : n;
      const byte = data[(head * shape[1] + row) * shape[2] + (m >> 3)];
      if (!((byte >> (m & 7)) & 1)) return false;
    }
    return true;
  }

  /** Whether it allows a pair. @param {number} h @param {number} n @param {number} m */
  sees(h, n, m) {
    const [first, end] = this.run(n);
    return m >= first && m < end && this.allows(h, n, m);
  }

  /** How many keys a query sees. @param {number} h @param {number} n */
  count(h, n) {
    const [first, end] = this.run(n);
    if (!this.tables.length) return end - first;
    let found = 0;
    for (let m = first; m < end; m++) found += Number(this.allows(h, n, m));
    return found;
  }
}
