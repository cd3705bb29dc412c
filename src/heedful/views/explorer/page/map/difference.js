// The third map: the weights of the second map minus those of the first, on a diverging scale.

/** @import { State } from "../state.js" */
/** @import { Side, Source } from "../types.js" */

/** The difference as a side, with the call and head of the first map. @param {State} state @returns {Side} */
export const differenceSide = (state) => ({
  head: state.head,
  callId: state.callId,
  call: state.call,
  choose: state.choose.bind(state),
  isDifference: true,
});

/** Whether both maps have the same numbers of queries and keys. @param {State} state */
export function canSubtract(state) {
  const [[, N, M], [, n, m]] = state.sides.map((side) => side.call.value.shape);
  return N === n && M === m;
}

/** A source of differences (of means, where a pixel covers several weights), for the questions `tile` and `part`. @param {Source} source @param {State} state @returns {Source} */
export function differenceSource(source, state) {
  return {
    async ask(question, fields = {}, signal = undefined) {
      const { callId, head } = state.sides[1];
      if (question === "tile") fields = { ...fields, reduce: "mean" };
      const place = fields.place?.replace(/^\d+/, String(head.peek()));
      const other = {
        ...fields,
        call: callId.peek(),
        ...(place ? { place } : { head: head.peek() }),
      };
      const [first, second] = await Promise.all(
        [fields, other].map((each) => source.ask(question, each, signal)),
      );
      const name = question === "tile" ? "tile" : "weights";
      const [{ data: from, shape }, { data: to }] = [first[name], second[name]];
      const data = from.map((/** @type {number} */ weight, /** @type {number} */ i) =>
        subtract(to[i], weight),
      );
      const leastExact = [first, second].find(({ word }) => word !== "exact") ?? first;
      const done = Math.min(first.done ?? 1, second.done ?? 1);
      const word = leastExact.word?.startsWith("within") ? "rounded" : leastExact.word;
      return { ...first, ...leastExact, word, done, [name]: { data, shape } };
    },
  };
}

/** Subtract weights; NaN: masked, Infinity: not a number. A weight that only one mask excludes is 0. @param {number} a @param {number} b */
function subtract(a, b) {
  if (a === Infinity || b === Infinity) return Infinity;
  return Number.isNaN(a) && Number.isNaN(b) ? Number.NaN : (a || 0) - (b || 0);
}
