// A text cut at a delimiter that stands in it: the pieces between become segments.

import { pieces } from "../tokens.js";
import { MOST } from "./segments.js";

/** @import { Source } from "../types.js" */
/** @import { Run } from "./segments.js" */

const AT_ONCE = 4096; // tokens of an answer
const NAMED = 32; // characters of a line that may be a name

/** @typedef {{name: string, runs: Run[]}} Piece */

/**
 * The pieces of a text between a delimiter; a line that begins with it names what follows it.
 * @param {string[]} tokens @param {string} delimiter @returns {Piece[]}
 * @throws where the delimiter is nowhere, or too often
 */
export function cutAt(tokens, delimiter) {
  const words = areWords(tokens);
  const parts = tokens.map((token) => plain(token, words));
  const wanted = words ? delimiter.replace(/[^\S\n]/g, "") : delimiter;
  const text = parts.join("");
  const starts = [0];
  for (const part of parts) starts.push(/** @type {number} */ (starts.at(-1)) + part.length);
  const found = [];
  for (
    let at = text.indexOf(wanted);
    wanted && at >= 0;
    at = text.indexOf(wanted, at + wanted.length)
  )
    found.push(at);
  if (!found.length) throw new Error(`${shown(delimiter)} is nowhere in the text.`);
  /** @type {Piece[]} */
  const made = [];
  let number = 0;
  const edges = [0, ...found.map((at) => at + wanted.length)];
  edges.forEach((begin, i) => {
    const end = found[i] ?? text.length;
    // a token is where the first of its characters that is no white space stands
    const own = [...parts.keys()].filter((t) => {
      const at = starts[t] + Math.max(0, parts[t].search(/\S/));
      return at >= begin && at < end && parts[t].length;
    });
    const some = text.slice(begin, end);
    if (!own.length || !some.trim()) return;
    number++;
    const line = some.split("\n")[0].trim();
    const isName = i > 0 && wanted.trim() && line && line.length <= NAMED && some.includes("\n");
    made.push({ name: isName ? line : String(number), runs: [[own[0], own[own.length - 1] + 1]] });
  });
  if (made.length > MOST)
    throw new Error(
      `${made.length.toLocaleString("en")} pieces, and at most ${MOST} can be marked.`,
    );
  return made;
}

/** All tokens of an axis, as the library names them. @param {Source} source @param {string} call @param {string} axis @param {number} size */
export async function allTokens(source, call, axis, size) {
  /** @type {string[]} */
  const found = [];
  for (let start = 0; start < size; start += AT_ONCE) {
    const { tokens } = await source.ask("tokens", { call, axis, start, stop: start + AT_ONCE });
    if (!tokens) throw new Error("The tokens of this recording have no names to look in.");
    found.push(...tokens);
  }
  return found;
}

/** Whether tokens are word pieces, without the spaces between them. @param {string[]} tokens */
const areWords = (tokens) =>
  tokens.some((token) => token.length > 1) && !tokens.some((token) => /[ ·↵\n⇥]/.test(token));

/** A token's own letters. @param {string} token @param {boolean} words */
const plain = (token, words) =>
  pieces(words && /^##./.test(token) ? token.slice(2) : token)
    .map(({ kind, text }) => (kind === "end" ? "\n" : text === "⇥" ? "\t" : text))
    .join("");

/** @param {string} delimiter */
export const shown = (delimiter) => (delimiter === "\n" ? "A line break" : `“${delimiter}”`);
