// What is known of heads: their names, small pictures, scores and kinds, asked for call after call.

import { learn } from "../glossary.js";
import { signal } from "../html.js";

/** @import { State } from "../state.js" */
/** @import { About, Answer, Source } from "../types.js" */
/** @typedef {import("../types.js").CallAbout & {title?: string}} CallAbout */

/** One colour a kind, distinct also for the colour-blind (Okabe and Ito 2008). @type {Record<string, string>} */
export const KINDS = {
  previous: "#0072b2",
  sink: "#8c8c8c",
  self: "#009e73",
  local: "#56b4e9",
  broad: "#c9b458",
  induction: "#d55e00",
  duplicate: "#cc79a7",
};
export const SCORES = [...Object.keys(KINDS), "entropy", "distance"];
/** Scores that are no shares, so that their largest is looked for. */
export const OPEN = ["entropy", "distance"];

/**
 * What is known of a call's heads; `word` is that of its scores.
 * @typedef {object} Known
 * @property {Answer | null} small
 * @property {Answer | null} scores
 * @property {Record<string, string>} asked of which length of a text they are
 * @property {number} next when it may be asked again, of scores that are not whole yet
 * @property {string} failed
 * @property {One[]} heads
 */

/**
 * A head with its scores, NaN where there is none.
 * @typedef {object} One
 * @property {number} call its call's number in the text
 * @property {number} head the model's number
 * @property {number} i its place in the call
 * @property {CallAbout} about
 * @property {string} kind "-" has none, "" is not known yet
 * @property {Record<string, number>} values
 * @property {Record<string, number>} chance
 * @property {Record<string, number>} queries on how many of them a score rests
 * @property {Known} known
 */

const AGAIN = 700; // milliseconds until scores that are being computed are asked for again

export class Heads {
  /** @param {Source} source @param {State} state */
  constructor(source, state) {
    this.source = source;
    this.state = state;
    /** @type {Map<string, Known>} */
    this.known = new Map();
    this.version = signal(0);
    this.busy = false;
    this.ended = false;
    /** @type {number[]} calls in view, which come first */
    this.wanted = [];
    named(state.about);
    learn(state.about.words);
  }

  /** Of a call of the text, what is known so far. @param {number} call */
  of(call) {
    const where = [...this.state.at.value.slice(0, 2), call].join("."); // however long it is by now
    let known = this.known.get(where);
    if (!known) {
      known = { small: null, scores: null, asked: {}, next: 0, failed: "", heads: [] };
      this.known.set(where, known);
    }
    return known;
  }

  /** Ask for what is not known, the calls in view first. @param {number[]} calls */
  want(calls) {
    this.wanted = calls;
    if (!this.busy) this.work();
  }

  /** One question after the other, so that a page's own come between. */
  async work() {
    this.busy = true;
    for (let next = this.next(); next && !this.ended; next = this.next()) {
      const [question, call, wait] = next;
      if (wait > 0) await new Promise((done) => setTimeout(done, wait));
      await this.ask(question, call);
    }
    this.busy = false;
  }

  /** Ask for nothing more. */
  end() {
    this.ended = true;
  }

  /** What to ask next: a question, of which call, and how long to wait. @returns {["small" | "scores", number, number] | null} */
  next() {
    const all = this.state.calls.peek().map((_, call) => call);
    const order = [...this.wanted.filter((call) => call in all), ...all];
    const open = (/** @type {number} */ call) => !this.of(call).failed;
    const small = this.wanted.find((call) => call in all && open(call) && !this.of(call).small);
    if (small !== undefined) return ["small", small, 0];
    const fresh = order.find((call) => open(call) && !this.of(call).scores);
    if (fresh !== undefined) return ["scores", fresh, 0];
    if (this.state.growing.peek() === null)
      for (const question of /** @type {const} */ (["small", "scores"])) {
        const old = order.find((call) => open(call) && this.isOld(call, question));
        if (old !== undefined) return [question, old, 0];
      }
    const parts = order.filter((call) => open(call) && isPart(this.of(call)));
    if (!parts.length) return null;
    const soonest = parts.reduce((a, b) => (this.of(b).next < this.of(a).next ? b : a));
    const question = (this.of(soonest).scores?.done ?? 1) < 1 ? "scores" : "small";
    return [question, soonest, this.of(soonest).next - performance.now()];
  }

  /** Whether an answer is of a text that has grown since. @param {number} call @param {"small" | "scores"} question */
  isOld(call, question) {
    const before = this.of(call).asked[question];
    return (
      before !== undefined &&
      before !== this.state.name([...this.state.at.peek().slice(0, 2), call])
    );
  }

  /** @param {"small" | "scores"} question @param {number} call */
  async ask(question, call) {
    const about = this.state.calls.peek()[call];
    if (!about) return; // another text was opened meanwhile, which has fewer calls
    const known = this.of(call);
    try {
      const where = this.state.name([...this.state.at.peek().slice(0, 2), call]);
      known.asked[question] = where;
      known[question] = await this.source.ask(question, { call: where });
      known.next = performance.now() + AGAIN;
    } catch (error) {
      known.failed = error instanceof Error ? error.message : String(error);
    }
    known.heads = about.heads.map((_, i) => one(call, i, about, known));
    this.version.value++;
  }

  /** Every head of the text with its scores, as far as they are known. @returns {One[]} */
  all() {
    this.version.value;
    return this.state.calls.value.flatMap((about, call) => {
      const known = this.of(call);
      if (!known.heads.length) known.heads = about.heads.map((_, i) => one(call, i, about, known));
      return known.heads;
    });
  }

  /** The share of the text's scores that is known, 1 where all are exact. */
  get done() {
    const calls = this.state.calls.value;
    const each = calls.map((_, call) => {
      const { scores, failed } = this.of(call);
      return failed ? 1 : scores ? (scores.done ?? 1) : 0;
    });
    return each.reduce((sum, done) => sum + done, 0) / Math.max(1, each.length);
  }
}

/** Whether an exact answer follows. @param {Known} known */
const isPart = ({ scores, small }) => (scores?.done ?? 1) < 1 || (small?.done ?? 1) < 1;

/** @param {number} call @param {number} i @param {CallAbout} about @param {Known} known @returns {One} */
function one(call, i, about, known) {
  const scores = known.scores;
  const of = (/** @type {string} */ prefix) =>
    Object.fromEntries(
      SCORES.map((name) => [name, scores?.[prefix + name]?.data[i] ?? Number.NaN]),
    );
  return {
    call,
    head: about.heads[i],
    i,
    about,
    kind: scores?.kinds[i] ?? "",
    values: of(""),
    chance: of("chance "),
    queries: of("queries "),
    known,
  };
}

/** The name of a head. @param {{about: CallAbout, head: number}} one */
export const title = ({ about, head }) => `${callTitle(about)}, head ${head}`;

/** The name of a call, told apart from those of the same layer. @param {CallAbout} about */
export const callTitle = (about) =>
  about.title ?? (about.layer === null ? about.name : `layer ${about.layer}`);

/** Give every call a title of its own. @param {About} about */
export function named(about) {
  for (const { texts } of about.recordings)
    for (const { calls } of texts) {
      for (const group of groups(calls, (call) => call.layer ?? call.name)) apart(group);
    }
}

/** What has the same in common, in its order. @template T @param {T[]} all @param {(one: T) => unknown} by @returns {T[][]} */
export function groups(all, by) {
  /** @type {Map<unknown, T[]>} */
  const found = new Map();
  for (const one of all) {
    const group = found.get(by(one));
    if (group) group.push(one);
    else found.set(by(one), [one]);
  }
  return [...found.values()];
}

/** @param {CallAbout[]} calls that have their layer in common */
function apart(calls) {
  const words = calls.map((call) => call.name.split(/[./]/).filter((word) => !/^\d+$/.test(word)));
  const shared = words[0].filter((word) => words.every((each) => each.includes(word)));
  const passes = new Set(calls.map((call) => call.pass)).size > 1;
  /** @type {Map<string, number>} */
  const seen = new Map();
  calls.forEach((call, n) => {
    const own = words[n]
      .filter((word) => !shared.includes(word))
      .join(" ")
      .replaceAll("_", " ");
    const parts = [call.layer === null ? call.name || "attention" : `layer ${call.layer}`];
    if (own && call.layer !== null) parts.push(own);
    if (passes) parts.push(`pass ${call.pass}`);
    const so = parts.join(", ");
    const times = (seen.get(so) ?? 0) + 1;
    seen.set(so, times);
    call.title = times > 1 ? `${so}, time ${times}` : so;
  });
}

/** Whether two are one head, before and after its scores came. @param {One | null | undefined} one @param {One | null | undefined} other */
export const same = (one, other) => one?.call === other?.call && one?.head === other?.head;

/** A head as a screen reader says it. @param {One} one @param {string} score */
export function spoken(one, score) {
  const kind = one.kind && one.kind !== "-" ? `, ${one.kind}` : "";
  const value = one.values[score];
  const said = one.kind === score && kind ? "" : kind;
  return `${title(one)}${said}${Number.isFinite(value) ? `, ${score} ${value.toFixed(2)}` : ""}`;
}
