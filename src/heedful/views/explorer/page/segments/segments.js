// Segments of a text that a person marks: names, runs of tokens, and which colour each has.
import { batch, computed, signal } from "../html.js";

/** @import { State } from "../state.js" */
/** @import { Axis, CallAbout, TextAbout } from "../types.js" */

/** @typedef {[number, number]} Run tokens from the first up to the second */
/** @typedef {"source" | "target"} Reads what is read, and what an encoder–decoder writes */
/** @typedef {{id: number, name: string, colour: number, lane: number, runs: Run[]}} Segment */
/** @typedef {Record<Reads, Segment[]>} Marks */
/** @typedef {{reads: Reads, from: number, to: number}} Selection `to` is among the tokens */

export const COLOURS = 8;
export const MOST = 60; // segments of a text
export const REST = "rest"; // what is in no segment
const RESERVED = [REST, "learned sink"];
/** @type {Marks} */
const NONE = { source: [], target: [] };

export class Segments {
  /** @param {State} state */
  constructor(state) {
    this.state = state;
    this.made = 0;
    this.kept = signal(/** @type {Record<string, Marks>} */ ({}));
    /** The text that is shown. */
    this.key = computed(() => state.at.value.slice(0, 2).join("."));
    /** Its segments. */
    this.now = computed(() => this.kept.value[this.key.value] ?? this._first(this.text));
    /** The same as numbers alone: what is asked. */
    this.asked = computed(
      () => `${this.key.value} ${written(this.now.value.source)} ${written(this.now.value.target)}`,
    );
    /** Tokens that are chosen and not marked yet. */
    this.selection = signal(/** @type {Selection | null} */ (null));
  }

  /** @returns {TextAbout} */
  get text() {
    const [recording, text] = this.key.value.split(".").map(Number);
    return this.state.about.recordings[recording].texts[text];
  }

  /** Whether anything is marked. */
  get any() {
    return this.now.value.source.length + this.now.value.target.length > 0;
  }

  /** What was marked before the page was opened. @param {TextAbout} text @returns {Marks} */
  _first({ marks }) {
    const first = marks?.source?.length ?? 0; // two texts share no colour while there are others
    const of = (/** @type {Reads} */ reads) =>
      laned(
        (marks?.[reads] ?? []).map((one, i) => ({
          ...one,
          id: -1 - i,
          colour: (i + (reads === "target" ? first : 0)) % COLOURS,
          lane: 0,
        })),
      );
    return marks ? { source: of("source"), target: of("target") } : NONE;
  }

  /** Which text an axis of a call is of; null where it is none that can be marked. @param {CallAbout} call @param {Axis} axis @returns {Reads | null} */
  reads(call, axis) {
    return call.reads?.[axis === "queries" ? 0 : 1] ?? null;
  }

  /** How many tokens a text has. @param {Reads} reads */
  size(reads) {
    let most = 0;
    for (const call of this.text.calls)
      for (const axis of /** @type {Axis[]} */ (["queries", "keys"]))
        if (this.reads(call, axis) === reads)
          most = Math.max(most, axis === "keys" ? call.shape[2] : call.shape[1]);
    return most;
  }

  /** Segments along an axis of a call, by the places there. @param {CallAbout} call @param {Axis} axis @returns {Segment[]} */
  along(call, axis) {
    const reads = this.reads(call, axis);
    if (!reads) return [];
    const first = axis === "queries" && call.kind !== "cross" ? call.first : 0;
    const size = call.shape[axis === "queries" ? 1 : 2];
    return this.now.value[reads].map((one) => ({
      ...one,
      runs: one.runs
        .map(([a, b]) => /** @type {Run} */ ([Math.max(0, a - first), Math.min(size, b - first)]))
        .filter(([a, b]) => a < b),
    }));
  }

  /** @param {Reads} reads @param {Segment[]} segments */
  set(reads, segments) {
    const some = segments.filter((one) => one.runs.length);
    this.kept.value = {
      ...this.kept.value,
      [this.key.value]: { ...this.now.value, [reads]: laned(some) },
    };
  }

  /** Marks as they are told elsewhere. @param {Marks} marks */
  put(marks) {
    this.kept.value = { ...this.kept.value, [this.key.value]: marks };
  }

  /** A new segment. @param {Reads} reads @param {Run[]} runs @param {string} [name] */
  add(reads, runs, name = "") {
    const now = this.now.value[reads];
    const used = [...this.now.value.source, ...this.now.value.target].map((one) => one.colour);
    const free = [...Array(COLOURS).keys()].find((one) => !used.includes(one));
    const colour = free ?? now.length % COLOURS;
    const one = { id: ++this.made, name: "", colour, lane: 0, runs: merged(runs) };
    batch(() => {
      this.set(reads, [...now, { ...one, name: this._free(reads, name, one.id) }]);
      this.selection.value = null;
    });
    return one.id;
  }

  /** A name that no other has. @param {Reads} reads @param {string} wanted @param {number} id */
  _free(reads, wanted, id) {
    const taken = this.now.value[reads].filter((one) => one.id !== id).map((one) => one.name);
    const is = (/** @type {string} */ name) =>
      name !== "" && !taken.includes(name) && !RESERVED.includes(name);
    if (is(wanted)) return wanted;
    const stem = wanted || "segment";
    for (let n = wanted ? 2 : taken.length + 1; ; n++)
      if (is(`${stem} ${n}`)) return `${stem} ${n}`;
  }

  /** @param {Reads} reads @param {number} id @param {(one: Segment) => Partial<Segment>} change */
  _change(reads, id, change) {
    const all = this.now.value[reads];
    this.set(
      reads,
      all.map((one) => (one.id === id ? { ...one, ...change(one) } : one)),
    );
  }

  /** @param {Reads} reads @param {number} id @param {string} name */
  rename(reads, id, name) {
    this._change(reads, id, () => ({ name: this._free(reads, name.trim(), id) }));
  }

  /** One piece more of a segment. @param {Reads} reads @param {number} id @param {Run} run */
  extend(reads, id, run) {
    this._change(reads, id, ({ runs }) => ({ runs: merged([...runs, run]) }));
    this.selection.value = null;
  }

  /** @param {Reads} reads @param {number} id */
  remove(reads, id) {
    this.set(
      reads,
      this.now.value[reads].filter((one) => one.id !== id),
    );
  }

  /** How many tokens are in no segment, and whether the first is among them. @param {Reads} reads */
  rest(reads) {
    const runs = merged(this.now.value[reads].flatMap((one) => one.runs));
    return { count: this.size(reads) - count(runs), first: !runs.length || runs[0][0] > 0 };
  }

  /** Whether a token is in two. @param {Reads} reads */
  overlaps(reads) {
    return this.now.value[reads].some((one) => one.lane > 0);
  }

  /**
   * What a call is asked, and what the numbers of its answer are of; null where nothing is marked.
   * @param {CallAbout} call
   * @returns {{words: Record<string, string>, from: string[], to: string[]} | null}
   */
  of(call) {
    if (!this.any || !call.reads) return null;
    const [queries, keys] = call.reads.map((reads) => this._named(reads));
    /** @type {Record<string, string>} */
    const words = { keys: written(keys) };
    if (call.kind === "cross") words.queries = written(queries);
    const names = (/** @type {{name: string}[]} */ all) => [...all.map((one) => one.name), REST];
    return { words, from: names(call.kind === "cross" ? queries : keys), to: names(keys) };
  }

  /** Those of a text; of two texts, one of which nothing is marked is one segment. @param {Reads} reads */
  _named(reads) {
    const marked = this.now.value[reads];
    if (marked.length || !this.text.crosses) return marked;
    return [{ name: reads, runs: [/** @type {Run} */ ([0, this.size(reads)])] }];
  }
}

/** Runs of segments as a question has them: 0-40,50-60;60-80. @param {{runs: Run[]}[]} segments */
export function written(segments) {
  return segments.map(({ runs }) => runs.map((run) => run.join("-")).join(",")).join(";");
}

/** Sorted runs that do not touch. @param {Run[]} runs @returns {Run[]} */
export function merged(runs) {
  /** @type {Run[]} */
  const found = [];
  for (const [a, b] of runs.toSorted((one, other) => one[0] - other[0])) {
    const last = found.at(-1);
    if (last && a <= last[1]) last[1] = Math.max(last[1], b);
    else if (a < b) found.push([a, b]);
  }
  return found;
}

/** How many tokens. @param {Run[]} runs */
export const count = (runs) => runs.reduce((sum, [a, b]) => sum + b - a, 0);

/** Each in the first lane in which no earlier one meets it. @param {Segment[]} segments @returns {Segment[]} */
function laned(segments) {
  /** @type {Run[][]} */
  const lanes = [];
  return segments.map((one) => {
    const meets = (/** @type {Run[]} */ runs) =>
      runs.some(([a, b]) => one.runs.some(([c, d]) => a < d && c < b));
    const at = lanes.findIndex((runs) => !meets(runs));
    const lane = at < 0 ? lanes.length : at;
    lanes[lane] = [...(lanes[lane] ?? []), ...one.runs];
    return { ...one, lane };
  });
}

/** Marks as an address has them. @param {Segment[]} segments */
export function asWords(segments) {
  return segments.map((one) => `${encodeURIComponent(one.name)}:${written([one])}`).join(";");
}

/** Marks of an address, after some of the other text; what is not understood is passed over. @param {string} text @param {number} size @param {number} [before] @returns {Segment[]} */
export function fromWords(text, size, before = 0) {
  const found = text.split(";").flatMap((part, i) => {
    const [name, runs] = part.split(":");
    const all = (runs ?? "").split(",").map((run) => /^(\d{1,9})-(\d{1,9})$/.exec(run));
    const known = all.flatMap((run) =>
      run ? [/** @type {Run} */ ([Number(run[1]), Math.min(size, Number(run[2]))])] : [],
    );
    const own = merged(known.filter(([a, b]) => a < b));
    return own.length && i < MOST
      ? [{ id: -1 - i, name: plain(name), colour: (i + before) % COLOURS, lane: 0, runs: own }]
      : [];
  });
  return laned(found);
}

/** @param {string} name */
function plain(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}
