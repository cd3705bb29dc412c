// Splits a sentence into words by the pattern of text/words.py: at whitespace, with punctuation
// marks as separate words; characters that are drawn as one glyph stay together.

const SPACE = String.raw`\t-\r\x1c-\x1f \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000`;
const SPACELESS = String.raw`\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\u{20000}-\u{3ffff}`;
const DRAWN_WITH = String.raw`[\p{M}\p{Cf}\p{EMod}]*`; // accents, joiners, skin tones
const LETTER = String.raw`(?![${SPACELESS}])[\p{L}\p{N}_]${DRAWN_WITH}`;
// Signs that join letters on both sides (don't, well-known), or digits (3.14)
const INSIDE = String.raw`(?:['’\-](?=[\p{L}\p{N}])|(?<=\p{Nd})[.,](?=\p{Nd}))${DRAWN_WITH}`;
const FLAG = String.raw`[\u{1f1e6}-\u{1f1ff}]{1,2}${DRAWN_WITH}`; // two regional letters
const SIGN = String.raw`[^${SPACE}]${DRAWN_WITH}(?:(?<=\u200d)[^${SPACE}]${DRAWN_WITH})*`;
const WORD = new RegExp(`${LETTER}(?:${INSIDE}|${LETTER})*|${FLAG}|${SIGN}`, "gu");

/** The words, signs and marks of a text, in order. @param {string} text */
export function words(text) {
  return text.match(WORD) ?? [];
}
