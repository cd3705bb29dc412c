// What holds for all stages: the sums behind a number, and which stages are shown together.

/** @import { Answer, Stage, Step, Walk } from "./types.js" */

/** Which of its own heads a stage gives to one of the query heads. @param {Stage} stage */
export const own = (stage, /** @type {number} */ head, /** @type {number} */ heads) =>
  stage.shape.length < 3 ? 0 : Math.floor((head * stage.shape[0]) / heads);

/** Whether a number for each pair of tokens: then the second factor's rows are what is multiplied. @param {Stage} stage */
export const pairs = (stage) => stage.axes[1] === "tokens" || stage.axes[1] === "memory";

/**
 * The products whose sum a number is, as far as they are there, and how many are not.
 * @param {Stage} stage @param {number} head @param {number} row @param {number} column
 */
export function terms(stage, head, row, column) {
  const [left, right] = stage.factors;
  const there = new Set(pairs(stage) ? right.columns : right.rows);
  const places = left.columns.filter((k) => there.has(k));
  const found = places.map((k) => ({
    place: k,
    left: left.at(head, row, k),
    right: pairs(stage) ? right.at(head, column, k) : right.at(head, k, column),
  }));
  return { found, missing: left.shape[left.shape.length - 1] - found.length };
}

/**
 * The steps of a walk: stages of one step together, those of a brief section too; then answers.
 * @param {Stage[]} stages @param {(number | null)[]} section of each
 * @param {{title: string, brief: boolean}[]} sections @param {Answer[]} answers
 * @param {string} asked @param {string[]} tokens
 * @returns {Step[]}
 */
export function steps(stages, section, sections, answers, asked, tokens) {
  /** @type {Step[]} */
  const found = [];
  const several = sections.length > 1;
  stages.forEach((stage, i) => {
    const at = section[i];
    if (at === null || at === undefined) return; // read by others, and of no section itself
    const { title, brief } = sections[at];
    const last = found[found.length - 1];
    const together = i > 0 && section[i - 1] === at && last;
    if (together && (brief || (stage.step && stage.step === last.stages[0].step)))
      last.stages.push(stage);
    else found.push({ name: "", section: several ? title : "", stages: [stage], brief });
  });
  for (const step of found)
    step.name = step.brief ? step.section : step.stages.map((stage) => stage.name).join(", ");
  for (const answer of answers.length > 3 ? answers.slice(-1) : answers)
    found.push({
      name: `likeliest ${asked} ${tokens[answer.place]}`,
      section: several ? sections[sections.length - 1].title : "",
      stages: [],
      brief: false,
      answer,
    });
  return found;
}

/** What of some stages, and of those they were made of, is not in the file. @param {Stage[]} stages */
export function missing(stages) {
  /** @type {Map<string, Set<string>>} what is there, and of which stages that holds */
  const found = new Map();
  for (const stage of stages.flatMap((one) => [one, ...one.factors, ...one.sources])) {
    const there = partly(stage);
    if (there) found.set(there, (found.get(there) ?? new Set()).add(stage.name));
  }
  return [...found].map(([there, names]) => `Of ${[...names].join(", ")} this file has ${there}.`);
}

/** What of a stage is there, in words; "" where all is. @param {Stage} stage */
function partly(stage) {
  const [high, wide] = stage.shape.slice(-2);
  const said = [];
  if (stage.rows.length < high) said.push(kept("rows", stage.rows, high));
  if (stage.axes[1] === "vocabulary" && stage.columns.length < wide)
    said.push(`the ${stage.columns.length} likeliest of ${wide.toLocaleString("en")} tokens`);
  else if (stage.columns.length < wide) said.push(kept("columns", stage.columns, wide));
  return said.join(" and ");
}

/** @param {string} what @param {number[]} there @param {number} size */
function kept(what, there, size) {
  const gap = there.findIndex((at, i) => at !== i);
  const [first, last] = gap < 0 ? [there.length, 0] : [gap, there.length - gap];
  return `the first ${first}${last ? ` and the last ${last}` : ""} of ${size.toLocaleString("en")} ${what}`;
}

/** What stands along an axis of a stage, for each place; "" where numbers have no names.
 * @param {Walk} walk @param {Stage} stage @param {0 | 1} axis @param {number} at */
export function label(walk, stage, axis, at) {
  const kind = stage.axes[axis];
  if (kind === "tokens") return walk.tokens[at] ?? "";
  if (kind === "memory") return walk.memory[at] ?? "";
  if (kind === "vocabulary") return stage.names?.[stage.columns.indexOf(at)] ?? "";
  return "";
}
