// Computes the walk of any text through a small GPT.
import { cutAt, walkOf } from "./computed_walk.js";
import { transposed } from "./operations.js";
import { likeliestIds } from "./sampling.js";
import { steps } from "./stages.js";
import { encoder } from "./tokenizer.js";

/** @import { Answer, Stage, Walk } from "./types.js" */

/** A function that computes the walk of a text. @param {any} data from model_data.py @param {string} initial the text of a walk without tokens @returns {(text: string) => Walk} */
export function modelWalk(data, initial) {
  for (const entry of data.stages) {
    for (const [name, value] of Object.entries(entry.constants))
      if (value?.array) entry.constants[name] = nested(data[value.array]);
    const { columns } = entry.constants;
    if (columns)
      entry.numbers = entry.shape.length > 2 ? columns.map(transposed) : transposed(columns);
  }
  const encode = encoder(data);
  return (text) => {
    const { ids, unknown } = encode(text);
    const all = [...data.prefix, ...(ids.length ? ids : encode(initial).ids)];
    const shown = all.slice(0, data.most);
    const tokens = shown.map((id) => data.pieces[id]);
    const walk = walkOf(data, { tokens, memory: [], ids: shown });
    const { section, sections, heading, pieces } = data;
    const answer = lastAnswer(walk.stages, shown.length - 1, pieces);
    walk.stages.forEach((stage, i) => {
      if (stage.axes[1] === "vocabulary") showLikeliest(stage, answer);
      if (data.stages[i].rule === "block" && stage.sentence) describe(stage, walk.stages[i - 1]);
    });
    const left = unknown.length
      ? `Left out, because the training text lacks them: ${unknown.join(" ")}`
      : "";
    return {
      ...walk,
      cut: [cutAt(data.most, all.length, "tokens"), left],
      steps: steps(walk.stages, section, sections, [answer], heading, tokens),
    };
  };
}

/** An array as nested lists of numbers. @param {{data: Float32Array, shape: number[]}} array @returns {any} */
function nested({ data, shape: [size, ...inner] }) {
  if (!inner.length) return Array.from(data);
  const step = data.length / size;
  return Array.from({ length: size }, (_, i) =>
    nested({ data: data.subarray(i * step, (i + 1) * step), shape: inner }),
  );
}

/** The likeliest tokens after the last token, computed when they are first used. @param {Stage[]} stages @param {number} place @param {string[]} names @returns {Answer} */
function lastAnswer(stages, place, names) {
  const stage = stages.find(({ axes, factors }) => axes[1] === "vocabulary" && factors.length);
  /** @type {number[] | undefined} */
  let logits;
  const sampled = (/** @type {import("./sampling.js").Sampling} */ sampling) => {
    logits ??= names.map((_, id) => stage?.at(0, place, id) ?? Number.NaN);
    return likeliestIds(logits, sampling).map((likely) => ({ ...likely, token: names[likely.id] }));
  };
  return {
    place,
    sampled,
    get likeliest() {
      return sampled({ temperature: 1, topK: 0 });
    },
  };
}

/** Show the columns of the likeliest tokens. @param {Stage} stage @param {Answer} answer */
function showLikeliest(stage, answer) {
  const get = (/** @type {"id" | "token"} */ name) => ({
    get: () => answer.likeliest.map((likely) => likely[name]),
  });
  Object.defineProperties(stage, { columns: get("id"), names: get("token") });
}

/** Let the sentence of a block state by how much this block changes the vectors. @param {Stage} stage @param {Stage} before */
function describe(stage, before) {
  const text = stage.sentence;
  const get = () => {
    const shares = stage.rows.map((n) => {
      const [from, to] = [before, stage].map((part) => part.columns.map((d) => part.at(0, n, d)));
      return Math.hypot(...to.map((x, d) => x - from[d])) / Math.max(Math.hypot(...from), 1e-12);
    });
    const mean = shares.reduce((sum, share) => sum + share, 0) / shares.length;
    return text.replace(/\d+\.\d+/, mean.toFixed(2));
  };
  Object.defineProperty(stage, "sentence", { get });
}
