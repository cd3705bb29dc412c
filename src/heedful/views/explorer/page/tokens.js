// The names of queries and keys, fetched in pages; what no font shows is shown by a sign.
import { html, signal } from "./html.js";

/** @import { Axis, Source } from "./types.js" */

const PAGE = 1024;
const KEPT = 512; // pages of names
/** @type {Record<string, string>} */
const SIGNS = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "\u200b": "␣" };
const ENDS = /[\n↵]/; // a line ends here, in the text itself or in a token's name

/** A letter that no font shows, as a sign; else itself. @param {string} letter */
function sign(letter) {
  const code = letter.codePointAt(0) ?? 0;
  if (code < 32) return String.fromCodePoint(0x2400 + code);
  if (code === 127 || (code >= 0x80 && code < 0xa0)) return "\u2421";
  const turns = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return turns || code === 0x200e || code === 0x200f ? "⁞" : letter; // controls of direction
}

/** A token as it can be read. @param {string} token @param {number} [length] its whole length */
export function readable(token, length) {
  let shown = "";
  for (const letter of token) shown += SIGNS[letter] ?? sign(letter);
  return length ? `${shown}… (${length.toLocaleString("en")} characters)` : shown || "∅";
}

/**
 * A token as a part of a text: pieces that are letters, a space or the sign of a line's end.
 * @typedef {{kind: "letters" | "space" | "sign" | "end", text: string}} Piece
 */

/** @param {string} token as the library names it @param {number} [length] @returns {Piece[]} */
export function pieces(token, length) {
  /** @type {Piece[]} */
  const found = [];
  const add = (/** @type {Piece["kind"]} */ kind, /** @type {string} */ text) => {
    const last = found.at(-1);
    if (last && last.kind === kind && kind !== "end") last.text += text;
    else found.push({ kind, text });
  };
  for (const letter of token) {
    if (letter === " " || letter === "·") add("space", " ");
    else if (letter === "\t" || letter === "⇥") add("sign", "⇥");
    else if (ENDS.test(letter)) add("end", "↵");
    else if (SIGNS[letter] || sign(letter) !== letter || letter === "␍")
      add("sign", SIGNS[letter] ?? sign(letter));
    else add("letters", letter);
  }
  if (!token) add("sign", "∅");
  if (length) add("sign", `… ${length.toLocaleString("en")} characters`);
  return found;
}

/** @typedef {{tokens: (string | null)[] | null, cut: Record<number, number>}} Names */

export class Tokens {
  /** @param {Source} source */
  constructor(source) {
    this.source = source;
    /** @type {Map<string, Names | undefined>} */
    this.pages = new Map();
    this.version = signal(0); // changes when more names are known
  }

  /**
   * A token as the library names it, with its whole length where only its beginning is here;
   * undefined while it is not known, null where it has none.
   * @param {string} where @param {Axis} axis @param {number} at
   * @returns {{text: string, length?: number} | null | undefined}
   */
  token(where, axis, at) {
    this.version.value;
    const page = this.page(where, axis, Math.floor(at / PAGE));
    if (!page) return undefined;
    const text = page.tokens?.[at % PAGE];
    return text === null || text === undefined ? null : { text, length: page.cut[at] };
  }

  /** A token by signs. @param {string} where @param {Axis} axis @param {number} at */
  name(where, axis, at) {
    const token = this.token(where, axis, at);
    return token ? readable(token.text, token.length) : token;
  }

  /** @param {string} where @param {Axis} axis @param {number} number */
  page(where, axis, number) {
    const id = this._id(where, axis, number);
    if (!this.pages.has(id)) this._ask(id, where, axis, number).catch(() => {});
    return this.pages.get(id);
  }

  /** Fetch the last names of a longer text, so that they are there when it is shown. @param {string} where @param {number} size */
  async ahead(where, size) {
    const number = Math.floor((size - 1) / PAGE);
    const axes = /** @type {Axis[]} */ (["keys", "queries"]).map((axis) => {
      const id = this._id(where, axis, number);
      return this.pages.get(id) ? null : this._ask(id, where, axis, number);
    });
    await Promise.all(axes);
  }

  /** A page that is full is the same for every length of a text that grows. @param {string} where @param {Axis} axis @param {number} number */
  _id(where, axis, number) {
    const isFull = (number + 1) * PAGE <= lengthOf(where);
    return `${isFull ? textOf(where) : where} ${axis} ${number}`;
  }

  /** @param {string} id @param {string} where @param {Axis} axis @param {number} number */
  async _ask(id, where, axis, number) {
    this.pages.set(id, undefined);
    if (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value ?? "");
    const start = number * PAGE;
    try {
      const about = { call: where, axis, start, stop: start + PAGE };
      const found = await this.source.ask("tokens", about);
      if (!this.pages.has(id)) return; // others were asked for since
      this.pages.set(id, { tokens: found.tokens ?? null, cut: found.cut ?? {} });
      this.version.value++;
    } catch (error) {
      this.pages.delete(id); // so that it is asked for again
      throw error;
    }
  }

  /** Whether spaces between the tokens are not in their names, as those of word pieces are not.
   * @param {string} where @param {Axis} axis */
  areWords(where, axis) {
    this.version.value;
    const names = this.page(where, axis, 0)?.tokens ?? [];
    const longest = Math.max(...names.map((name) => name?.length ?? 0), 0);
    return longest > 1 && !names.some((name) => /[ ·↵\n⇥]/.test(name ?? ""));
  }

  /** `name`, or its place where it has none. @param {string} where @param {Axis} axis @param {number} at */
  label(where, axis, at) {
    return this.name(where, axis, at) ?? String(at);
  }
}

/** @param {{tokens: Tokens, where: string, axis: Axis, at: number}} given */
export function Token({ tokens, where, axis, at }) {
  const name = tokens.name(where, axis, at);
  return name
    ? html`<bdi>${name}</bdi><small class="place">${at}</small>`
    : html`<span>${at}</span>`;
}

/** A call, however many tokens its text has. @param {string} call */
export const textOf = (call) => call.split(".").slice(0, 3).join(".");

/** How many tokens the text has; NaN where it does not grow. @param {string} call */
export const lengthOf = (call) => Number(call.split(".")[3]);
