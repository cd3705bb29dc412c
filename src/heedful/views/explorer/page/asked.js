// A question whose answer follows signals: the newest wins, older ones are abandoned.
import { effect, signal } from "./html.js";

/**
 * @param {any} source
 * @param {() => [string, Record<string, any>] | null} question read from signals
 * @param {number} [pause] milliseconds to wait for the next change
 */
export function asked(source, question, pause = 0) {
  const answer = signal(/** @type {any} */ (null));
  let end = new AbortController();
  let timer = 0;
  effect(() => {
    const now = question();
    end.abort();
    clearTimeout(timer);
    if (!now) {
      answer.value = null;
      return;
    }
    const mine = (end = new AbortController());
    timer = setTimeout(async () => {
      try {
        const found = await source.ask(...now, mine.signal);
        if (!mine.signal.aborted) answer.value = { ...found, asked: now[1] };
      } catch (error) {
        if (!mine.signal.aborted)
          answer.value = { failed: String(/** @type {any} */ (error).message ?? error) };
      }
    }, pause);
  });
  return answer;
}
