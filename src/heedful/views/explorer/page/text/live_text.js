// A text that the model continues: sends the user's actions, and updates the page when tokens arrive.
import { setTitles } from "../heads/scores.js";
import { batch, signal } from "../html.js";

/** @import { Painter } from "../map/painter.js" */
/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { About, GenerationOptions, GenerationStatus, Source } from "../types.js" */

const POLL_PAUSE = 40; // milliseconds between two questions, so that the page can draw

export class LiveText {
  /** @param {Source} source @param {State} state @param {Tokens} tokens @param {() => Painter[]} painters of the maps, in order */
  constructor(source, state, tokens, painters) {
    this.source = source;
    this.state = state;
    this.tokens = tokens;
    this.painters = painters;
    this.status = signal(/** @type {GenerationStatus | null} */ (null));
    this.error = signal("");
    this.options = signal(/** @type {GenerationOptions} */ (state.about.written?.wishes ?? {}));
    /** The latest status of each recording. @type {Map<number, GenerationStatus>} */
    this.byRecording = new Map();
    this.ended = false;
    this.isPolling = false;
    if (this.isAvailable) this._follow(source.generation?.status());
  }

  /** Whether this page can continue texts. */
  get isAvailable() {
    return Boolean(this.source.generation && this.state.about.written);
  }

  /** The status of the visible text, if the model continued it. @returns {GenerationStatus | undefined} */
  get visible() {
    this.status.value;
    return this.byRecording.get(this.state.path.value[0]);
  }

  /** Whether the visible text is the text that can be continued. */
  get isLive() {
    return this.status.value?.recording === this.state.path.value[0];
  }

  /** Continue or change the text. @param {"begin" | "on" | "stop" | "choose"} action @param {Record<string, any>} [fields] */
  send(action, fields = {}) {
    const options = { ...this.options.peek(), ...fields };
    return this._follow(this.source.generation?.send(action, options));
  }

  /** Stop asking. */
  end() {
    this.ended = true;
  }

  /** Apply an answer, then poll while the text grows. @param {Promise<any> | undefined} answer */
  async _follow(answer) {
    await this._try(answer);
    if (this.isPolling) return;
    this.isPolling = true;
    while (this.status.peek()?.runs && !this.ended && !this.error.peek()) {
      await new Promise((resolve) => setTimeout(resolve, POLL_PAUSE));
      if (!this.ended) await this._try(this.source.generation?.status());
    }
    this.isPolling = false;
  }

  /** @param {Promise<any> | undefined} answer */
  async _try(answer) {
    try {
      this.error.value = "";
      if (answer) await this._apply(await answer);
    } catch (error) {
      this.error.value = error instanceof Error ? error.message : String(error);
    }
  }

  /** @param {any} answer */
  async _apply(answer) {
    const status = /** @type {GenerationStatus} */ ({ ...answer, chances: answer.chances.data });
    const { recording, tokens } = status;
    const { state } = this;
    const previous = this.status.peek();
    if (isOlder(status, previous)) return;
    const isNew = !state.about.recordings[recording];
    if (isNew) {
      Object.assign(state.about, await this.source.ask("about"));
      setTitles(/** @type {About} */ (state.about));
    } else if (previous && tokens > previous.tokens) await this._prefetch(recording, tokens);
    if (isOlder(status, this.status.peek())) return; // a newer status has arrived meanwhile
    batch(() => {
      this.byRecording.set(recording, status);
      this.status.value = status;
      state.growingRecording.value = status.runs ? recording : null;
      const path = state.path.peek();
      const call = Math.min(path[2], state.callCount(recording) - 1);
      if (isNew || (previous && previous.recording !== recording))
        state.choose([recording, 0, call], state.head.peek());
      state.setTokenCount(recording, tokens);
    });
  }

  /** Prefetch names and tiles of the longer text, so that no row is ever empty. @param {number} recording @param {number} tokens */
  async _prefetch(recording, tokens) {
    const calls = this.state.sides
      .map((side) => side.callId.peek().split(".").slice(0, 3))
      .filter(([number]) => Number(number) === recording);
    const callIds = new Set(calls.map((call) => [...call, tokens].join(".")));
    await Promise.all(
      [...callIds].flatMap((callId) => [
        this.tokens.prefetch(callId, tokens),
        ...this.painters().map((painter) => painter.tiles.prefetch(callId)),
      ]),
    );
  }
}

/** Whether a status is of an earlier text than another status, or of fewer tokens of the same text. @param {GenerationStatus} status @param {GenerationStatus | null} other */
function isOlder(status, other) {
  if (!other || status.recording > other.recording) return false;
  return status.recording < other.recording || status.tokens < other.tokens;
}
