// What the page's parts hand to each other, in words that the types' checker reads.

/**
 * @template T
 * @typedef {import("./vendor/signals-core.js").Signal<T>} Signal a value that tells who reads it
 */

/**
 * @template T
 * @typedef {import("./vendor/signals-core.js").ReadonlySignal<T>} ReadonlySignal
 */

/**
 * Numbers of an answer, row by row.
 * @typedef {{data: Float32Array, shape: number[]}} Numbers
 */

/**
 * One call of attention, as `about` lists it.
 * @typedef {object} CallAbout
 * @property {string} name the module that ran
 * @property {number} at its place among all calls of its text
 * @property {number | null} layer
 * @property {number} index
 * @property {number} pass
 * @property {string} kind "causal", "cross", and the other kinds of masks
 * @property {"proved" | "unproved" | "refuted"} proof
 * @property {"told" | "verified" | "usual" | "guessed"} layout how its axes are known
 * @property {string | null} why
 * @property {number[]} heads the model's numbers
 * @property {[number, number, number]} shape heads, queries, keys
 * @property {number} first the key at which query 0 stands
 * @property {boolean} named whether its tokens have names
 * @property {Axis[]} [pictured] the axes whose tokens are patches of an image
 * @property {["source" | "target", "source" | "target"] | null} [reads] of which text its queries and its keys are; null where they are of neither
 * @property {string} [apart] why they are of neither
 */

/**
 * Segments that are marked at first, with the runs of tokens of each, the end not among them.
 * @typedef {{name: string, runs: [number, number][]}[]} MarksAbout
 */

/**
 * How a text goes on, by the names of the options of `heedful generate`.
 * @typedef {{tokens?: number, temperature?: number, top_k?: number, top_p?: number, repetition_penalty?: number, seed?: number | null}} Wishes
 */

/**
 * A text that the model continues: its recording, how many tokens it has and began with, whether
 * more are being added, why it ended, and the chances of those that were added.
 * @typedef {object} Grown
 * @property {number} recording
 * @property {number} tokens
 * @property {number} prompt
 * @property {string} said the prompt
 * @property {boolean} runs
 * @property {string} why
 * @property {boolean} full whether the model's context has no room for a token more
 * @property {number | null} seed
 * @property {string} command what gives it again
 * @property {Float32Array} chances
 */

/**
 * One text: its code gives the list of its calls in Python; its prompt is the number of tokens with
 * which a generation began, that is shown as one; one that may grow has so many tokens.
 * @typedef {{label: string, code: string, prompt: number | null, crosses?: boolean, marks?: {source?: MarksAbout, target?: MarksAbout}, calls: CallAbout[], tokens?: number}} TextAbout
 */
/** @typedef {{name: string, missed: Record<string, string>, texts: TextAbout[]}} RecordingAbout */

/**
 * All that can be looked at, what the scores of heads mean, and the model that records new texts.
 * @typedef {object} About
 * @property {RecordingAbout[]} recordings
 * @property {Record<string, {definition: string, source: string}>} [words]
 * @property {{name: string, pairs: boolean} | null} [model]
 * @property {{model: string, wishes: Wishes} | null} [written] the model that continues texts
 * @property {Moment[]} [moments] where the recordings are of one text, as a model learns
 * @property {{said: string, difference?: number}} [file] what a page that is one file has, in words
 */

/**
 * A recording of a model in training: after how many steps, the losses then, and at which step the
 * validation loss was taken.
 * @typedef {{recording: number, step: number, training: number | null, validation: number | null, validated: number | null}} Moment
 */

/** @typedef {"queries" | "keys"} Axis */
/** @typedef {{query: number, key: number}} Cell a place of a map, from 0 */

/**
 * What of a map is in view: its left key, its upper query, pixels a cell; a scale of 0 is all.
 * @typedef {{x: number, y: number, scale: number}} View
 */

/** @typedef {"linear" | "sqrt" | "log"} Colours */
/** @typedef {"max" | "mean"} Reduce */

/**
 * An answer: its word ("exact", "sampled", "half precision", …), how much of the exact one is
 * `done`, 0 to 1, and what was asked for by its name.
 * @typedef {{word?: string, done?: number, [name: string]: any}} Answer
 */

/**
 * Where answers come from: a server, the numbers of a file, the kernel of a notebook.
 * @typedef {object} Source
 * @property {(question: string, about?: Record<string, any>, signal?: AbortSignal) => Promise<Answer>} ask
 * @property {(texts: string[]) => Promise<About>} [record] a new text, or a pair; all that is there then
 * @property {GenerationSource} [generation] a text that the model continues
 */

/**
 * Continues a text: `told` how far it is, or what else could stand at a place; `do` begins, stops,
 * goes on or chooses another token; `file` is a text's recording, as `heedful.load` opens it.
 * @typedef {object} GenerationSource
 * @property {(at?: number) => Promise<Answer>} told
 * @property {(deed: string, words: Record<string, any>) => Promise<Answer>} do
 * @property {(call: string) => Promise<Blob>} file
 */

/**
 * An answer that follows what is shown; `asked` says what it is the answer to.
 * @typedef {ReadonlySignal<(Answer & {asked?: Record<string, any>, failed?: string}) | null>} Asked
 */

/**
 * Where the page stands. Without any of it, it is a part of another page, which it leaves alone.
 * @typedef {object} Host
 * @property {EventTarget} [keys] where keys are listened for; the page's own element if left out
 * @property {boolean} [wheel] whether the wheel zooms wherever the pointer is; else only in a map with the focus
 * @property {Address} [address] keeps what is shown
 * @property {Theme} [theme] what is worn around the page, where that is not the system's
 */

/**
 * @typedef {object} Address
 * @property {() => string} read
 * @property {(text: string, isStep: boolean) => void} write a step can be gone back to
 * @property {(changed: () => void) => () => void} follow calls when it was changed; ends that
 * @property {() => string} [link] what can be shared
 */

/** "light" or "dark", and a call when it was changed; `follow` gives what ends that. @typedef {{read: () => string, follow: (changed: () => void) => () => void}} Theme */

/** One map of the page: which call and head it shows. @typedef {object} Side
 * @property {ReadonlySignal<number>} head the model's number
 * @property {ReadonlySignal<string>} where recording.text.call
 * @property {ReadonlySignal<CallAbout>} call
 * @property {(at: number[], head: number) => void} choose
 */

/**
 * The colours of the page, for what is drawn into a canvas.
 * @typedef {object} Ink
 * @property {string} text
 * @property {string} quiet
 * @property {string} ground
 * @property {string} mark
 * @property {string} held
 * @property {string} found
 * @property {string} line
 * @property {string} panel
 * @property {string[]} segments
 * @property {boolean} isDark
 */

export {};
