// A sentence as its words, by the rule of the library (text/words.py): whitespace separates,
// punctuation stands alone, and what is drawn as one sign stays one.

// biome-ignore lint/suspicious/noControlCharactersInRegex: Python counts them as spaces
const SPACE = /[\t-\r\x1c-\x1f \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/;
const EXTENDS = /[\p{M}\p{Cf}]|\p{EMod}/u; // accents, joiners, skin tones
const LETTER = /[\p{L}\p{N}]/u;
const DIGIT = /\p{Nd}|[\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u2080-\u2089\u2460-\u2468]/u;
const REGIONAL = /[\u{1f1e6}-\u{1f1ff}]/u;
const SPACELESS =
  /[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\u{20000}-\u{3ffff}]/u;
const INSIDE = "'’-.,"; // joins letters on both sides of it (don't, well-known), or digits (3.14)
const JOINER = "\u200d"; // binds two emoji into one

/** The words, signs and marks of a text, in order. @param {string} text */
export function words(text) {
  /** @type {string[]} */
  const found = [];
  let space = true;
  const signs = [...text];
  signs.forEach((sign, i) => {
    if (SPACE.test(sign)) space = true;
    else if (!space && joins(found[found.length - 1], sign, signs[i + 1] ?? ""))
      found[found.length - 1] += sign;
    else {
      found.push(sign);
      space = false;
    }
  });
  return found;
}

/** Whether a sign belongs to the word before it. @param {string} word @param {string} sign @param {string} after */
function joins(word, sign, after) {
  if (EXTENDS.test(sign)) return true;
  const last = [...word].at(-1) ?? "";
  if (last === JOINER) return true;
  if (REGIONAL.test(sign)) return [...word].length === 1 && REGIONAL.test(word); // two make a flag
  if (!INSIDE.includes(sign)) return inWords(sign) && inWords(word);
  if (!inWords(word)) return false;
  return ".,".includes(sign) ? DIGIT.test(last) && DIGIT.test(after) : LETTER.test(after);
}

/** Of a script that puts spaces between words. @param {string} text */
function inWords(text) {
  const first = [...text][0];
  return (LETTER.test(first) || first === "_") && !SPACELESS.test(first);
}
