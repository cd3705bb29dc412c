// Types that the modules of the walk's page share.

/** How a number is computed: a text with {} for each number. `whole` has the indices of the numbers that are integers. @typedef {{text: string, numbers: number[], whole: number[]}} Formula */

/** @import { Sampling } from "./sampling.js" */

/** @typedef {"tokens" | "memory" | "vocabulary" | "id" | "width"} Axis */

/**
 * A stage of a step, as in heedful.explain: its texts, and access to its stored numbers.
 * @typedef {object} Stage
 * @property {string} name
 * @property {number[]} shape [rows, columns], or [heads, rows, columns]
 * @property {string} kind "weights", "masked", "key", …, independent of the name
 * @property {string} formula
 * @property {string} sentence
 * @property {[Axis, Axis]} axes the kinds of the rows and the columns
 * @property {number[][]} chain the shapes of the reshaped tensors, in order
 * @property {string} step stages with the same step are shown together
 * @property {Stage[]} factors the two factors, if it is a product
 * @property {Stage[]} sources the stages that it is computed from, if it is not a product
 * @property {string} reads the part of a source that each number depends on: "number", "row", "pair", "head"
 * @property {number[]} rows indices of the stored rows
 * @property {number[]} columns indices of the stored columns
 * @property {string[] | null} names tokens of the stored columns, if these are a vocabulary
 * @property {(head: number, row: number, column: number) => number} at NaN if it is not stored
 * @property {(head: number, column: number) => number | null} bias
 * @property {(head: number, row: number, column: number) => Formula | null} how
 */

/** @typedef {{token: string, id: number, probability: number}} Likely */
/** An answer; `sampled` if the page computes the model. @typedef {{place: number, likeliest: Likely[], sampled?: (sampling: Sampling) => Likely[]}} Answer */

/**
 * Stages that are shown together, or an answer of the model.
 * @typedef {object} Step
 * @property {string} name
 * @property {string} section the title of its section; "" if the walk has a single section
 * @property {Stage[]} stages
 * @property {boolean} brief whether each stage summarises a transformer block
 * @property {Answer} [answer]
 * @property {Stage} [plane] the stage whose inputs are drawn on a plane
 */

/**
 * @typedef {object} Walk
 * @property {string} title
 * @property {string[]} notes
 * @property {string[]} tokens
 * @property {string[]} memory
 * @property {number} heads
 * @property {number} head
 * @property {number} [row] the row that is selected at first; default 1
 * @property {string} missing
 * @property {number} vocabulary number of tokens
 * @property {Stage[]} stages
 * @property {Step[]} steps
 * @property {string[]} cut sentences about parts of a typed text that are omitted
 */

/** A walk to choose: stored as numbers or, if `typed`, computed from the typed texts. @typedef {{label: string, typed: boolean, walk: (text: string, memory: string) => Walk}} PageWalk */

/** The position of a number in a stage. @typedef {{stage: Stage, head: number, row: number, column: number}} Cell */

export {};
