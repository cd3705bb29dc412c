// The names of queries and keys, fetched in pages; what no font shows is shown by a sign.
import { signal } from "./html.js";

const PAGE = 1024;
const SIGNS = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "\u200b": "␣" };

/** A token as it can be read. @param {string} token @param {number} [length] its whole length */
export function readable(token, length) {
  let shown = "";
  for (const letter of token) {
    const code = letter.codePointAt(0) ?? 0;
    if (SIGNS[letter]) shown += SIGNS[letter];
    else if (code < 32) shown += String.fromCodePoint(0x2400 + code);
    else if (code === 127 || (code >= 0x80 && code < 0xa0)) shown += "\u2421";
    else if (code >= 0x202a && code <= 0x202e)
      shown += "⁞"; // controls of direction
    else if (code >= 0x2066 && code <= 0x2069) shown += "⁞";
    else shown += letter;
  }
  return length ? `${shown}… (${length.toLocaleString("en")} characters)` : shown || "∅";
}

export class Tokens {
  /** @param {any} source */
  constructor(source) {
    this.source = source;
    this.pages = new Map();
    this.version = signal(0); // changes when more names are known
  }

  /** The name of a token; undefined while it is not known, null where it has none. */
  name(where, axis, at) {
    this.version.value;
    const page = this.page(where, axis, Math.floor(at / PAGE));
    if (page === undefined || page === null) return page;
    return page[at % PAGE];
  }

  page(where, axis, number) {
    const id = `${where} ${axis} ${number}`;
    if (!this.pages.has(id)) {
      this.pages.set(id, undefined);
      const start = number * PAGE;
      this.source.ask("tokens", { call: where, axis, start, stop: start + PAGE }).then(
        (found) => {
          const cut = found.cut ?? {};
          const names = found.tokens?.map((one, i) => readable(one, cut[start + i])) ?? null;
          this.pages.set(id, names);
          this.version.value++;
        },
        () => this.pages.delete(id),
      );
    }
    return this.pages.get(id);
  }

  /** `name`, or its place where it has none. */
  label(where, axis, at) {
    return this.name(where, axis, at) ?? String(at);
  }
}
