// What the page shows now, as signals, and as the words of an address.
import { batch, computed, signal } from "../../explorer/page/html.js";

/** @import { Cell, Offered, Stage } from "./types.js" */

const TEXTS = /** @type {const} */ (["text", "memory"]);

export class State {
  /** @param {Offered[]} offered @param {number} first which walk is shown first @param {{text: string, memory: string}} texts */
  constructor(offered, first, texts) {
    this.offered = offered;
    this.first = texts; // they stand in for what is left empty
    this.which = signal(first);
    this.text = signal(texts.text); // what is typed
    this.memory = signal(texts.memory); // the second text of cross-attention
    this.step = signal(0);
    this.head = signal(/** @type {number | null} */ (null));
    this.at = signal(/** @type {{row: number, column: number}} */ ({ row: 1, column: 0 }));
    this.of = signal(/** @type {Stage | null} */ (null)); // the matrix that is pointed at
    this.headOf = signal(/** @type {number | null} */ (null)); // where heads stand side by side
    this.pinned = signal(false);
    this.theme = signal("");
    this.walk = computed(() => {
      const { text, memory } = this;
      return offered[this.which.value].walk(
        text.value.trim() ? text.value : texts.text,
        memory.value.trim() ? memory.value : texts.memory,
      );
    });
    this.shown = computed(() => {
      const { steps } = this.walk.value;
      return steps[Math.min(this.step.value, steps.length - 1)];
    });
    this.ofHead = computed(() => {
      const { heads, head } = this.walk.value;
      return Math.min(this.head.value ?? head, heads - 1);
    });
    this.cell = computed(() => this._cell());
  }

  /** The number that is looked at: of the matrix that is pointed at, else of the step's first. @returns {Cell | null} */
  _cell() {
    const shown = this.shown.value;
    const pointed = this.of.value;
    const stage = pointed && reads(shown.stages).has(pointed) ? pointed : shown.stages[0];
    if (!stage) return null;
    const { row, column } = this.at.value;
    const head = stage === pointed ? (this.headOf.value ?? this.ofHead.value) : this.ofHead.value;
    return { stage, head, row: near(stage.rows, row), column: near(stage.columns, column) };
  }

  /** Look at a number. @param {Stage} stage @param {number} row @param {number} column @param {number | null} [head] */
  point(stage, row, column, head = null) {
    batch(() => {
      this.of.value = stage;
      this.headOf.value = head;
      this.at.value = { row, column };
    });
  }

  /** Another step; the token that is followed stays. @param {number} step */
  go(step) {
    const last = this.walk.value.steps.length - 1;
    batch(() => {
      this.step.value = Math.max(0, Math.min(last, step));
      this.of.value = null;
      this.headOf.value = null;
    });
  }

  /** Another variant, at the step of the same name where it has one. @param {number} which */
  open(which) {
    const { name } = this.shown.value;
    batch(() => {
      this.which.value = which;
      const found = this.walk.value.steps.findIndex((step) => step.name === name);
      this.go(Math.max(0, found));
      this.head.value = null;
    });
  }

  /** As an address. */
  written() {
    /** @type {Record<string, string>} */
    const words = {};
    if (this.offered.length > 1) words.walk = this.offered[this.which.value].label;
    words.step = String(this.step.value + 1);
    for (const one of TEXTS) if (this[one].value !== this.first[one]) words[one] = this[one].value;
    if (this.head.value !== null) words.head = String(this.head.value);
    if (this.pinned.value) {
      const { stage, row, column } = /** @type {Cell} */ (this.cell.value);
      words.cell = `${row},${column}`;
      if (stage !== this.shown.value.stages[0]) words.of = stage.name;
    }
    if (this.theme.value) words.theme = this.theme.value;
    return new URLSearchParams(words).toString();
  }

  /** What an address says; what is not understood is passed over. @param {string} written */
  read(written) {
    const words = new URLSearchParams(written);
    batch(() => {
      const which = this.offered.findIndex((one) => one.label === words.get("walk"));
      if (which >= 0) this.which.value = which;
      for (const one of TEXTS) {
        const text = words.get(one);
        this[one].value = text?.trim() ? text : this.first[one];
      }
      const head = whole(words.get("head"));
      this.head.value = head < this.walk.value.heads ? head : null;
      this.go(this._step(words.get("step")));
      const [row, column] = (words.get("cell") ?? "").split(",").map(whole);
      this.pinned.value = row >= 0 && column >= 0;
      if (this.pinned.value) this.at.value = { row, column };
      const of = [...reads(this.shown.value.stages)].find(
        (stage) => stage.name === words.get("of"),
      );
      this.of.value = of ?? null;
      const theme = words.get("theme") ?? "";
      this.theme.value = ["light", "dark"].includes(theme) ? theme : "";
    });
  }

  /** A step by its number, by the name of one of its stages, or the first answer, "likeliest". @param {string | null} text */
  _step(text) {
    const number = whole(text);
    if (number >= 1) return number - 1;
    const found = this.walk.value.steps.findIndex((step) =>
      step.answer ? text === "likeliest" : step.stages.some((stage) => stage.name === text),
    );
    return Math.max(0, found);
  }
}

/** Some stages, and all that they were made of. @param {Stage[]} stages */
const reads = (stages) => new Set(stages.flatMap((one) => [one, ...one.factors, ...one.sources]));

/** A place that is there: itself, or the last one before it. @param {number[]} there @param {number} at */
const near = (there, at) => there.findLast((one) => one <= at) ?? there[0];

/** A whole number from 0, or NaN. @param {string | null} text */
const whole = (text) => (text !== null && /^\d{1,9}$/.test(text) ? Number(text) : Number.NaN);
