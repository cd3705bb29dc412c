// Word vectors from the hash that explain/variants.py uses. The page thus needs no embedding table,
// and any word has a vector.

/** The FNV-1a hash of 32 bits. @param {Uint8Array} data */
export function hash32(data) {
  let value = 0x811c9dc5;
  for (const byte of data) value = Math.imul(value ^ byte, 0x01000193);
  return value >>> 0;
}

/** The finalizer of MurmurHash3. @param {number} value */
export function mix32(value) {
  let bits = value | 0;
  bits = Math.imul(bits ^ (bits >>> 16), 0x85ebca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}

/**
 * The vector of a word: the vector that the document prints, if there is one; otherwise numbers of
 * two decimals from the hash.
 * @param {string} word @param {number} width @param {number | string} seed
 * @param {Record<string, number[]>} printed vectors that a document prints, by word
 */
export function vector(word, width, seed, printed) {
  if (Object.hasOwn(printed, word)) return printed[word];
  const start = hash32(new TextEncoder().encode(`${seed} ${word}`));
  return Array.from(
    { length: width },
    (_, i) => (mix32(start + Math.imul(i + 1, 0x9e3779b9)) % 100) / 100,
  );
}
