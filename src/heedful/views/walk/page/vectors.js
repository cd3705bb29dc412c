// The vector of a word, as the library draws it (explain/variants.py): Python's own generator,
// seeded with the word. So the page needs no table of words, and no word is unknown.
// Sources: SHA-512 in FIPS 180-4; MT19937 of Matsumoto and Nishimura, 1998; CPython's random.py
// and _randommodule.c for how a text becomes a seed and two draws a number.

const ALL = (1n << 64n) - 1n;

/** The whole part of the root of a number. @param {bigint} square @param {bigint} power 2 or 3 */
function root(square, power) {
  let [low, high] = [0n, 1n << 80n];
  while (low < high) {
    const middle = (low + high + 1n) >> 1n;
    if (middle ** power <= square) low = middle;
    else high = middle - 1n;
  }
  return low;
}

/** @param {number} count */
function primes(count) {
  /** @type {bigint[]} */
  const found = [];
  for (let n = 2n; found.length < count; n++) if (found.every((p) => n % p)) found.push(n);
  return found;
}

// fractions of the roots of the first primes, 64 bits of each
const ROUNDS = primes(80).map((p) => root(p << 192n, 3n) & ALL);
const START = primes(8).map((p) => root(p << 128n, 2n) & ALL);

/** @param {bigint} x @param {bigint} by */
const turned = (x, by) => ((x >> by) | (x << (64n - by))) & ALL;

/** @param {Uint8Array} data @returns {Uint8Array} 64 bytes */
export function sha512(data) {
  const padded = new Uint8Array(Math.ceil((data.length + 17) / 128) * 128);
  padded.set(data);
  padded[data.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setBigUint64(padded.length - 8, BigInt(data.length) * 8n);
  const state = [...START];
  for (let at = 0; at < padded.length; at += 128) block(state, view, at);
  const found = new DataView(new ArrayBuffer(64));
  state.forEach((word, i) => {
    found.setBigUint64(i * 8, word);
  });
  return new Uint8Array(found.buffer);
}

/** @param {bigint[]} state @param {DataView} view @param {number} at */
function block(state, view, at) {
  const w = Array.from({ length: 16 }, (_, i) => view.getBigUint64(at + i * 8));
  for (let i = 16; i < 80; i++) {
    const [x, y] = [w[i - 15], w[i - 2]];
    const s0 = turned(x, 1n) ^ turned(x, 8n) ^ (x >> 7n);
    const s1 = turned(y, 19n) ^ turned(y, 61n) ^ (y >> 6n);
    w.push((w[i - 16] + s0 + w[i - 7] + s1) & ALL);
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 80; i++) {
    const s1 = turned(e, 14n) ^ turned(e, 18n) ^ turned(e, 41n);
    const first = (h + s1 + ((e & f) ^ (~e & ALL & g)) + ROUNDS[i] + w[i]) & ALL;
    const s0 = turned(a, 28n) ^ turned(a, 34n) ^ turned(a, 39n);
    const second = s0 + ((a & b) ^ (a & c) ^ (b & c));
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) & ALL, c, b, a, (first + second) & ALL];
  }
  [a, b, c, d, e, f, g, h].forEach((word, i) => {
    state[i] = (state[i] + word) & ALL;
  });
}

/** Python's random.Random(text).random. @param {string} text @returns {() => number} */
export function generator(text) {
  const letters = new TextEncoder().encode(text);
  const seed = new Uint8Array(letters.length + 64);
  seed.set(letters);
  seed.set(sha512(letters), letters.length);
  const draw = twister(keyOf(seed));
  return () => {
    const [high, low] = [draw() >>> 5, draw() >>> 6];
    return (high * 67108864 + low) / 9007199254740992;
  };
}

/** A number's bytes, the highest first, as words of 32 bits, the lowest first. @param {Uint8Array} bytes */
function keyOf(bytes) {
  const key = [];
  for (let end = bytes.length; end > 0; end -= 4) {
    let word = 0;
    for (let i = Math.max(0, end - 4); i < end; i++) word = (word << 8) | bytes[i];
    key.push(word >>> 0);
  }
  while (key.length > 1 && !key[key.length - 1]) key.pop();
  return key;
}

const SIZE = 624;

/** @param {number[]} key @returns {() => number} words of 32 bits */
function twister(key) {
  const state = new Uint32Array(SIZE);
  state[0] = 19650218;
  for (let i = 1; i < SIZE; i++) state[i] = Math.imul(1812433253, mixed(state, i)) + i;
  let [i, j] = [1, 0];
  const next = () => {
    if (++i < SIZE) return;
    state[0] = state[SIZE - 1];
    i = 1;
  };
  for (let k = Math.max(SIZE, key.length); k; k--) {
    state[i] = (state[i] ^ Math.imul(mixed(state, i), 1664525)) + key[j] + j;
    j = (j + 1) % key.length;
    next();
  }
  for (let k = SIZE - 1; k; k--) {
    state[i] = (state[i] ^ Math.imul(mixed(state, i), 1566083941)) - i;
    next();
  }
  state[0] = 0x80000000;
  let at = SIZE;
  return () => {
    if (at === SIZE) at = renew(state);
    let y = state[at++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  };
}

/** @param {Uint32Array} state @param {number} i */
const mixed = (state, i) => state[i - 1] ^ (state[i - 1] >>> 30);

/** @param {Uint32Array} state */
function renew(state) {
  for (let k = 0; k < SIZE; k++) {
    const y = (state[k] & 0x80000000) | (state[(k + 1) % SIZE] & 0x7fffffff);
    state[k] = state[(k + 397) % SIZE] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
  }
  return 0;
}

/**
 * A word's vector: what is printed of it, else drawn; numbers of two decimals.
 * @param {string} word @param {number} width @param {number | string} seed
 * @param {Record<string, number[]>} printed
 */
export function vector(word, width, seed, printed) {
  if (Object.hasOwn(printed, word)) return printed[word];
  const draw = generator(`${seed} ${word}`);
  return Array.from({ length: width }, () => rounded(draw()));
}

/** To two decimals; what lies in the middle goes to the even one, as in Python. @param {number} x */
function rounded(x) {
  const eighths = x * 8;
  if (eighths === Math.floor(eighths) && eighths % 2)
    return { 1: 0.12, 3: 0.38, 5: 0.62, 7: 0.88 }[eighths] ?? x;
  return Number(x.toFixed(2));
}
