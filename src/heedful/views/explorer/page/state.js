// What the page shows now, as signals.
import { batch, computed, signal } from "./html.js";
import { Segments } from "./segments/segments.js";

/** @import { About, Axis, CallAbout, Cell, Colours, Reduce, Side, Signal, View } from "./types.js" */

/** @type {View} */
export const WHOLE = { x: 0, y: 0, scale: 0 };
export const TABS = ["heads", "map", "text", "weight", "segments"];

/**
 * Tokens that were searched for: the answer's places, of which the one numbered `at` is looked at.
 * @typedef {{text: string, axis: Axis, places: Int32Array, count: number, at: number}} Found
 */

export class State {
  /** @param {About} about what the source tells of its recordings */
  constructor(about) {
    this.about = about;
    this.at = signal(firstOf(about)); // recording, text, call
    this.head = signal(0); // the model's number
    this.view = signal(WHOLE);
    this.cell = signal(/** @type {Cell | null} */ (null));
    this.pinned = signal(false);
    /** The cell under the pointer, and where the pointer is; it moves on while a cell is pinned. */
    this.hover = signal(
      /** @type {{cell: Cell, x: number, y: number, side: Side} | null} */ (null),
    );
    /** A row and a column that stay marked. */
    this.held = signal(/** @type {{query: number | null, key: number | null}} */ (NOTHING_HELD));
    this.found = signal(/** @type {Found | null} */ (null));
    this.reduce = signal(/** @type {Reduce} */ ("max"));
    this.colours = signal(/** @type {Colours} */ ("sqrt"));
    this.sink = signal(true); // whether the first key counts in the colour scale
    this.tab = signal("map"); // the pane of a narrow screen
    const isMarked = about.recordings.some(({ texts }) =>
      texts.some(({ marks }) => marks?.source?.length),
    );
    /** What stands beside the map at first: who asked for segments wants to see their table. */
    this.firstPane = /** @type {"weight" | "segments"} */ (isMarked ? "segments" : "weight");
    this.pane = signal(this.firstPane);
    this.profile = signal(/** @type {"row" | "column"} */ ("row"));
    this.theme = signal(""); // "light", "dark", or as the system wishes
    this.around = signal(""); // what is worn around the page, where a host knows it
    this.worn = computed(() => this.theme.value || this.around.value);
    this.notice = signal(""); // a line that is told once
    this.sized = signal(0); // changes when a text has grown
    this.growing = signal(/** @type {number | null} */ (null)); // the recording that does so now
    this.calls = computed(() => this._calls(this.at.value));
    this.where = computed(() => this.name(this.at.value));
    this.call = computed(() => this.calls.value[this.at.value[2]]);
    /** A second map beside the first, panned together. */
    this.second = signal(/** @type {{at: number[], head: number} | null} */ (null));
    this.segments = new Segments(this);
    /** @type {Side[]} */
    this.sides = [this, this._side()];
  }

  /** The second map as the first one is asked. @returns {Side} */
  _side() {
    const at = computed(() => this.second.value?.at ?? this.at.value);
    return {
      head: computed(() => this.second.value?.head ?? this.head.value),
      where: computed(() => this.name(at.value)),
      call: computed(() => this._calls(at.value)[at.value[2]]),
      choose: (at, head) => {
        const call = this._calls(at)[at[2]];
        if (call)
          this.second.value = { at, head: call.heads.includes(head) ? head : call.heads[0] };
      },
    };
  }

  /** A call as it is asked for; of a text that may grow, with how many tokens it has. @param {number[]} at */
  name(at) {
    this.sized.value;
    const tokens = this.about.recordings[at[0]]?.texts[at[1]]?.tokens;
    return [...at, ...(tokens === undefined ? [] : [tokens])].join(".");
  }

  /** How many calls a recording's first text has. @param {number} recording */
  size(recording) {
    return this._calls([recording, 0]).length;
  }

  /** A text has more tokens now. @param {number} recording @param {number} tokens */
  grow(recording, tokens) {
    const { texts } = this.about.recordings[recording];
    const [before] = texts;
    if (before.tokens === tokens) return;
    const calls = before.calls.map((call) => ({ ...call, shape: grown(call, tokens) }));
    texts[0] = { ...before, tokens, calls };
    this.sized.value++;
  }

  /** @param {number[]} at @returns {CallAbout[]} */
  _calls([recording, text]) {
    this.sized.value;
    return this.about.recordings[recording]?.texts[text]?.calls ?? [];
  }

  /** Whether there is such a call. @param {number[]} at */
  has(at) {
    return at.length === 3 && Boolean(this._calls(at)[at[2]]);
  }

  /** Show a call and a head of the text. @param {number} call @param {number} head */
  show(call, head) {
    this.choose([...this.at.value.slice(0, 2), call], head);
  }

  /** Another text or recording. @param {number} recording @param {number} text */
  open(recording, text) {
    const call = Math.min(this.at.value[2], this._calls([recording, text]).length - 1);
    this.choose([recording, text, call], this.head.value);
  }

  /** The same head of another recording; the same view and cell where its map is as large. @param {number} recording */
  turnTo(recording) {
    const [, text, call] = this.at.value;
    const at = [recording, text, call];
    const size = String(this.call.value.shape);
    if (this.has(at) && String(this._calls(at)[call].shape) === size) this.at.value = at;
    else this.choose(at, this.head.value);
  }

  /** Show a call, of any text, and a head of it. @param {number[]} at @param {number} head */
  choose(at, head) {
    if (!this.has(at)) return;
    batch(() => {
      const before = this.call.value;
      const another = String(this.at.value.slice(0, 2)) !== String(at.slice(0, 2));
      this.at.value = at;
      const { heads, shape } = this.call.value;
      this.head.value = heads.includes(head) ? head : heads[0];
      if (another || String(before.shape.slice(1)) !== String(shape.slice(1))) this._forget();
    });
  }

  /** Let go what belongs to one map's places. */
  _forget() {
    this.view.value = WHOLE;
    this.cell.value = null;
    this.pinned.value = false;
    this.hover.value = null;
    this.held.value = NOTHING_HELD;
    this.found.value = null;
    this.segments.selection.value = null;
  }

  /** Look at a cell. @param {Cell} cell @param {boolean} [pinned] */
  look(cell, pinned = this.pinned.value) {
    batch(() => {
      const now = this.cell.value;
      if (now?.query !== cell.query || now?.key !== cell.key) this.cell.value = cell;
      this.pinned.value = pinned;
    });
  }

  /** Turn to a part of a narrow screen. @param {string} tab */
  turn(tab) {
    batch(() => {
      this.tab.value = tab;
      if (tab === "segments") this.pane.value = tab;
    });
  }

  /** Hold a row or a column, or let it go. @param {"query" | "key"} axis @param {number} at */
  hold(axis, at) {
    const now = this.held.value;
    this.held.value = { ...now, [axis]: now[axis] === at ? null : at };
  }

  /** A cell inside of the map. @param {Cell} cell @returns {Cell} */
  inside({ query, key }) {
    const [, N, M] = this.call.value.shape;
    const within = (/** @type {number} */ at, /** @type {number} */ size) =>
      Math.max(0, Math.min(size - 1, at));
    return { query: within(query, N), key: within(key, M) };
  }
}

/** The first call that there is; of texts that grow, and of a model that learns, the newest's. @param {About} about */
function firstOf({ recordings, written, moments }) {
  const all = [...recordings.entries()]; // a recording may have no call
  for (const [r, { texts }] of written || moments?.length ? all.reverse() : all)
    for (const [t, { calls }] of texts.entries()) if (calls.length) return [r, t, 0];
  throw new Error("No call of attention was recorded: there is nothing to look at.");
}

/** @param {CallAbout} call @param {number} tokens @returns {[number, number, number]} */
function grown({ kind, shape: [H, N, M] }, tokens) {
  if (kind === "causal") return [H, tokens, tokens];
  return kind === "cross" ? [H, tokens, M] : [H, N, M];
}

const NOTHING_HELD = { query: null, key: null };
