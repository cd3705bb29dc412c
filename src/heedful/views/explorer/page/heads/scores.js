// All heads of a text: their names, small pictures, scores and kinds, requested call by call.
import { addScores } from "../glossary.js";
import { signal } from "../html.js";
import { plural } from "../number_format.js";

/** @import { State } from "../state.js" */
/** @import { About, Answer, Source } from "../types.js" */
/** @typedef {import("../types.js").CallAbout & {title?: string}} CallAbout */

/** The colour of each kind; colour-blind readers can distinguish them (Okabe and Ito 2008). @type {Record<string, string>} */
export const KINDS = {
  previous: "#0072b2",
  sink: "#8c8c8c",
  self: "#009e73",
  local: "#56b4e9",
  broad: "#c9b458",
  induction: "#d55e00",
  duplicate: "#cc79a7",
};
const SCORES = [...Object.keys(KINDS), "entropy", "distance"];
/** The change of a metric without the head, as `heedful ablate` measured it. */
export const DELTA = "Δ";
/** Scores that may exceed 1. */
export const UNBOUNDED = ["entropy", "distance", DELTA];

/** The names of all scores. @param {About} about */
export const scoreNames = ({ ablation }) => (ablation ? [DELTA, ...SCORES] : SCORES);

/** The end of a score's scale. @param {HeadEntry[]} entries @param {string} name */
export const scaleEnd = (entries, name) =>
  UNBOUNDED.includes(name)
    ? Math.max(...entries.map(({ values }) => Math.abs(values[name]) || 0), 1e-6)
    : 1;

/** A score as text. @param {string} name @param {number} value */
export function scoreText(name, value) {
  if (!Number.isFinite(value)) return "–";
  if (name !== DELTA) return value.toFixed(2);
  const sign = value > 0 ? "+" : value < 0 ? "−" : "";
  return sign + String(+Math.abs(value).toPrecision(2)).replace("-", "−");
}

/**
 * The answers about a call's heads so far.
 * @typedef {object} CallAnswers
 * @property {Answer | null} small
 * @property {Answer | null} scores
 * @property {Record<string, string>} callIds the call id that each answer belongs to
 * @property {number} next the time of the next request, if an answer is not exact
 * @property {string} failed
 * @property {HeadEntry[]} heads
 */

/**
 * A head with its scores, NaN if missing.
 * @typedef {object} HeadEntry
 * @property {number} call the index of its call in the text
 * @property {number} head the model's head number
 * @property {number} i its index in the call
 * @property {CallAbout} about
 * @property {string} kind "-": no kind; "": not computed yet
 * @property {Record<string, number>} values
 * @property {Record<string, number>} chance
 * @property {Record<string, number>} queries the number of queries that each score is a mean over
 * @property {import("../types.js").AblatedHead | undefined} ablated what `heedful ablate` measured
 * @property {CallAnswers} answers
 */

const POLL_PAUSE = 700; // milliseconds before an inexact answer is requested again

export class Heads {
  /** @param {Source} source @param {State} state */
  constructor(source, state) {
    this.source = source;
    this.state = state;
    /** @type {Map<string, CallAnswers>} */
    this.answers = new Map();
    this.version = signal(0);
    this.busy = false;
    this.ended = false;
    /** @type {number[]} calls in view, which have priority */
    this.visible = [];
    setTitles(state.about);
    addScores(state.about.words);
    const { ablation } = state.about;
    if (ablation) {
      const { model, metric, kind, texts } = ablation;
      const definition = `how much worse the ${metric} gets without the head (${kind}, mean of ${plural(texts, "text")}); negative: it gets better`;
      addScores({ [DELTA]: { definition, source: `heedful ablate, ${model}` } });
    }
  }

  /** The answers about a call of the current text. @param {number} call */
  answersOf(call) {
    const callId = [...this.state.path.value.slice(0, 2), call].join("."); // without the number of tokens
    let answers = this.answers.get(callId);
    if (!answers) {
      answers = { small: null, scores: null, callIds: {}, next: 0, failed: "", heads: [] };
      this.answers.set(callId, answers);
    }
    return answers;
  }

  /** Request missing answers, the calls in view first. @param {number[]} calls */
  request(calls) {
    this.visible = calls;
    if (!this.busy) this.work();
  }

  /** Ask one question after the other, so that an urgent question waits for at most one other question. */
  async work() {
    this.busy = true;
    for (let next = this.next(); next && !this.ended; next = this.next()) {
      const [question, call, wait] = next;
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      await this.ask(question, call);
    }
    this.busy = false;
  }

  /** Stop asking. */
  end() {
    this.ended = true;
  }

  /** The next question, its call, and the milliseconds to wait before it. @returns {["small" | "scores", number, number] | null} */
  next() {
    const all = this.state.calls.peek().map((_, call) => call);
    const order = [...this.visible.filter((call) => call in all), ...all];
    const isOpen = (/** @type {number} */ call) => !this.answersOf(call).failed;
    const isMissing = (/** @type {number} */ call) => isOpen(call) && !this.answersOf(call).small;
    const small = this.visible.find((call) => call in all && isMissing(call));
    if (small !== undefined) return ["small", small, 0];
    const fresh = order.find((call) => isOpen(call) && !this.answersOf(call).scores);
    if (fresh !== undefined) return ["scores", fresh, 0];
    if (this.state.growingRecording.peek() === null)
      for (const question of /** @type {const} */ (["small", "scores"])) {
        const old = order.find((call) => isOpen(call) && this.isOld(call, question));
        if (old !== undefined) return [question, old, 0];
      }
    const nextOf = (/** @type {number} */ call) => this.answersOf(call).next;
    const parts = order.filter((call) => isOpen(call) && isPartial(this.answersOf(call)));
    if (!parts.length) return null;
    const soonest = parts.reduce((a, b) => (nextOf(b) < nextOf(a) ? b : a));
    const question = (this.answersOf(soonest).scores?.done ?? 1) < 1 ? "scores" : "small";
    return [question, soonest, nextOf(soonest) - performance.now()];
  }

  /** Whether the text has grown since an answer. @param {number} call @param {"small" | "scores"} question */
  isOld(call, question) {
    const callId = this.answersOf(call).callIds[question];
    return (
      callId !== undefined &&
      callId !== this.state.callIdOf([...this.state.path.peek().slice(0, 2), call])
    );
  }

  /** @param {"small" | "scores"} question @param {number} call */
  async ask(question, call) {
    const about = this.state.calls.peek()[call];
    if (!about) return; // another text with fewer calls was opened meanwhile
    const answers = this.answersOf(call);
    try {
      const callId = this.state.callIdOf([...this.state.path.peek().slice(0, 2), call]);
      answers.callIds[question] = callId;
      answers[question] = await this.source.ask(question, { call: callId });
      answers.next = performance.now() + POLL_PAUSE;
    } catch (error) {
      answers.failed = error instanceof Error ? error.message : String(error);
    }
    answers.heads = headEntries(call, about, answers, this.state.about);
    this.version.value++;
  }

  /** Every head of the text with its scores so far. @returns {HeadEntry[]} */
  all() {
    this.version.value;
    return this.state.calls.value.flatMap((about, call) => {
      const answers = this.answersOf(call);
      if (!answers.heads.length)
        answers.heads = headEntries(call, about, answers, this.state.about);
      return answers.heads;
    });
  }

  /** The computed share of the text's scores; 1 if each call's scores are exact or failed. */
  get progress() {
    const calls = this.state.calls.value;
    const each = calls.map((_, call) => {
      const { scores, failed } = this.answersOf(call);
      return failed ? 1 : scores ? (scores.done ?? 1) : 0;
    });
    return each.reduce((sum, done) => sum + done, 0) / Math.max(1, each.length);
  }
}

/** Whether an exact answer follows. @param {CallAnswers} answers */
const isPartial = ({ scores, small }) => (scores?.done ?? 1) < 1 || (small?.done ?? 1) < 1;

/** @param {number} call @param {CallAbout} about @param {CallAnswers} answers @param {About} page @returns {HeadEntry[]} */
function headEntries(call, about, answers, { ablation }) {
  const scores = answers.scores;
  const valuesOf = (/** @type {string} */ prefix, /** @type {number} */ i) =>
    Object.fromEntries(
      SCORES.map((name) => [name, scores?.[prefix + name]?.data[i] ?? Number.NaN]),
    );
  return about.heads.map((head, i) => {
    const ablated = ablation?.heads.find(
      (other) => other.head === head && `.${other.module}`.endsWith(`.${about.name}`),
    );
    const delta = ablated?.delta ?? ablated?.first_order ?? Number.NaN;
    return {
      call,
      head,
      i,
      about,
      kind: scores?.kinds[i] ?? "",
      values: { ...valuesOf("", i), [DELTA]: delta },
      chance: valuesOf("chance ", i),
      queries: valuesOf("queries ", i),
      ablated,
      answers,
    };
  });
}

/** The title of a head. @param {{about: CallAbout, head: number}} entry */
export const title = ({ about, head }) => `${callTitle(about)}, head ${head}`;

/** The title of a call. @param {CallAbout} about */
export const callTitle = (about) =>
  about.title ?? (about.layer === null ? about.name : `layer ${about.layer}`);

/** Give every call a unique title. @param {About} about */
export function setTitles(about) {
  for (const { texts } of about.recordings)
    for (const { calls } of texts) {
      for (const group of groups(calls, (call) => call.layer ?? call.name)) setGroupTitles(group);
    }
}

/** Group items by a key, in their order. @template T @param {T[]} items @param {(item: T) => unknown} keyOf @returns {T[][]} */
export function groups(items, keyOf) {
  /** @type {Map<unknown, T[]>} */
  const result = new Map();
  for (const item of items) {
    const group = result.get(keyOf(item));
    if (group) group.push(item);
    else result.set(keyOf(item), [item]);
  }
  return [...result.values()];
}

const CROSS = /encdec|cross|encoder_att/i; // modules of cross-attention, by their usual names

/** @param {CallAbout[]} calls of the same layer */
function setGroupTitles(calls) {
  const words = calls.map((call) => call.name.split(/[./]/).filter((word) => !/^\d+$/.test(word)));
  const shared = words[0].filter((word) => words.every((each) => each.includes(word)));
  const hasPasses = new Set(calls.map((call) => call.pass)).size > 1;
  /** @type {Map<string, number>} */
  const counts = new Map();
  calls.forEach((call, n) => {
    const distinct = words[n]
      .filter((word) => !shared.includes(word))
      .map((word) => (call.kind === "cross" && CROSS.test(word) ? "cross-attention" : word))
      .join(" ")
      .replaceAll("_", " ");
    const parts = [call.layer === null ? call.name || "attention" : `layer ${call.layer}`];
    if (distinct && call.layer !== null) parts.push(distinct);
    if (hasPasses) parts.push(`pass ${call.pass}`);
    const title = parts.join(", ");
    const number = (counts.get(title) ?? 0) + 1;
    counts.set(title, number);
    call.title = number > 1 ? `${title}, call ${number}` : title;
  });
}

/** Whether two entries describe the same head. @param {HeadEntry | null | undefined} a @param {HeadEntry | null | undefined} b */
export const isSame = (a, b) => a?.call === b?.call && a?.head === b?.head;

/** A head with its kind and a score, as text. @param {HeadEntry} entry @param {string} score */
export function headText(entry, score) {
  const kind = entry.kind && entry.kind !== "-" && entry.kind !== score ? `, ${entry.kind}` : "";
  const isKnown = score === DELTA || Number.isFinite(entry.values[score]);
  return `${title(entry)}${kind}${isKnown ? `, ${score} ${scoreText(score, entry.values[score])}` : ""}`;
}
