// Types that the modules of the page share.
import type { ReadonlySignal, Signal } from "./vendor/signals-core.js";

/** A value that notifies its readers when it changes. */
export type { ReadonlySignal, Signal };

/** An array of an answer, in row-major order. */
export type Numbers = { data: Float32Array; shape: number[] };

export type Axis = "queries" | "keys";
/** A cell of a map: indices from 0. */
export type Cell = { query: number; key: number };
/** The visible part of a map: the key at the left edge, the query at the upper edge, and the pixels per cell. Scale 0 shows the full map. */
export type View = { x: number; y: number; scale: number };
/** The scales of weights, and that of differences. */
export type Colours = "linear" | "sqrt" | "log" | "difference";
export type Reduce = "max" | "mean";

/** One call of attention, as the answer `about` lists it. */
export interface CallAbout {
  /** The module that ran. */
  name: string;
  /** The index of the call among all calls of its text. */
  at: number;
  layer: number | null;
  index: number;
  pass: number;
  /** "causal", "cross", and the other kinds of masks. */
  kind: string;
  proof: "proved" | "unproved" | "refuted";
  /** How the meaning of its axes was determined. */
  layout: "told" | "verified" | "usual" | "guessed";
  why: string | null;
  /** The model's head numbers. */
  heads: number[];
  /** Heads, queries, keys. */
  shape: [number, number, number];
  /** The key at the position of query 0. */
  first: number;
  /** Whether its value vectors are known. */
  values: boolean;
  /** Whether the tokens of its keys have names. */
  named: boolean;
  /** The axes whose tokens are patches of an image. */
  pictured?: Axis[];
  /** The text of its queries and of its keys; null if segments do not apply to this call. */
  reads?: ["source" | "target", "source" | "target"] | null;
  /** Why segments do not apply. */
  apart?: string;
}

/** Segments that are marked initially: token ranges [start, end) of each. */
export type MarksAbout = { name: string; runs: [number, number][] }[];

/** Options of `heedful generate`, by their names. */
export type GenerationOptions = {
  tokens?: number;
  temperature?: number;
  top_k?: number;
  top_p?: number;
  repetition_penalty?: number;
  seed?: number | null;
};

/** The state of a text that the model continues. */
export interface GenerationStatus {
  recording: number;
  /** The number of all tokens so far, and of the tokens of the prompt. */
  tokens: number;
  prompt: number;
  /** The text of the prompt. */
  said: string;
  /** Whether tokens are being added; if they are not, why the generation ended. */
  runs: boolean;
  why: string;
  /** Whether the model's context is full. */
  full: boolean;
  seed: number | null;
  /** The probability of each added token. */
  chances: Float32Array;
}

/** One text of a recording. */
export interface TextAbout {
  label: string;
  /** The Python expression for the list of its calls. */
  code: string;
  /** The number of prompt tokens, in a generation that is stitched into one text. */
  prompt: number | null;
  crosses?: boolean;
  marks?: { source?: MarksAbout; target?: MarksAbout };
  calls: CallAbout[];
  /** The number of tokens, if the text can grow. */
  tokens?: number;
}

export type RecordingAbout = {
  name: string;
  missed: Record<string, string>;
  texts: TextAbout[];
  /** The texts that the model read, if they were given in `heedful look` or typed. */
  typed?: string[];
};

/** A recording made during training: its step, the losses, and the step of the validation loss. */
export interface TrainingStep {
  recording: number;
  step: number;
  training: number | null;
  validation: number | null;
  validated: number | null;
}

/** What `heedful ablate` measured for a head: exactly, with a standard error, or to first order. */
export interface AblatedHead {
  module: string;
  head: number;
  delta: number | null;
  error: number | null;
  first_order: number | null;
}

/** The answer `about`: everything that the page can show. */
export interface About {
  recordings: RecordingAbout[];
  /** Definitions of the head scores. */
  words?: Record<string, { definition: string; source: string }>;
  /** The model that records new texts; whether each of its models predicts the next token. */
  model?: { name: string; pairs: boolean; predicts: boolean[] } | null;
  /** A file of `heedful ablate`. */
  ablation?: {
    model: string;
    metric: string;
    kind: string;
    texts: number;
    heads: AblatedHead[];
  } | null;
  /** The model that continues texts, its default options and their help texts. */
  written?: { model: string; wishes: GenerationOptions; says: Record<string, string> } | null;
  /** Recordings of one text at several steps of training. */
  moments?: TrainingStep[];
  /** For a page in one file: which weights the file has, and the largest error of the weights that were compared. */
  file?: { said: string; difference: number };
}

// biome-ignore lint/suspicious/noExplicitAny: the fields differ from question to question, in the answers too
type Fields = Record<string, any>;

/** An answer with its arrays; `word` is its precision ("exact", "sampled", …), `done` the computed fraction of the exact answer. */
export type Answer = Fields & { word?: string; done?: number };

/** Where answers come from: a server, the contents of a file, or the kernel of a notebook. */
export interface Source {
  ask: (question: string, fields?: Fields, signal?: AbortSignal) => Promise<Answer>;
  /** Record a new text or pair; return the new `about`. */
  record?: (texts: string[]) => Promise<About>;
  generation?: GenerationSource;
  /** The page as one file, with a view. */
  page?: (view: string) => Promise<Blob>;
}

/** Continues a text. */
export interface GenerationSource {
  /** The status or, with an index, the alternatives to the token with this index. */
  status: (at?: number) => Promise<Answer>;
  /** Send "begin", "stop", "on" or "choose". */
  send: (action: string, options: Fields) => Promise<Answer>;
  /** A text's recording as a file for `heedful.load`. */
  recordingFile: (call: string) => Promise<Blob>;
}

/** An answer that follows the page's state; `request` holds its question's fields, `failed` an error. */
export type LiveAnswer = ReadonlySignal<(Answer & { request?: Fields; failed?: string }) | null>;

/** The surroundings of the page; every field is optional. */
export interface Host {
  /** Where to listen for keys; default: the page's own element. */
  keys?: EventTarget;
  /** Whether the wheel always zooms a map; otherwise only while the map has the focus. */
  wheel?: boolean;
  /** Stores the state of the page. */
  address?: Address;
  /** The theme around the page; default: the system's. */
  theme?: Theme;
}

export interface Address {
  read: () => string;
  /** Store a view; `isStep` adds an entry to the browser's history. */
  write: (text: string, isStep: boolean) => void;
  /** Call `changed` on every change from outside; return a function that stops this. */
  follow: (changed: () => void) => () => void;
  /** A link to the view, and where it works. */
  link?: () => { address: string; place: string };
}

/** "light" or "dark"; `follow` calls `changed` on every change and returns a function that stops this. */
export type Theme = { read: () => string; follow: (changed: () => void) => () => void };

/** One map of the page: its call and its head. */
export interface Side {
  /** The model's head number. */
  head: ReadonlySignal<number>;
  /** recording.text.call, and the number of tokens if the text can grow. */
  callId: ReadonlySignal<string>;
  call: ReadonlySignal<CallAbout>;
  choose: (path: number[], head: number) => void;
  /** Whether the map shows the second map minus the first. */
  isDifference?: boolean;
}

/** The colours of the page, for drawing into a canvas. */
export interface Ink {
  text: string;
  quiet: string;
  ground: string;
  mark: string;
  highlight: string;
  match: string;
  line: string;
  panel: string;
  segments: string[];
  isDark: boolean;
}
