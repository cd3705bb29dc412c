// Weights times the norm of each key's value, |W[n, m] · v[m]| (Kobayashi et al. 2020).

/** @import { Source } from "../types.js" */

const POOLED = "weights without value norms: zoom in until a pixel shows one weight";

/** A source whose weights are multiplied by value norms. @param {Source} source @returns {Source} */
export function valueWeighted(source) {
  /** @type {Map<string, Promise<Float32Array>>} */
  const cache = new Map();
  const normsOf = (/** @type {string} */ call, /** @type {string} */ head) => {
    const key = `${call} ${head}`;
    const norms =
      cache.get(key) ?? source.ask("norms", { call, head }).then((answer) => answer.norms.data);
    cache.set(key, norms);
    return norms;
  };
  const multiplied = (/** @type {any} */ array, /** @type {(i: number) => number} */ norm) => ({
    ...array,
    data: array.data.map(
      (/** @type {number} */ weight, /** @type {number} */ i) => weight * norm(i),
    ),
  });
  /** @type {Source["ask"]} */
  const ask = async (question, fields = {}, signal = undefined) => {
    const { call, heads, place, keys, at } = fields;
    const several = String(heads ?? "").split(",");
    if (heads !== undefined && several.length > 1) {
      const lines = await Promise.all(
        several.map((each) => ask(question, { ...fields, heads: each }, signal)),
      );
      const mean = lines[0].weights.data.map((/** @type {number} */ _, /** @type {number} */ i) =>
        lines.reduce((sum, { weights }) => sum + weights.data[i] / lines.length, 0),
      );
      return { ...lines[0], weights: { ...lines[0].weights, data: mean } };
    }
    if (question === "strongest")
      throw new Error("This list has weights without value norms: switch the norms off in View.");
    const answer = await source.ask(question, fields, signal);
    const [head, level, , column] = String(place ?? `${heads ?? fields.head},0,0,0`).split(",");
    if (question === "tile" && level !== "0") return { ...answer, note: POOLED };
    if (!["tile", "part", "row", "column"].includes(question)) return answer;
    const norms = await normsOf(call, head);
    const name = question === "tile" ? "tile" : "weights";
    const width = question === "tile" || question === "part" ? answer[name].shape[1] : norms.length;
    const first = question === "part" ? Number(keys.split("-")[0]) : Number(column) * 256;
    const norm = (/** @type {number} */ i) =>
      norms[question === "column" ? at : first + (i % width)];
    const word = answer.word?.startsWith("within") ? "rounded" : answer.word;
    return { ...answer, word, [name]: multiplied(answer[name], norm) };
  };
  return Object.create(source, { ask: { value: ask } });
}
