// A text that the model continues: what is done with it, and how the page follows what is added.

import { named } from "../heads/scores.js";
import { batch, signal } from "../html.js";

/** @import { Painter } from "../map/painter.js" */
/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { About, Grown, Source, Wishes } from "../types.js" */

const EVERY = 40; // milliseconds between two questions: the frames between them are for drawing

export class Growing {
  /**
   * @param {Source} source @param {State} state @param {Tokens} tokens
   * @param {() => Painter[]} painters of the maps, the first one first
   */
  constructor(source, state, tokens, painters) {
    this.source = source;
    this.state = state;
    this.tokens = tokens;
    this.painters = painters;
    this.told = signal(/** @type {Grown | null} */ (null));
    this.wrong = signal("");
    this.wishes = signal(/** @type {Wishes} */ (state.about.written?.wishes ?? {}));
    /** The chances of what was added, by the number of the recording. @type {Map<number, Grown>} */
    this.of = new Map();
    this.ended = false;
    this.follows = false; // whether a loop asks already
    if (this.isThere) this._then(this.source.generation?.told());
  }

  /** Whether a text can be continued here. */
  get isThere() {
    return Boolean(this.source.generation && this.state.about.written);
  }

  /** What is known of the text that is shown, if it was continued. @returns {Grown | undefined} */
  get shown() {
    this.told.value;
    return this.of.get(this.state.at.value[0]);
  }

  /** Whether the text that is shown is the one that can go on. */
  get isLive() {
    return this.told.value?.recording === this.state.at.value[0];
  }

  begin(/** @type {string} */ prompt) {
    return this._do("begin", { prompt });
  }

  on() {
    return this._do("on");
  }

  stop() {
    return this._do("stop");
  }

  choose(/** @type {number} */ at, /** @type {number} */ token) {
    return this._do("choose", { at, token });
  }

  /** Ask for nothing more. */
  end() {
    this.ended = true;
  }

  /** @param {string} deed @param {Record<string, any>} [words] */
  _do(deed, words = {}) {
    return this._then(this.source.generation?.do(deed, { ...this.wishes.peek(), ...words }));
  }

  /** Take over what comes; then follow the text as long as it grows. @param {Promise<any> | undefined} coming */
  async _then(coming) {
    await this._try(coming);
    if (this.follows) return;
    this.follows = true;
    while (this.told.peek()?.runs && !this.ended && !this.wrong.peek()) {
      await new Promise((soon) => setTimeout(soon, EVERY));
      if (!this.ended) await this._try(this.source.generation?.told());
    }
    this.follows = false;
  }

  /** @param {Promise<any> | undefined} coming */
  async _try(coming) {
    try {
      this.wrong.value = "";
      if (coming) await this._take(await coming);
    } catch (error) {
      this.wrong.value = error instanceof Error ? error.message : String(error);
    }
  }

  /** @param {any} found */
  async _take(found) {
    const told = /** @type {Grown} */ ({ ...found, chances: found.chances.data });
    const { recording, tokens } = told;
    const { state } = this;
    const before = this.told.peek();
    if (isOlder(told, before)) return; // came late
    const isNew = !state.about.recordings[recording];
    if (isNew) {
      Object.assign(state.about, await this.source.ask("about"));
      named(/** @type {About} */ (state.about));
    } else if (before && tokens > before.tokens) await this._ahead(recording, tokens);
    if (isOlder(told, this.told.peek())) return; // meanwhile a newer one has come
    batch(() => {
      this.of.set(recording, told);
      this.told.value = told;
      state.growing.value = told.runs ? recording : null;
      const here = state.at.peek();
      if (isNew || (before && before.recording !== recording))
        state.choose(
          [recording, 0, Math.min(here[2], state.size(recording) - 1)],
          state.head.peek(),
        );
      state.grow(recording, tokens);
    });
  }

  /** Have ready what is shown of a text before it is longer: no row is ever empty. @param {number} recording @param {number} tokens */
  async _ahead(recording, tokens) {
    const calls = this.state.sides.map((side) => side.where.peek().split(".").slice(0, 3));
    const names = new Set(
      calls.filter(([of]) => Number(of) === recording).map((call) => [...call, tokens].join(".")),
    );
    await Promise.all(
      [...names].flatMap((name) => [
        this.tokens.ahead(name, tokens),
        ...this.painters().map((painter) => painter.tiles.ahead(name)),
      ]),
    );
  }
}

/** Whether one is of a text before the other, or of fewer of its tokens. @param {Grown} one @param {Grown | null} other */
function isOlder(one, other) {
  if (!other || one.recording > other.recording) return false;
  return one.recording < other.recording || one.tokens < other.tokens;
}
