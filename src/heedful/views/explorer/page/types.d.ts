// What the page's parts hand to each other.
import type { ReadonlySignal, Signal } from "./vendor/signals-core.js";

/** A value that tells who reads it. */
export type { ReadonlySignal, Signal };

/** Numbers of an answer, row by row. */
export type Numbers = { data: Float32Array; shape: number[] };

export type Axis = "queries" | "keys";
/** A place of a map, from 0. */
export type Cell = { query: number; key: number };
/** What of a map is in view: its left key, its upper query, pixels a cell; a scale of 0 is all. */
export type View = { x: number; y: number; scale: number };
export type Colours = "linear" | "sqrt" | "log";
export type Reduce = "max" | "mean";

/** One call of attention, as `about` lists it. */
export interface CallAbout {
  /** The module that ran. */
  name: string;
  /** Its place among all calls of its text. */
  at: number;
  layer: number | null;
  index: number;
  pass: number;
  /** "causal", "cross", and the other kinds of masks. */
  kind: string;
  proof: "proved" | "unproved" | "refuted";
  /** How its axes are known. */
  layout: "told" | "verified" | "usual" | "guessed";
  why: string | null;
  /** The model's numbers. */
  heads: number[];
  /** Heads, queries, keys. */
  shape: [number, number, number];
  /** The key at which query 0 stands. */
  first: number;
  /** Whether its tokens have names. */
  named: boolean;
  /** The axes whose tokens are patches of an image. */
  pictured?: Axis[];
  /** Of which text its queries and its keys are; null where they are of neither. */
  reads?: ["source" | "target", "source" | "target"] | null;
  /** Why they are of neither. */
  apart?: string;
}

/** Segments that are marked at first, with the runs of tokens of each, the end not among them. */
export type MarksAbout = { name: string; runs: [number, number][] }[];

/** How a text goes on, by the names of the options of `heedful generate`. */
export type Wishes = {
  tokens?: number;
  temperature?: number;
  top_k?: number;
  top_p?: number;
  repetition_penalty?: number;
  seed?: number | null;
};

/** A text that the model continues. */
export interface Grown {
  recording: number;
  /** How many it has, and began with. */
  tokens: number;
  prompt: number;
  /** The prompt. */
  said: string;
  /** Whether more are being added, and why it ended. */
  runs: boolean;
  why: string;
  /** Whether the model's context has no room for a token more. */
  full: boolean;
  seed: number | null;
  /** Of the tokens that were added. */
  chances: Float32Array;
}

/** One text of a recording. */
export interface TextAbout {
  label: string;
  /** What gives the list of its calls in Python. */
  code: string;
  /** The number of tokens with which a generation began, that is shown as one. */
  prompt: number | null;
  crosses?: boolean;
  marks?: { source?: MarksAbout; target?: MarksAbout };
  calls: CallAbout[];
  /** How many, where it may grow. */
  tokens?: number;
}

export type RecordingAbout = { name: string; missed: Record<string, string>; texts: TextAbout[] };

/** A recording of a model in training: after how many steps, the losses then, and at which step the validation loss was taken. */
export interface Moment {
  recording: number;
  step: number;
  training: number | null;
  validation: number | null;
  validated: number | null;
}

/** All that can be looked at. */
export interface About {
  recordings: RecordingAbout[];
  /** What the scores of heads mean. */
  words?: Record<string, { definition: string; source: string }>;
  /** What records new texts. */
  model?: { name: string; pairs: boolean } | null;
  /** What continues texts. */
  written?: { model: string; wishes: Wishes; says: Record<string, string> } | null;
  /** Where the recordings are of one text, as a model learns. */
  moments?: Moment[];
  /** What a page that is one file has, in words, and how far its weights are from the recording's. */
  file?: { said: string; difference: number };
}

// biome-ignore lint/suspicious/noExplicitAny: each question has words of its own, and so has its answer
type Words = Record<string, any>;

/** An answer: its word ("exact", "sampled", …), how much of the exact one is `done`, 0 to 1, and what was asked for by its name. */
export type Answer = Words & { word?: string; done?: number };

/** Where answers come from: a server, the numbers of a file, the kernel of a notebook. */
export interface Source {
  ask: (question: string, about?: Words, signal?: AbortSignal) => Promise<Answer>;
  /** A new text, or a pair; all that is there then. */
  record?: (texts: string[]) => Promise<About>;
  generation?: GenerationSource;
}

/** Continues a text. */
export interface GenerationSource {
  /** How far it is, or what else could stand at a place. */
  told: (at?: number) => Promise<Answer>;
  /** Begins, stops, goes on or chooses another token. */
  do: (deed: string, words: Words) => Promise<Answer>;
  /** A text's recording, as `heedful.load` opens it. */
  file: (call: string) => Promise<Blob>;
}

/** An answer that follows what is shown; `asked` says what it is the answer to. */
export type Asked = ReadonlySignal<(Answer & { asked?: Words; failed?: string }) | null>;

/** Where the page stands. Without any of it, it is a part of another page, which it leaves alone. */
export interface Host {
  /** Where keys are listened for; the page's own element if left out. */
  keys?: EventTarget;
  /** Whether the wheel zooms wherever the pointer is; else only in a map with the focus. */
  wheel?: boolean;
  /** Keeps what is shown. */
  address?: Address;
  /** What is worn around the page, where that is not the system's. */
  theme?: Theme;
}

export interface Address {
  read: () => string;
  /** A step can be gone back to. */
  write: (text: string, isStep: boolean) => void;
  /** Calls when it was changed; ends that. */
  follow: (changed: () => void) => () => void;
  /** What can be shared. */
  link?: () => string;
}

/** "light" or "dark", and a call when it was changed; `follow` gives what ends that. */
export type Theme = { read: () => string; follow: (changed: () => void) => () => void };

/** One map of the page: which call and head it shows. */
export interface Side {
  /** The model's number. */
  head: ReadonlySignal<number>;
  /** recording.text.call */
  where: ReadonlySignal<string>;
  call: ReadonlySignal<CallAbout>;
  choose: (at: number[], head: number) => void;
}

/** The colours of the page, for what is drawn into a canvas. */
export interface Ink {
  text: string;
  quiet: string;
  ground: string;
  mark: string;
  held: string;
  found: string;
  line: string;
  panel: string;
  segments: string[];
  isDark: boolean;
}
