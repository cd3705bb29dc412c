// The shares of attention between segments, requested call by call, the current call first.
import { computed, effect, signal, untracked } from "../html.js";
import { untilExact } from "../request.js";

/** @import { State } from "../state.js" */
/** @import { Answer, Source } from "../types.js" */

export class Shares {
  /** @param {Source} source @param {State} state */
  constructor(source, state) {
    this.source = source;
    this.state = state;
    this.byCall = signal(/** @type {Map<number, Answer>} */ (new Map()));
    this.progress = signal(1);
    this.controller = new AbortController();
    /** The id of the current text; "" while it grows. */
    this.text = computed(() => {
      const path = state.path.value.slice(0, 2);
      return state.growingRecording.value === path[0] ? "" : state.callIdOf(path);
    });
    this.stopEffect = effect(() => {
      const isOpen = state.pane.value === "segments" && this.text.value !== "";
      state.segments.runsKey.value;
      untracked(() => {
        this.controller.abort();
        this.byCall.value = new Map();
        this.progress.value = 1;
        if (isOpen && state.segments.any) this._ask();
      });
    });
  }

  /** Stop asking. */
  end() {
    this.stopEffect();
    this.controller.abort();
  }

  async _ask() {
    this.controller = new AbortController();
    const { signal: end } = this.controller;
    const { segments } = this.state;
    const calls = this.state.calls.peek();
    const path = this.state.path.peek();
    const order = [...new Set([path[2], ...calls.keys()])];
    const remaining = order.filter((c) => segments.questionFor(calls[c]));
    this.progress.value = remaining.length ? 0 : 1;
    for (const [n, c] of remaining.entries()) {
      const call = this.state.callIdOf([...path.slice(0, 2), c]);
      const fields = { call, ...segments.questionFor(calls[c])?.fields };
      const answer = await this._answer(fields, end, (share) => {
        this.progress.value = (n + share) / remaining.length;
      });
      if (!answer) return;
      this.byCall.value = new Map(this.byCall.peek()).set(c, answer);
      this.progress.value = (n + 1) / remaining.length;
    }
  }

  /** The exact answer about a call or, if it failed, an answer with the reason in `failed`; null if aborted. @param {Record<string, any>} fields @param {AbortSignal} end @param {(done: number) => void} report @returns {Promise<Answer | null>} */
  async _answer(fields, end, report) {
    let answer = /** @type {Answer | null} */ (null);
    try {
      await untilExact(this.source, ["segments", fields], end, (latest) => {
        answer = latest.note ? { failed: latest.note } : latest;
        report(latest.done ?? 1);
      });
    } catch (error) {
      answer = { failed: String(/** @type {any} */ (error).message ?? error) };
    }
    return end.aborted ? null : answer;
  }
}

/** A share or chance of an answer; NaN if every query of the segment is fully masked. @param {Answer} answer @param {"share" | "chance"} name @param {number} h @param {number} a @param {number} b */
export function shareAt(answer, name, h, a, b) {
  const { data, shape } = answer[name];
  return data[(h * shape[1] + a) * shape[2] + b];
}

/** The mean over all heads of a call, as an answer with a single head. @param {Answer} answer @returns {Answer} */
export function meanOverHeads(answer) {
  /** @param {string} name @param {(values: number[]) => number} combine combines the values of the heads that are not NaN */
  const combined = (name, combine) => {
    const { data, shape } = answer[name];
    const size = data.length / shape[0];
    const all = Array.from({ length: size }, (_, i) => {
      const values = Array.from({ length: shape[0] }, (_, h) => data[h * size + i]);
      return combine(values.filter((value) => !Number.isNaN(value)));
    });
    return { data: Float64Array.from(all), shape: [1, ...shape.slice(1)] };
  };
  const mean = (/** @type {number[]} */ all) => all.reduce((a, b) => a + b, 0) / all.length;
  return {
    ...answer,
    share: combined("share", mean),
    chance: combined("chance", mean),
    learned: combined("learned", mean),
    queries: combined("queries", (values) => Math.max(...values)),
  };
}
