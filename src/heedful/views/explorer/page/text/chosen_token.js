// Of which token the text shows where it looks and who looks at it, and for which heads.

import { computed, signal } from "../html.js";
import { asked } from "../request.js";

/** @import { State } from "../state.js" */
/** @import { Answer, Asked, Axis, Source } from "../types.js" */
/** @typedef {"head" | "mean" | "several"} Which */
/** @typedef {{axis: Axis, at: number}} Token */

const LEAST = 0.005; // a weight that is worth a word

export class Reading {
  /** @param {Source} source @param {State} state */
  constructor(source, state) {
    this.state = state;
    this.which = signal(/** @type {Which} */ ("head"));
    this.several = signal(/** @type {number[]} */ ([]));
    this.pointed = signal(/** @type {Token | null} */ (null)); // under the pointer or the keyboard
    /** Whether queries and keys are two texts. */
    this.crosses = computed(() => state.call.value.kind === "cross");
    /** The key at which query 0 stands, of one text. */
    this.first = computed(() => (this.crosses.value ? 0 : state.call.value.first));
    this.heads = computed(() => {
      const all = state.call.value.heads;
      if (this.which.value === "mean") return all;
      if (this.which.value === "head") return [state.head.value];
      const some = all.filter((head) => this.several.value.includes(head));
      return some.length ? some : [state.head.value];
    });
    this.focus = computed(() => this.at());
    const ask = (/** @type {string} */ question, /** @type {number | null} */ at) =>
      at === null
        ? null
        : /** @type {[string, Record<string, any>]} */ ([
            question,
            { call: state.where.value, heads: this.heads.value.join(","), at },
          ]);
    this.looks = asked(source, () => ask("row", this.focus.value.query), 40);
    this.looked = asked(source, () => ask("column", this.focus.value.key), 40);
  }

  /** Ask nothing more. */
  end() {
    this.looks.end();
    this.looked.end();
  }

  /** The query whose row is shown, and the key whose column; of one text they are one token. */
  at() {
    const [, N, M] = this.state.call.value.shape;
    const cell = this.state.cell.value;
    const pointed = this.pointed.value; // of the call before, where that was larger
    const token = pointed && pointed.at < (pointed.axis === "keys" ? M : N) ? pointed : null;
    const first = this.first.value;
    if (this.crosses.value) {
      if (!token) return { query: cell?.query ?? null, key: cell?.key ?? null };
      // over a picture the shade stays that of the chosen token, so that patches can be compared
      const other = this.state.call.value.pictured?.length ? cell : null;
      return token.axis === "queries"
        ? { query: token.at, key: other?.key ?? null }
        : { query: other?.query ?? null, key: token.at };
    }
    const key = token
      ? token.axis === "keys"
        ? token.at
        : token.at + first
      : cell && cell.query + first;
    if (key === null) return { query: null, key: null };
    const query = key - first;
    return { query: query >= 0 && query < N ? query : null, key };
  }

  /** Why there is no answer; "" where there may be one. */
  get failed() {
    return this.looks.value?.failed ?? this.looked.value?.failed ?? "";
  }

  /** The answer about a row, where it is the one that is shown. */
  get row() {
    return fitting(this.looks, this.focus.value.query, this);
  }

  /** The answer about a column, where it is the one that is shown. */
  get column() {
    return fitting(this.looked, this.focus.value.key, this);
  }
}

/** @param {Asked} answer @param {number | null} at @param {Reading} reading @returns {Answer | null} */
function fitting(answer, at, reading) {
  const found = answer.value;
  if (!found?.asked || found.failed || at === null) return null;
  const { call, heads, at: of } = found.asked;
  const fits = call === reading.state.where.value && heads === reading.heads.value.join(",");
  return fits && of === at ? found : null;
}

/** The largest of some weights, descending, with their places. @param {Float32Array} data @param {number} count @param {number} [least] */
export function strongest(data, count, least = LEAST) {
  /** @type {{at: number, weight: number}[]} */
  const best = [];
  let most = 0;
  for (let at = 0; at < data.length; at++) if (data[at] > most) most = data[at];
  const enough = Math.min(least, most / 4); // in a long text none may be large
  for (let at = 0; at < data.length; at++) {
    const weight = data[at];
    if (!(weight > enough) || (best.length === count && weight <= best[count - 1].weight)) continue;
    let n = best.length;
    while (n > 0 && best[n - 1].weight < weight) n--;
    best.splice(n, 0, { at, weight });
    if (best.length > count) best.pop();
  }
  return best;
}
