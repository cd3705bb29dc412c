// The vector of a word, by the same hash as in the library (explain/variants.py). So the page needs
// no table of words, and no word is unknown.

/** The FNV-1a hash of 32 bits. @param {Uint8Array} data */
export function hash32(data) {
  let value = 0x811c9dc5;
  for (const byte of data) value = Math.imul(value ^ byte, 0x01000193);
  return value >>> 0;
}

/** The last step of MurmurHash3. @param {number} value */
export function mix32(value) {
  let bits = value | 0;
  bits = Math.imul(bits ^ (bits >>> 16), 0x85ebca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}

/**
 * A word's vector: what is printed of it, else drawn; numbers of two decimals.
 * @param {string} word @param {number} width @param {number | string} seed
 * @param {Record<string, number[]>} printed
 */
export function vector(word, width, seed, printed) {
  if (Object.hasOwn(printed, word)) return printed[word];
  const start = hash32(new TextEncoder().encode(`${seed} ${word}`));
  return Array.from(
    { length: width },
    (_, place) => (mix32(start + Math.imul(place + 1, 0x9e3779b9)) % 100) / 100,
  );
}
