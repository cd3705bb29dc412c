// Heads and cells that are taken away, and what the model predicts without them.
import { integer } from "../number_format.js";
import { liveAnswer } from "../request.js";

/** @import { State } from "../state.js" */
/** @import { CallAbout, LiveAnswer, Source } from "../types.js" */
/** @typedef {{id: string, call: number, about: CallAbout, head: number, query?: number, key?: number}} Part a head, or a cell if it has a query */

/** The id of the selected head or, with `cell`, of the selected cell of this head. @param {State} state @param {{query: number, key: number} | null} [cell] */
export const idOf = ({ path, head }, cell) =>
  [path.value[2], head.value, ...(cell ? [cell.query, cell.key] : [])].join(".");

/** Take a part away, or put it back. @param {State} state @param {string} id */
export const toggle = ({ removed }, id) =>
  (removed.value = removed.value.includes(id)
    ? removed.value.filter((other) => other !== id)
    : [...removed.value, id]);

/** Whether the model of the current text predicts the next token; undefined without a model. @param {State} state */
export const predicts = ({ about, path }) =>
  about.model?.predicts[path.value[0] % about.model.predicts.length];

/** The parts that are taken away, of those that the current text has. @param {State} state @returns {Part[]} */
export function removedParts(state) {
  if (!predicts(state)) return [];
  return state.removed.value.flatMap((id) => {
    const [call, head, query, key] = id.split(".").map(integer);
    const about = state.calls.value[call];
    const [, N, M] = about?.shape ?? [0, 0, 0];
    if (!about?.heads.includes(head) || query >= N || key >= M) return [];
    return [{ id, call, about, head, query, key }];
  });
}

/** The answer to what the model predicts without the parts, after the selected or else the last query. @param {State} state @param {Source} source @returns {LiveAnswer & {end: () => void}} */
export const withoutParts = (state, source) =>
  liveAnswer(
    source,
    () => {
      const removed = removedParts(state).map(({ id }) => id);
      if (!removed.length || state.growingRecording.value === state.path.value[0]) return null;
      const at = state.cell.value?.query ?? state.call.value.shape[1] - 1;
      return ["without", { call: state.callId.value, removed: removed.join(","), at }];
    },
    60,
  );

/** The change in the loss of each token, NaN for the first; null without an answer about the current text. @param {State} state @param {LiveAnswer} answer @returns {Float32Array | null} */
export function lossChanges({ path }, { value }) {
  const isCurrent = value?.request?.call.startsWith(`${path.value[0]}.${path.value[1]}.`);
  if (!value?.losses || !isCurrent) return null;
  const { losses, without } = value;
  return Float32Array.of(
    Number.NaN,
    ...without.data.map(
      (/** @type {number} */ loss, /** @type {number} */ i) => loss - losses.data[i],
    ),
  );
}
