// Functions on stages: the terms of a number, the grouping into steps, labels and omissions.

/** @import { Answer, Stage, Step, Walk } from "./types.js" */

const MOST = 40; // tokens in a plane

/** @param {number} size */
export const range = (size) => Array.from({ length: size }, (_, n) => n);

/** Set the inputs of each stage, which an entry names by indices. @param {Stage[]} stages @param {{factors: number[], sources: number[]}[]} entries */
export function connect(stages, entries) {
  entries.forEach(({ factors, sources }, i) => {
    stages[i].factors = factors.map((index) => stages[index]);
    stages[i].sources = sources.map((index) => stages[index]);
  });
}

/** For a query head: the index, in a stage, of the head that it uses. @param {{shape: number[]}} stage */
export const headIndex = (stage, /** @type {number} */ head, /** @type {number} */ heads) =>
  stage.shape.length < 3 ? 0 : Math.floor((head * stage.shape[0]) / heads);

/** Whether each number belongs to a pair of tokens; a product is then left · rightᵀ. @param {Stage} stage */
export const hasPairs = (stage) => stage.axes[1] === "tokens" || stage.axes[1] === "memory";

/** For a number that is a sum of products: the stored pairs of factors, and the number of other pairs. @param {Stage} stage @param {number} head @param {number} row @param {number} column */
export function terms(stage, head, row, column) {
  const [left, right] = stage.factors;
  const indices = new Set(hasPairs(stage) ? right.columns : right.rows);
  const stored = left.columns
    .filter((k) => indices.has(k))
    .map((k) => ({
      left: left.at(head, row, k),
      right: hasPairs(stage) ? right.at(head, column, k) : right.at(head, k, column),
    }));
  return { stored, missing: left.shape[left.shape.length - 1] - stored.length };
}

/**
 * The steps of a walk: one per `step` value of the stages or per brief section, then the answers.
 * @param {Stage[]} stages @param {(number | null)[]} section index of each stage's section
 * @param {{title: string, brief: boolean}[]} sections @param {Answer[]} answers
 * @param {string} heading such as "tokens after" @param {string[]} tokens
 * @returns {Step[]}
 */
export function steps(stages, section, sections, answers, heading, tokens) {
  /** @type {Step[]} */
  const list = [];
  const several = sections.length > 1;
  stages.forEach((stage, i) => {
    const index = section[i];
    if (index === null || index === undefined) return; // only an input of other stages
    const { title, brief } = sections[index];
    const last = list[list.length - 1];
    const isSameSection = i > 0 && section[i - 1] === index && last;
    if (isSameSection && (brief || (stage.step && stage.step === last.stages[0].step)))
      last.stages.push(stage);
    else list.push({ name: "", section: several ? title : "", stages: [stage], brief });
  });
  for (const stage of stages)
    if (planeInputs(stage).length) {
      const place = list.findIndex((step) => step.stages.includes(stage));
      if (place < 0) continue; // of a block without own steps
      const name = stage.kind === "weights" ? "a query among the keys" : "a moved token";
      list.splice(place + 1, 0, { ...list[place], name, stages: [], plane: stage });
    }
  for (const step of list.filter(({ plane }) => !plane))
    step.name = step.brief ? step.section : step.stages.map((stage) => stage.name).join(", ");
  for (const answer of answers.length > 3 ? answers.slice(-1) : answers)
    list.push({
      name: `likeliest ${heading} ${distinct(tokens, answer.place)}`,
      section: several ? sections[sections.length - 1].title : "",
      stages: [],
      brief: false,
      answer,
    });
  return list;
}

/** The inputs of a stage's plane: of weights, also query and key; of a residual sum, the weights, the
 * values, the output weights and the input. Empty if there is no plane, or if not all is stored.
 * @param {Stage} stage @returns {Stage[]} */
export function planeInputs(stage) {
  let scores = stage;
  while (scores.kind !== "scores" && scores.sources.length) scores = scores.sources[0];
  const [output, input] = stage.sources;
  const [context, matrix] = stage.kind === "sum" ? output.factors : [];
  const isMove = context?.factors[0]?.kind === "weights";
  const all = isMove ? [...context.factors, matrix, input] : [stage, ...scores.factors];
  if (!(isMove || stage.kind === "weights") || all[1] === all[2]) return [];
  const isStored = all.every(({ rows, columns, shape }) => {
    return rows.length === shape.at(-2) && columns.length === shape.at(-1);
  });
  return isStored && all[0].columns.length <= MOST ? all : [];
}

/** Sentences about stages and inputs of which the page shows only a part. @param {Stage[]} stages */
export function omissions(stages) {
  /** @type {Map<string, Set<string>>} names of stages, by the part that is stored */
  const parts = new Map();
  for (const stage of stages.flatMap((each) => [each, ...each.factors, ...each.sources])) {
    const part = storedPart(stage);
    if (part) parts.set(part, (parts.get(part) ?? new Set()).add(stage.name));
  }
  return [...parts].map(([part, names]) => `Of ${[...names].join(", ")}, the page shows ${part}.`);
}

/** The stored part of a stage in words; "" if all of it is stored. @param {Stage} stage */
function storedPart(stage) {
  const [high, wide] = stage.shape.slice(-2);
  const parts = [];
  if (stage.rows.length < high) parts.push(ends("rows", stage.rows, high));
  if (stage.axes[1] === "vocabulary" && stage.columns.length < wide)
    parts.push(`the ${stage.columns.length} likeliest of ${wide.toLocaleString("en")} tokens`);
  else if (stage.columns.length < wide) parts.push(ends("columns", stage.columns, wide));
  return parts.join(" and ");
}

/** @param {string} name @param {number[]} indices @param {number} size */
function ends(name, indices, size) {
  const gap = indices.findIndex((index, i) => index !== i);
  const [first, last] = gap < 0 ? [indices.length, 0] : [gap, indices.length - gap];
  return `the first ${first}${last ? ` and the last ${last}` : ""} of ${size.toLocaleString("en")} ${name}`;
}

/** A token, with its position if it occurs several times. @param {string[]} tokens @param {number} i */
export function distinct(tokens, i) {
  const isRepeated = tokens.indexOf(tokens[i]) !== tokens.lastIndexOf(tokens[i]);
  const position = isRepeated ? [...String(i)].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[Number(digit)]) : [];
  return (tokens[i] ?? "") + position.join("");
}

/** The token of a row or column; "" if there is none.
 * @param {Walk} walk @param {Stage} stage @param {0 | 1} axis @param {number} index */
export function label(walk, stage, axis, index) {
  const kind = stage.axes[axis];
  if (kind === "tokens" || kind === "memory") return distinct(walk[kind], index);
  if (kind === "vocabulary") return stage.names?.[stage.columns.indexOf(index)] ?? "";
  return "";
}
