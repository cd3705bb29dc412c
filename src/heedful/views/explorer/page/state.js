// The state of the page as signals: call, head, view, selected cell, options.
import { batch, computed, signal } from "./html.js";
import { Segments } from "./segments/segments.js";

/** @import { About, Axis, CallAbout, Cell, Colours, Reduce, Side, Signal, View } from "./types.js" */

/** @type {View} */
export const FULL_VIEW = { x: 0, y: 0, scale: 0 };
export const TABS = ["heads", "map", "text", "weight", "segments"];

/**
 * Matches of a token search. `current` is the index in `places` of the selected match, or −1.
 * @typedef {{text: string, axis: Axis, places: Int32Array, count: number, current: number}} Matches
 */

export class State {
  /** @param {About} about the source's answer to `about` */
  constructor(about) {
    this.about = about;
    this.path = signal(firstPath(about)); // recording, text, call
    this.head = signal(0); // the model's head number
    this.view = signal(FULL_VIEW);
    this.cell = signal(/** @type {Cell | null} */ (null));
    this.pinned = signal(false);
    /** The place of the pointer and the cell under it; these change also while a cell is pinned. */
    this.hover = signal(
      /** @type {{cell: Cell, x: number, y: number, side: Side} | null} */ (null),
    );
    /** A row and a column that stay highlighted. */
    this.highlighted = signal(/** @type {{[axis in keyof Cell]: number | null}} */ (NO_HIGHLIGHT));
    this.matches = signal(/** @type {Matches | null} */ (null));
    this.reduce = signal(/** @type {Reduce} */ ("max"));
    this.colours = signal(/** @type {Colours} */ ("sqrt"));
    this.sink = signal(true); // whether the colour scale includes the first key
    this.tab = signal("map"); // the visible pane of a narrow screen
    const isMarked = about.recordings.some(({ texts }) =>
      texts.some(({ marks }) => marks?.source?.length),
    );
    /** The initial pane beside the map: the segment table if segments are marked. */
    this.firstPane = /** @type {"weight" | "segments"} */ (isMarked ? "segments" : "weight");
    this.pane = signal(this.firstPane);
    /** Pixels of the parts beside the map that were resized; 0: collapsed. */
    this.panes = signal(/** @type {Partial<Record<"heads" | "text" | "weight", number>>} */ ({}));
    this.largeHeads = signal(false); // whether the heads also fill the middle of the page
    this.profile = signal(/** @type {"row" | "column"} */ ("row"));
    this.theme = signal(""); // "light", "dark", or "" for the system's theme
    this.hostTheme = signal(""); // the theme around the page
    this.activeTheme = computed(() => this.theme.value || this.hostTheme.value);
    this.notice = signal(""); // a message that disappears after some seconds
    this.sizeVersion = signal(0); // changes when a text has grown
    this.growingRecording = signal(/** @type {number | null} */ (null));
    this.calls = computed(() => this._calls(this.path.value));
    this.callId = computed(() => this.callIdOf(this.path.value));
    this.call = computed(() => this.calls.value[this.path.value[2]]);
    /** A second map beside the first; both pan together. */
    this.second = signal(/** @type {{path: number[], head: number} | null} */ (null));
    this.isValueWeighted = signal(false); // whether weights are multiplied by value norms
    /** Whether the maps show weights times value norms: all of them have values. */
    this.hasValueNorms = computed(
      () => this.isValueWeighted.value && this.sides.every((side) => side.call.value.values),
    );
    /** The starred heads, as call.head of any text. */
    this.stars = signal(/** @type {string[]} */ ([]));
    /** Heads and cells that are taken away, as call.head and call.head.query.key of any text. */
    this.removed = signal(/** @type {string[]} */ ([]));
    this.isSubtracted = signal(false); // whether a third map shows the second minus the first
    /** The map seen before the current one. */
    this.previous = /** @type {{path: number[], head: number} | null} */ (null);
    this.segments = new Segments(this);
    /** @type {Side[]} */
    this.sides = [this, this._secondSide()];
  }

  /** The second map, with the same interface as the first. @returns {Side} */
  _secondSide() {
    const path = computed(() => this.second.value?.path ?? this.path.value);
    return {
      head: computed(() => this.second.value?.head ?? this.head.value),
      callId: computed(() => this.callIdOf(path.value)),
      call: computed(() => this._calls(path.value)[path.value[2]]),
      choose: (path, head) => {
        const call = this._calls(path)[path[2]];
        if (call)
          this.second.value = { path, head: call.heads.includes(head) ? head : call.heads[0] };
      },
    };
  }

  /** The id of a call in requests: recording.text.call, and the number of tokens if the text can grow. @param {number[]} path */
  callIdOf(path) {
    this.sizeVersion.value;
    const tokens = this.about.recordings[path[0]]?.texts[path[1]]?.tokens;
    return [...path, ...(tokens === undefined ? [] : [tokens])].join(".");
  }

  /** The number of calls of a recording's first text. @param {number} recording */
  callCount(recording) {
    return this._calls([recording, 0]).length;
  }

  /** Set the number of tokens of a recording whose text grows. @param {number} recording @param {number} tokens */
  setTokenCount(recording, tokens) {
    const { texts } = this.about.recordings[recording];
    const [about] = texts;
    if (about.tokens === tokens) return;
    const calls = about.calls.map((call) => ({ ...call, shape: grownShape(call, tokens) }));
    texts[0] = { ...about, tokens, calls };
    this.sizeVersion.value++;
  }

  /** @param {number[]} path @returns {CallAbout[]} */
  _calls([recording, text]) {
    this.sizeVersion.value;
    return this.about.recordings[recording]?.texts[text]?.calls ?? [];
  }

  /** Whether a call exists. @param {number[]} path */
  has(path) {
    return path.length === 3 && Boolean(this._calls(path)[path[2]]);
  }

  /** Show a call and a head of the current text. @param {number} call @param {number} head */
  show(call, head) {
    this.choose([...this.path.value.slice(0, 2), call], head);
  }

  /** Show another text or recording. @param {number} recording @param {number} text */
  open(recording, text) {
    const call = Math.min(this.path.value[2], this._calls([recording, text]).length - 1);
    this.choose([recording, text, call], this.head.value);
  }

  /** Show the same head of another recording; keep view and cell if the map has the same shape. @param {number} recording */
  switchRecording(recording) {
    const [, text, call] = this.path.value;
    const path = [recording, text, call];
    const size = String(this.call.value.shape);
    if (this.has(path) && String(this._calls(path)[call].shape) === size) {
      this.previous = { path: this.path.value, head: this.head.value };
      this.path.value = path;
    } else this.choose(path, this.head.value);
  }

  /** Show a call of any text, and a head. @param {number[]} path @param {number} head */
  choose(path, head) {
    if (!this.has(path)) return;
    batch(() => {
      if (String([path, head]) !== String([this.path.value, this.head.value]))
        this.previous = { path: this.path.value, head: this.head.value };
      const previous = this.call.value;
      const isOtherText = String(this.path.value.slice(0, 2)) !== String(path.slice(0, 2));
      this.path.value = path;
      const { heads, shape } = this.call.value;
      this.head.value = heads.includes(head) ? head : heads[0];
      const isResized = String(previous.shape.slice(1)) !== String(shape.slice(1));
      if (isOtherText || isResized) this._resetView();
    });
  }

  /** Reset everything that refers to positions in the previous map. */
  _resetView() {
    this.view.value = FULL_VIEW;
    this.cell.value = null;
    this.pinned.value = false;
    this.hover.value = null;
    this.highlighted.value = NO_HIGHLIGHT;
    this.matches.value = null;
    this.segments.selection.value = null;
  }

  /** Select a cell. @param {Cell} cell @param {boolean} [pinned] */
  selectCell(cell, pinned = this.pinned.value) {
    batch(() => {
      const now = this.cell.value;
      if (now?.query !== cell.query || now?.key !== cell.key) this.cell.value = cell;
      this.pinned.value = pinned;
    });
  }

  /** Open a part of the page: a tab on narrow screens, or the segment pane. @param {string} tab */
  openTab(tab) {
    batch(() => {
      this.tab.value = tab;
      if (tab === "segments") this.pane.value = tab;
    });
  }

  /** Highlight a row or a column, or remove its highlight. @param {"query" | "key"} axis @param {number} index */
  toggleHighlight(axis, index) {
    const now = this.highlighted.value;
    this.highlighted.value = { ...now, [axis]: now[axis] === index ? null : index };
  }

  /** The nearest cell inside the map. @param {Cell} cell @returns {Cell} */
  clamp({ query, key }) {
    const [, N, M] = this.call.value.shape;
    const within = (/** @type {number} */ index, /** @type {number} */ size) =>
      Math.max(0, Math.min(size - 1, index));
    return { query: within(query, N), key: within(key, M) };
  }
}

/** The path of the first call; in the newest recording if texts can grow or training steps were recorded. @param {About} about */
function firstPath({ recordings, written, moments }) {
  const all = [...recordings.entries()]; // the loop skips recordings and texts without calls
  for (const [r, { texts }] of written || moments?.length ? all.reverse() : all)
    for (const [t, { calls }] of texts.entries()) if (calls.length) return [r, t, 0];
  throw new Error("No call of attention was recorded: there is nothing to show.");
}

/** @param {CallAbout} call @param {number} tokens @returns {[number, number, number]} */
function grownShape({ kind, shape: [H, N, M] }, tokens) {
  if (kind === "causal") return [H, tokens, tokens];
  return kind === "cross" ? [H, tokens, M] : [H, N, M];
}

const NO_HIGHLIGHT = { query: null, key: null };
