// The token whose row and column of weights the text pane shows, and the choice of heads.
import { computed, signal } from "../html.js";
import { liveAnswer } from "../request.js";

/** @import { State } from "../state.js" */
/** @import { Answer, Axis, LiveAnswer, Source } from "../types.js" */
/** @typedef {"head" | "mean" | "several" | "rollout"} HeadChoice */
/** @typedef {{axis: Axis, index: number}} Token */

const SMALLEST = 0.005; // smaller weights are listed only if they exceed a quarter of the largest

export class ChosenToken {
  /** @param {Source} source @param {State} state */
  constructor(source, state) {
    this.state = state;
    this.headChoice = signal(/** @type {HeadChoice} */ ("head"));
    this.chosenHeads = signal(/** @type {number[]} */ ([]));
    this.pointed = signal(/** @type {Token | null} */ (null)); // under the pointer or the keyboard cursor
    /** Whether queries and keys are different texts. */
    this.crosses = computed(() => state.call.value.kind === "cross");
    this.isRollout = computed(() => this.headChoice.value === "rollout" && !this.crosses.value);
    /** The key at the position of query 0, if both are one text. */
    this.first = computed(() => (this.crosses.value ? 0 : state.call.value.first));
    this.heads = computed(() => {
      const all = state.call.value.heads;
      if (this.headChoice.value === "mean" || this.isRollout.value) return all;
      if (this.headChoice.value === "head") return [state.head.value];
      const some = all.filter((head) => this.chosenHeads.value.includes(head));
      return some.length ? some : [state.head.value];
    });
    this.cell = computed(() => this._cell());
    const ask = (/** @type {string} */ question, /** @type {number | null} */ index) =>
      index === null
        ? null
        : /** @type {[string, Record<string, any>]} */ ([
            question,
            {
              call: state.callId.value,
              heads: this.heads.value.join(","),
              at: index,
              choice: this.headChoice.value, // tells a rollout from a mean of the same heads
            },
          ]);
    const row = () => ask(this.isRollout.value ? "rollout" : "row", this.cell.value.query);
    const column = () => (this.isRollout.value ? null : ask("column", this.cell.value.key));
    this.rowAnswer = liveAnswer(source, row, 40);
    this.columnAnswer = liveAnswer(source, column, 40);
  }

  /** Stop asking. */
  end() {
    this.rowAnswer.end();
    this.columnAnswer.end();
  }

  /** The query whose row is shown, and the key whose column is shown; within one text, they are the same token. */
  _cell() {
    const [, N, M] = this.state.call.value.shape;
    const cell = this.state.cell.value;
    const pointed = this.pointed.value; // may be out of range after a change of the call
    const token = pointed && pointed.index < (pointed.axis === "keys" ? M : N) ? pointed : null;
    const first = this.first.value;
    if (this.crosses.value) {
      if (!token) return { query: cell?.query ?? null, key: cell?.key ?? null };
      // on an image, the shades remain those of the selected cell, so that patches can be compared
      const other = this.state.call.value.pictured?.length ? cell : null;
      return token.axis === "queries"
        ? { query: token.index, key: other?.key ?? null }
        : { query: other?.query ?? null, key: token.index };
    }
    const key = token
      ? token.axis === "keys"
        ? token.index
        : token.index + first
      : cell && cell.query + first;
    if (key === null) return { query: null, key: null };
    const query = key - first;
    return { query: query >= 0 && query < N ? query : null, key };
  }

  /** Why there is no answer; "" if there is no error. */
  get failed() {
    return this.rowAnswer.value?.failed ?? this.columnAnswer.value?.failed ?? "";
  }

  /** The answer about the row, if it is up to date. */
  get row() {
    return current(this.rowAnswer, this.cell.value.query, this);
  }

  /** The answer about the column, if it is up to date. */
  get column() {
    return current(this.columnAnswer, this.cell.value.key, this);
  }
}

/** @param {LiveAnswer} liveAnswer @param {number | null} index @param {ChosenToken} chosenToken @returns {Answer | null} */
function current(liveAnswer, index, chosenToken) {
  const answer = liveAnswer.value;
  if (!answer?.request || answer.failed || index === null) return null;
  const { call, heads, at, choice } = answer.request;
  const { state, headChoice } = chosenToken;
  const isSameCall = call === state.callId.value && at === index && choice === headChoice.value;
  return isSameCall && heads === chosenToken.heads.value.join(",") ? answer : null;
}

/** The largest weights and their indices, descending. @param {Float32Array} data @param {number} count @param {number} [minimum] */
export function strongest(data, count, minimum = SMALLEST) {
  /** @type {{index: number, weight: number}[]} */
  const best = [];
  let largest = 0;
  for (const weight of data) if (weight > largest) largest = weight;
  const limit = Math.min(minimum, largest / 4); // in a long text, all weights may be small
  for (let index = 0; index < data.length; index++) {
    const weight = data[index];
    if (!(weight > limit) || (best.length === count && weight <= best[count - 1].weight)) continue;
    let n = best.length;
    while (n > 0 && best[n - 1].weight < weight) n--;
    best.splice(n, 0, { index, weight });
    if (best.length > count) best.pop();
  }
  return best;
}
