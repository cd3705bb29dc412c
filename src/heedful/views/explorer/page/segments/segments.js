// Segments that the user marks in a text: names, token ranges, colours, and lanes of their lines.
import { batch, computed, signal } from "../html.js";

/** @import { State } from "../state.js" */
/** @import { Axis, CallAbout, TextAbout } from "../types.js" */

/** @typedef {[number, number]} Run token indices [start, end) */
/** @typedef {"source" | "target"} TextRole "target": the text that an encoder–decoder writes; "source": any other */
/** @typedef {{id: number, name: string, colour: number, lane: number, runs: Run[]}} Segment */
/** @typedef {Record<TextRole, Segment[]>} Marks */
/** @typedef {{role: TextRole, from: number, to: number}} Selection `to` is inclusive */

export const COLOURS = 8;
export const MAX_SEGMENTS = 60; // of a text
export const REST = "rest"; // the tokens outside all segments
const RESERVED = [REST, "learned sink"];
/** @type {Marks} */
const NONE = { source: [], target: [] };

export class Segments {
  /** @param {State} state */
  constructor(state) {
    this.state = state;
    this.lastId = 0;
    this.byText = signal(/** @type {Record<string, Marks>} */ ({}));
    /** The key of the current text. */
    this.key = computed(() => state.path.value.slice(0, 2).join("."));
    /** The segments of the current text. */
    this.current = computed(() => this.byText.value[this.key.value] ?? this._initial(this.text));
    /** The token ranges of all segments; they change when shares must be recomputed. */
    this.runsKey = computed(() => {
      const { source, target } = this.current.value;
      return `${this.key.value} ${formatRuns(source)} ${formatRuns(target)}`;
    });
    /** Returns the first words of a range of tokens, as the name of a new segment. */
    this.firstWords = (/** @type {Axis} */ _axis, /** @type {Run} */ _run) => "";
    /** Tokens that are selected but not marked yet. */
    this.selection = signal(/** @type {Selection | null} */ (null));
  }

  /** @returns {TextAbout} */
  get text() {
    const [recording, text] = this.key.value.split(".").map(Number);
    return this.state.about.recordings[recording].texts[text];
  }

  /** Whether anything is marked. */
  get any() {
    return this.current.value.source.length + this.current.value.target.length > 0;
  }

  /** The segments that were marked before the page was opened. @param {TextAbout} text @returns {Marks} */
  _initial({ marks }) {
    if (!marks) return NONE;
    const source = numbered(marks.source ?? [], 0);
    return { source, target: numbered(marks.target ?? [], source.length) };
  }

  /** The text of an axis of a call; null if it cannot be marked. @param {CallAbout} call @param {Axis} axis @returns {TextRole | null} */
  roleOf(call, axis) {
    return call.reads?.[axis === "queries" ? 0 : 1] ?? null;
  }

  /** The number of tokens of a text. @param {TextRole} role */
  size(role) {
    const sizes = this.text.calls.flatMap(({ reads, shape: [, ...lengths] }) =>
      lengths.filter((_, axis) => reads?.[axis] === role),
    );
    return Math.max(0, ...sizes);
  }

  /** The segments along an axis of a call, with indices of that axis. @param {CallAbout} call @param {Axis} axis @returns {Segment[]} */
  along(call, axis) {
    const role = this.roleOf(call, axis);
    if (!role) return [];
    const first = axis === "queries" && call.kind !== "cross" ? call.first : 0;
    const size = call.shape[axis === "queries" ? 1 : 2];
    return this.current.value[role].map((segment) => ({
      ...segment,
      runs: segment.runs
        .map(([a, b]) => /** @type {Run} */ ([Math.max(0, a - first), Math.min(size, b - first)]))
        .filter(([a, b]) => a < b),
    }));
  }

  /** @param {TextRole} role @param {Segment[]} segments */
  set(role, segments) {
    const nonEmpty = segments.filter(({ runs }) => runs.length);
    this.replace({ ...this.current.value, [role]: withLanes(nonEmpty) });
  }

  /** Replace all segments of the current text. @param {Marks} marks */
  replace(marks) {
    this.byText.value = { ...this.byText.value, [this.key.value]: marks };
  }

  /** Add a segment, named by its first words; return its id. @param {TextRole} role @param {Run[]} runs */
  add(role, runs) {
    const isOfKeys = this.roleOf(this.state.call.value, "keys") === role;
    const name = this.firstWords(isOfKeys ? "keys" : "queries", runs[0]);
    const { source, target } = this.current.value;
    const segments = this.current.value[role];
    const used = [...source, ...target].map((other) => other.colour);
    const free = [...Array(COLOURS).keys()].find((n) => !used.includes(n));
    const colour = free ?? segments.length % COLOURS;
    const segment = { id: ++this.lastId, name: "", colour, lane: 0, runs: merged(runs) };
    batch(() => {
      this.set(role, [...segments, { ...segment, name: this._freeName(role, name, segment.id) }]);
      this.selection.value = null;
    });
    return segment.id;
  }

  /** The requested name, or a variant that no other segment has. @param {TextRole} role @param {string} requested @param {number} id */
  _freeName(role, requested, id) {
    const others = this.current.value[role].filter((segment) => segment.id !== id);
    const isFree = (/** @type {string} */ name) =>
      name !== "" && others.every((segment) => segment.name !== name) && !RESERVED.includes(name);
    if (isFree(requested)) return requested;
    const stem = requested || "segment";
    for (let n = requested ? 2 : others.length + 1; ; n++)
      if (isFree(`${stem} ${n}`)) return `${stem} ${n}`;
  }

  /** @param {TextRole} role @param {number} id @param {(segment: Segment) => Partial<Segment>} change */
  _change(role, id, change) {
    const changed = this.current.value[role].map((segment) =>
      segment.id === id ? { ...segment, ...change(segment) } : segment,
    );
    this.set(role, changed);
  }

  /** @param {TextRole} role @param {number} id @param {string} name */
  rename(role, id, name) {
    this._change(role, id, () => ({ name: this._freeName(role, name.trim(), id) }));
  }

  /** Add a token range to a segment. @param {TextRole} role @param {number} id @param {Run} run */
  extend(role, id, run) {
    this._change(role, id, ({ runs }) => ({ runs: merged([...runs, run]) }));
    this.selection.value = null;
  }

  /** @param {TextRole} role @param {number} id */
  remove(role, id) {
    this._change(role, id, () => ({ runs: [] }));
  }

  /** The number of tokens outside all segments, and whether the first token is one of them. @param {TextRole} role */
  rest(role) {
    const runs = merged(this.current.value[role].flatMap((segment) => segment.runs));
    return { count: this.size(role) - count(runs), first: !runs.length || runs[0][0] > 0 };
  }

  /** Whether some segments overlap. @param {TextRole} role */
  overlaps(role) {
    return this.current.value[role].some(({ lane }) => lane > 0);
  }

  /** The fields of a question about a call's segments, with the names of rows and columns; null if nothing is marked or segments do not apply. @param {CallAbout} call @returns {{fields: Record<string, string>, from: string[], to: string[]} | null} */
  questionFor(call) {
    if (!this.any || !call.reads) return null;
    const [queries, keys] = call.reads.map((role) => this._marked(role));
    /** @type {Record<string, string>} */
    const fields = { keys: formatRuns(keys) };
    if (call.kind === "cross") fields.queries = formatRuns(queries);
    const names = (/** @type {{name: string}[]} */ all) => [...all.map(({ name }) => name), REST];
    return { fields, from: names(call.kind === "cross" ? queries : keys), to: names(keys) };
  }

  /** The segments of a text. If there are two texts, an unmarked text counts as one segment. @param {TextRole} role */
  _marked(role) {
    const marked = this.current.value[role];
    if (marked.length || !this.text.crosses) return marked;
    return [{ name: role, runs: [/** @type {Run} */ ([0, this.size(role)])] }];
  }
}

/** The token ranges of segments in the form of a request: 0-40,50-60;60-80. @param {{runs: Run[]}[]} segments */
const formatRuns = (segments) =>
  segments.map(({ runs }) => runs.map((run) => run.join("-")).join(",")).join(";");

/** Sort and merge token ranges. @param {Run[]} runs @returns {Run[]} */
export function merged(runs) {
  /** @type {Run[]} */
  const result = [];
  for (const [a, b] of runs.toSorted(([a], [b]) => a - b)) {
    const last = result.at(-1);
    if (last && a <= last[1]) last[1] = Math.max(last[1], b);
    else if (a < b) result.push([a, b]);
  }
  return result;
}

/** The number of tokens in some ranges. @param {Run[]} runs */
export const count = (runs) => runs.reduce((sum, [a, b]) => sum + b - a, 0);

/** Put each segment into the first lane in which it overlaps no earlier segment. @param {Omit<Segment, "lane">[]} segments @returns {Segment[]} */
function withLanes(segments) {
  /** @type {Run[][]} */
  const lanes = [];
  return segments.map((segment) => {
    const overlaps = (/** @type {Run[]} */ runs) =>
      runs.some(([a, b]) => segment.runs.some(([c, d]) => a < d && c < b));
    const free = lanes.findIndex((runs) => !overlaps(runs));
    const lane = free < 0 ? lanes.length : free;
    lanes[lane] = [...(lanes[lane] ?? []), ...segment.runs];
    return { ...segment, lane };
  });
}

/** Segments that the user has not marked here, with ids below 0 and the colours after those of `others` segments. @param {{name: string, runs: Run[]}[]} segments @param {number} others */
const numbered = (segments, others) =>
  withLanes(
    segments.map((segment, i) => ({ ...segment, id: -1 - i, colour: (i + others) % COLOURS })),
  );

/** Segments as a parameter of the address. @param {Segment[]} segments */
export const toParameter = (segments) =>
  segments.map((part) => `${encodeURIComponent(part.name)}:${formatRuns([part])}`).join(";");

/** Segments from a parameter of the address; invalid parts are ignored. @param {string} text @param {number} size the number of tokens @param {number} [otherCount] the number of segments of the other text */
export function fromParameter(text, size, otherCount = 0) {
  const segments = text.split(";").map((part) => {
    const [name, ranges] = part.split(":");
    const all = (ranges ?? "").split(",").filter((run) => /^\d{1,9}-\d{1,9}$/.test(run));
    const runs = all.map((run) => run.split("-").map((n) => Math.min(size, Number(n))));
    return { name: decoded(name), runs: merged(/** @type {Run[]} */ (runs)) };
  });
  const nonEmpty = segments.filter(({ runs }) => runs.length);
  return numbered(nonEmpty.slice(0, MAX_SEGMENTS), otherCount);
}

/** @param {string} name */
function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}
