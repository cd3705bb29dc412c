// How much each head reads of each segment: asked call after call, the one that is shown first.

import { computed, effect, signal, untracked } from "../html.js";
import { untilExact } from "../request.js";

/** @import { State } from "../state.js" */
/** @import { Answer, Source } from "../types.js" */

/** @typedef {Answer} Told */

export class Shares {
  /** @param {Source} source @param {State} state */
  constructor(source, state) {
    this.source = source;
    this.state = state;
    this.found = signal(/** @type {Map<number, Told>} */ (new Map())); // by the call's number
    this.done = signal(1);
    this.mine = new AbortController();
    /** The text that is shown, with how many tokens it has; "" while it grows, and its shares with it. */
    this.text = computed(() => {
      const at = state.at.value.slice(0, 2);
      return state.growing.value === at[0] ? "" : state.name(at);
    });
    this.stopEffect = effect(() => {
      const wanted = state.pane.value === "segments" && this.text.value !== "";
      state.segments.asked.value;
      untracked(() => this._renew(wanted));
    });
  }

  /** Ask nothing more. */
  end() {
    this.stopEffect();
    this.mine.abort();
  }

  /** @param {boolean} wanted */
  _renew(wanted) {
    this.mine.abort();
    this.found.value = new Map();
    this.done.value = 1;
    if (wanted && this.state.segments.any) this._go();
  }

  async _go() {
    this.mine = new AbortController();
    const { signal: end } = this.mine;
    const { segments } = this.state;
    const calls = this.state.calls.peek();
    const at = this.state.at.peek();
    const order = [at[2], ...calls.keys()].filter((c, i, all) => all.indexOf(c) === i);
    const left = order.filter((c) => segments.of(calls[c]));
    this.done.value = left.length ? 0 : 1;
    for (const [n, c] of left.entries()) {
      const call = this.state.name([...at.slice(0, 2), c]);
      const about = { call, ...segments.of(calls[c])?.words };
      const found = await this._one(about, end, (share) => {
        this.done.value = (n + share) / left.length;
      });
      if (!found) return;
      this.found.value = new Map(this.found.peek()).set(c, found);
      this.done.value = (n + 1) / left.length;
    }
  }

  /** The answer about a call once it is whole, or why there is none; null when it is not wanted any more. @param {Record<string, any>} about @param {AbortSignal} end @param {(done: number) => void} tell @returns {Promise<Answer | null>} */
  async _one(about, end, tell) {
    let answer = /** @type {Answer | null} */ (null);
    try {
      await untilExact(this.source, ["segments", about], end, (now) => {
        answer = now.note ? { failed: now.note } : now;
        tell(now.done ?? 1);
      });
    } catch (error) {
      answer = { failed: String(/** @type {any} */ (error).message ?? error) };
    }
    return end.aborted ? null : answer;
  }
}

/** One number of an answer; NaN where no query of the segment may see anything. @param {Told} told @param {"share" | "chance"} name @param {number} h @param {number} a @param {number} b */
export function of(told, name, h, a, b) {
  const { data, shape } = told[name];
  return data[(h * shape[1] + a) * shape[2] + b];
}

/** The mean over all heads of a call, as if they were one. @param {Told} told @returns {Told} */
export function overHeads(told) {
  /** @param {string} name @param {(known: number[]) => number} merged of a number in each head that has one */
  const over = (name, merged) => {
    const { data, shape } = told[name];
    const size = data.length / shape[0];
    const each = (/** @type {number} */ i) =>
      Array.from({ length: shape[0] }, (_, h) => data[h * size + i]);
    const all = Array.from({ length: size }, (_, i) =>
      merged(each(i).filter((one) => !Number.isNaN(one))),
    );
    return { data: Float64Array.from(all), shape: [1, ...shape.slice(1)] };
  };
  const mean = (/** @type {number[]} */ known) => known.reduce((a, b) => a + b, 0) / known.length;
  return {
    ...told,
    share: over("share", mean),
    chance: over("chance", mean),
    learned: over("learned", mean),
    queries: over("queries", (known) => Math.max(...known)),
  };
}
