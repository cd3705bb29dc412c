// Tokenizers of typed texts: byte-pair encodings, as in tiktoken, and characters.

const SPACE = String.raw`\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000`;
const GPT2 = String.raw`'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^${SPACE}\p{L}\p{N}]+|[${SPACE}]+(?![^${SPACE}])|[${SPACE}]`;
const CL100K = String.raw`'(?:[sdmtSDMT\u017f]|[lL]{2}|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^${SPACE}\p{L}\p{N}]+[\r\n]*|[${SPACE}]+$|[${SPACE}]*[\r\n]|[${SPACE}]+(?![^${SPACE}])|[${SPACE}]`;
/** @type {Record<string, string>} how the encodings split a text, before they merge bytes */
const SPLITS = { bpe: GPT2, gpt2: GPT2, cl100k_base: CL100K };

/** The ids of a text, and the characters without an id. @typedef {{ids: number[], unknown: string[]}} Encoded */

/** The tokenizer of a model. @param {any} data from model_data.py @returns {(text: string) => Encoded} */
export function encoder(data) {
  const { characters, encoding } = data.tokenizer;
  return characters === undefined
    ? bytePairs(data, new RegExp(SPLITS[encoding], "gu"))
    : byCharacter(characters);
}

/** @param {string} characters @returns {(text: string) => Encoded} */
function byCharacter(characters) {
  const idOf = new Map([...characters].map((character, id) => [character, id]));
  return (text) => ({
    ids: [...text].flatMap((character) => idOf.get(character) ?? []),
    unknown: [...new Set(text)].filter((character) => !idOf.has(character)),
  });
}

/** @param {any} data @param {RegExp} split @returns {(text: string) => Encoded} */
function bytePairs({ sizes, bytes, originals }, split) {
  /** @type {Map<string, number>} ranks of tokens, with a letter for each byte */
  const ranks = new Map();
  let end = 0;
  sizes.data.forEach((/** @type {number} */ size, /** @type {number} */ rank) => {
    end += size;
    ranks.set(letters(bytes.data.subarray(end - size, end)), rank);
  });
  /** @type {Map<number | undefined, number>} ids of the model by rank */
  const ids = new Map([...originals.data].map((rank, id) => [rank, id]));
  const id = (/** @type {string} */ token) => ids.get(ranks.get(token));
  // a token that the model lacks is split into bytes
  const idsOf = (/** @type {string} */ token) =>
    id(token) ?? [...token].flatMap((b) => id(b) ?? []);
  return (text) => {
    const pieces = (text.match(split) ?? []).map((piece) => new TextEncoder().encode(piece));
    return {
      ids: pieces.flatMap((piece) => merged(letters(piece), ranks).flatMap(idsOf)),
      unknown: [],
    };
  };
}

/** @param {Uint8Array} bytes */
const letters = (bytes) => Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");

/** Merge the adjacent pair with the lowest rank, until no pair is a token. @param {string} text @param {Map<string, number>} ranks */
function merged(text, ranks) {
  const parts = ranks.has(text) ? [text] : [...text];
  for (;;) {
    let [lowest, place] = [Number.POSITIVE_INFINITY, -1];
    for (let i = 0; i + 1 < parts.length; i++) {
      const rank = ranks.get(parts[i] + parts[i + 1]) ?? Number.POSITIVE_INFINITY;
      if (rank < lowest) [lowest, place] = [rank, i];
    }
    if (place < 0) return parts;
    parts.splice(place, 2, parts[place] + parts[place + 1]);
  }
}
