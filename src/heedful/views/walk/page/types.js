// What the walk's parts hand to each other.

/**
 * How a number comes about: a text with a place, {}, for each number; `whole` of them are places.
 * @typedef {{text: string, numbers: number[], whole: number[]}} Formula
 */

/** @typedef {"tokens" | "memory" | "vocabulary" | "id" | "width"} Axis */

/**
 * One step of a model, as the library's own stage: its words, and any number that is there.
 * @typedef {object} Stage
 * @property {string} name
 * @property {number[]} shape rows and columns, before them the heads where it has some
 * @property {string} kind what it is, whatever it is called: "weights", "masked", "key", …
 * @property {string} formula
 * @property {string} sentence
 * @property {[Axis, Axis]} axes what stands along rows and columns
 * @property {number[][]} chain the shapes through which it came
 * @property {string} step stages of one step belong together
 * @property {Stage[]} factors the two that were multiplied
 * @property {Stage[]} sources what else it was made of
 * @property {string} reads what of the sources a number reads: "number", "row", "pair", "head"
 * @property {number[]} rows those that are there
 * @property {number[]} columns
 * @property {string[] | null} names of the columns of a vocabulary
 * @property {(head: number, row: number, column: number) => number} at NaN where it is not there
 * @property {(head: number, column: number) => number | null} bias
 * @property {(head: number, row: number, column: number) => Formula | null} how
 */

/** @typedef {{token: string, id: number, probability: number}} Likely */
/** @typedef {{place: number, likeliest: Likely[]}} Answer */

/**
 * Stages that are shown together; the last steps of a model are its answers.
 * @typedef {object} Step
 * @property {string} name
 * @property {string} section "" where there is one
 * @property {Stage[]} stages
 * @property {boolean} brief each stage is a whole block
 * @property {Answer} [answer]
 */

/**
 * @typedef {object} Walk
 * @property {string} title
 * @property {string[]} notes
 * @property {string[]} tokens
 * @property {string[]} memory
 * @property {number} heads
 * @property {number} head
 * @property {number} layers
 * @property {number} layer
 * @property {string} asked
 * @property {string} missing
 * @property {number} vocabulary how many tokens there are
 * @property {Stage[]} stages
 * @property {Step[]} steps
 * @property {[number, number]} beyond words that were typed and are too many, of each text
 */

/**
 * What the page has: walks that are there, and variants that it computes on what is typed.
 * @typedef {{label: string, typed: boolean, walk: (text: string, memory: string) => Walk}} Offered
 */

/** A number of a stage, as one head has it. @typedef {{stage: Stage, head: number, row: number, column: number}} Cell */

export {};
