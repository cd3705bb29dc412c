// A question whose answer follows signals: the newest wins, older ones are abandoned.
import { effect, signal } from "./html.js";

/** @import { Answer, Asked, Source } from "./types.js" */

const AGAIN = 700; // milliseconds until a sampled answer is asked for again

/**
 * Ask, and again until the answer is the last one; a sampled one is told meanwhile.
 * @param {Source} source @param {[string, Record<string, any>]} question @param {AbortSignal} signal
 * @param {(answer: Answer) => void} told not called once the signal is aborted
 */
export async function untilExact(source, [name, about], signal, told) {
  for (let done = 0; done < 1; ) {
    const found = await source.ask(name, about, signal);
    if (signal.aborted) return;
    told(found);
    done = found.done ?? 1;
    if (done < 1) await new Promise((soon) => setTimeout(soon, AGAIN));
    if (signal.aborted) return;
  }
}

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
        await untilExact(source, now, mine.signal, (found) => {
          answer.value = { ...found, asked: now[1] };
        });
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
