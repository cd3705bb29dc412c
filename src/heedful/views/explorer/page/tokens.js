// The names of queries and keys, fetched in pages of names. Signs stand for invisible characters.
import { html, signal } from "./html.js";

/** @import { Axis, Source } from "./types.js" */

const PAGE = 1024;
const CACHED = 512; // pages of names
/** @type {Record<string, string>} */
const SIGNS = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "\u200b": "␣" };
const LINE_END = /[\n↵]/; // a line end, or the sign for it in a token's name

/** A visible sign for an invisible character; any other character is returned. @param {string} letter */
function sign(letter) {
  const code = letter.codePointAt(0) ?? 0;
  if (code < 32) return String.fromCodePoint(0x2400 + code);
  if (code === 127 || (code >= 0x80 && code < 0xa0)) return "\u2421";
  const isDirectional = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return isDirectional || code === 0x200e || code === 0x200f ? "⁞" : letter; // controls of text direction
}

/** A token with signs for invisible characters. @param {string} token @param {number} [length] its full length, if `token` is only its beginning */
export function readable(token, length) {
  if (/^[\u200b-\u200d\u2060\ufeff]+$/.test(token)) return "␣"; // characters of no width
  let text = "";
  for (const letter of token) text += SIGNS[letter] ?? sign(letter);
  return length ? `${text}… (${length.toLocaleString("en")} characters)` : text || "∅";
}

/**
 * A part of a token: letters, a space, a sign, or the end of a line.
 * @typedef {{kind: "letters" | "space" | "sign" | "end", text: string}} Piece
 */

/** Split a token into pieces. @param {string} token its name @param {number} [length] @returns {Piece[]} */
export function pieces(token, length) {
  /** @type {Piece[]} */
  const result = [];
  const add = (/** @type {Piece["kind"]} */ kind, /** @type {string} */ text) => {
    const last = result.at(-1);
    if (last && last.kind === kind && kind !== "end") last.text += text;
    else result.push({ kind, text });
  };
  for (const letter of token) {
    if (letter === " " || letter === "·") add("space", " ");
    else if (letter === "\t" || letter === "⇥") add("sign", "⇥");
    else if (LINE_END.test(letter)) add("end", "↵");
    else if (SIGNS[letter] || sign(letter) !== letter || letter === "␍")
      add("sign", SIGNS[letter] ?? sign(letter));
    else add("letters", letter);
  }
  if (!token) add("sign", "∅");
  if (length) add("sign", `… ${length.toLocaleString("en")} characters`);
  return result;
}

/** @typedef {{tokens: (string | null)[] | null, cut: Record<number, number>}} Names */

export class Tokens {
  /** @param {Source} source */
  constructor(source) {
    this.source = source;
    /** @type {Map<string, Names | undefined>} */
    this.pages = new Map();
    this.version = signal(0); // changes when more names have arrived
  }

  /**
   * A token's name, with the name's full length if `text` is only its beginning. Undefined while
   * the name is being fetched; null if the token has no name.
   * @param {string} callId @param {Axis} axis @param {number} index
   * @returns {{text: string, length?: number} | null | undefined}
   */
  token(callId, axis, index) {
    this.version.value;
    const page = this.page(callId, axis, Math.floor(index / PAGE));
    if (!page) return undefined;
    const text = page.tokens?.[index % PAGE];
    return text === null || text === undefined ? null : { text, length: page.cut[index] };
  }

  /** A token's name with signs for invisible characters. @param {string} callId @param {Axis} axis @param {number} index */
  name(callId, axis, index) {
    const token = this.token(callId, axis, index);
    return token ? readable(token.text, token.length) : token;
  }

  /** A page of names, fetched on first use. @param {string} callId @param {Axis} axis @param {number} number */
  page(callId, axis, number) {
    const id = this._id(callId, axis, number);
    if (!this.pages.has(id)) this._ask(id, callId, axis, number).catch(() => {});
    return this.pages.get(id);
  }

  /** Prefetch the last names of a text that has grown. @param {string} callId @param {number} size */
  async prefetch(callId, size) {
    const number = Math.floor((size - 1) / PAGE);
    const axes = /** @type {Axis[]} */ (["keys", "queries"]).map((axis) => {
      const id = this._id(callId, axis, number);
      return this.pages.get(id) ? null : this._ask(id, callId, axis, number);
    });
    await Promise.all(axes);
  }

  /** The cache key of a page; a full page is the same for every length of a text that grows. @param {string} callId @param {Axis} axis @param {number} number */
  _id(callId, axis, number) {
    const isFull = (number + 1) * PAGE <= lengthOf(callId);
    return `${isFull ? textOf(callId) : callId} ${axis} ${number}`;
  }

  /** @param {string} id @param {string} callId @param {Axis} axis @param {number} number */
  async _ask(id, callId, axis, number) {
    this.pages.set(id, undefined);
    if (this.pages.size > CACHED) this.pages.delete(this.pages.keys().next().value ?? "");
    const start = number * PAGE;
    try {
      const about = { call: callId, axis, start, stop: start + PAGE };
      const answer = await this.source.ask("tokens", about);
      if (!this.pages.has(id)) return; // removed from the cache meanwhile
      this.pages.set(id, { tokens: answer.tokens ?? null, cut: answer.cut ?? {} });
      this.version.value++;
    } catch (error) {
      this.pages.delete(id); // so that these names are requested again
      throw error;
    }
  }

  /** Whether the tokens are words or word pieces, whose names contain no spaces.
   * @param {string} callId @param {Axis} axis */
  areWords(callId, axis) {
    this.version.value;
    const names = this.page(callId, axis, 0)?.tokens ?? [];
    const longest = Math.max(...names.map((name) => name?.length ?? 0), 0);
    return longest > 1 && !names.some((name) => /[ ·↵\n⇥]/.test(name ?? ""));
  }

  /** The first words of a range of tokens; "" without names. @param {string} callId @param {Axis} axis @param {import("./segments/segments.js").Run} range */
  firstWords(callId, axis, [start, end]) {
    const indices = Array.from({ length: Math.min(end - start, 12) }, (_, i) => start + i);
    const names = indices.map((i) => this.name(callId, axis, i) ?? "");
    const text = names.join(this.areWords(callId, axis) ? " " : "").replaceAll(" ##", "");
    const words = text.match(/[^\s·↵⇥]+/g) ?? [];
    return words.slice(0, 3).join(" ").slice(0, 24);
  }

  /** The name, or the index if there is no name. @param {string} callId @param {Axis} axis @param {number} index */
  label(callId, axis, index) {
    return this.name(callId, axis, index) ?? String(index);
  }
}

/** @param {{tokens: Tokens, callId: string, axis: Axis, index: number}} props */
export function Token({ tokens, callId, axis, index }) {
  const name = tokens.name(callId, axis, index);
  return name
    ? html`<bdi>${name}</bdi><small class="place">${index}</small>`
    : html`<span>${index}</span>`;
}

/** A call id without the number of tokens. @param {string} call */
export const textOf = (call) => call.split(".").slice(0, 3).join(".");

/** The number of tokens in a call id; NaN if the text cannot grow. @param {string} call */
export const lengthOf = (call) => Number(call.split(".")[3]);
