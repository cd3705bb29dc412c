// Questions to the source that depend on signals. A newer question aborts the older question.
import { effect, signal } from "./html.js";

/** @import { Answer, LiveAnswer, Source } from "./types.js" */

const POLL_PAUSE = 700; // milliseconds before a sampled answer is requested again

/**
 * Repeat a question until its answer is exact; report every answer, including sampled answers.
 * @param {Source} source @param {[string, Record<string, any>]} question @param {AbortSignal} signal
 * @param {(answer: Answer) => void} report not called after the signal is aborted
 */
export async function untilExact(source, [name, about], signal, report) {
  for (let done = 0; done < 1; ) {
    const answer = await source.ask(name, about, signal);
    if (signal.aborted) return;
    report(answer);
    done = answer.done ?? 1;
    if (done < 1) await new Promise((soon) => setTimeout(soon, POLL_PAUSE));
    if (signal.aborted) return;
  }
}

/**
 * The answer to a question that depends on signals, as a signal. @param {Source} source
 * @param {() => [string, Record<string, any>] | null} question computed from signals; null: no question
 * @param {number} [pause] milliseconds to wait for further changes
 * @returns {LiveAnswer & {end: () => void}} `end` stops following the signals
 */
export function liveAnswer(source, question, pause = 0) {
  const answer = signal(/** @type {any} */ (null));
  let current = new AbortController();
  let timer = 0;
  let previousText = "";
  const stop = effect(() => {
    const now = question();
    const text = JSON.stringify(now);
    if (text === previousText) return;
    previousText = text;
    current.abort();
    clearTimeout(timer);
    if (!now) {
      answer.value = null;
      return;
    }
    const controller = new AbortController();
    current = controller;
    timer = setTimeout(async () => {
      try {
        await untilExact(source, now, controller.signal, (latest) => {
          answer.value = { ...latest, request: now[1] };
        });
      } catch (error) {
        if (!controller.signal.aborted)
          answer.value = {
            failed: String(/** @type {any} */ (error).message ?? error),
            request: now[1],
          };
      }
    }, pause);
  });
  const close = () => {
    stop();
    current.abort();
    clearTimeout(timer);
  };
  return Object.assign(answer, { end: close });
}
