// A question whose answer follows signals: the newest wins, older ones are abandoned.
import { effect, signal } from "./html.js";

/** @import { Asked, Source } from "./types.js" */

/**
 * @param {Source} source
 * @param {() => [string, Record<string, any>] | null} question read from signals
 * @param {number} [pause] milliseconds to wait for the next change
 * @returns {Asked & {end: () => void}} `end` asks nothing more
 */
export function asked(source, question, pause = 0) {
  const answer = signal(/** @type {any} */ (null));
  let end = new AbortController();
  let timer = 0;
  let before = "";
  const stop = effect(() => {
    const now = question();
    const said = JSON.stringify(now);
    if (said === before) return;
    before = said;
    end.abort();
    clearTimeout(timer);
    if (!now) {
      answer.value = null;
      return;
    }
    const mine = new AbortController();
    end = mine;
    timer = setTimeout(async () => {
      try {
        const found = await source.ask(...now, mine.signal);
        if (!mine.signal.aborted) answer.value = { ...found, asked: now[1] };
      } catch (error) {
        if (!mine.signal.aborted)
          answer.value = {
            failed: String(/** @type {any} */ (error).message ?? error),
            asked: now[1],
          };
      }
    }, pause);
  });
  const close = () => {
    stop();
    end.abort();
    clearTimeout(timer);
  };
  return Object.assign(answer, { end: close });
}
