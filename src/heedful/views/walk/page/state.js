// The state of the page (walk, step, head, number, theme), as signals and as a query string.

import { batch, computed, signal } from "../../explorer/page/html.js";
import { integer } from "../../explorer/page/number_format.js";

/** @import { Cell, PageWalk, Stage } from "./types.js" */

const TEXTS = /** @type {const} */ (["text", "memory"]);

export class State {
  /** @param {PageWalk[]} walks @param {number} first index of the initial walk @param {{text: string, memory: string}} texts */
  constructor(walks, first, texts) {
    this.walks = walks;
    this.initial = texts; // used while a text box is empty
    this.walkIndex = signal(first);
    this.text = signal(texts.text); // the typed text
    this.memory = signal(texts.memory); // the second text of cross-attention
    this.step = signal(0);
    this.head = signal(/** @type {number | null} */ (null));
    this.position = signal(/** @type {{row: number, column: number} | null} */ (null));
    /** The matrix that was pointed at last, and its head, if heads are side by side. */
    this.pointed = signal(/** @type {{stage: Stage, head: number | null} | null} */ (null));
    this.pinned = signal(false);
    this.temperature = signal(1);
    this.topK = signal(0); // 0: all tokens
    this.theme = signal("");
    this.walk = computed(() => {
      const [text, memory] = TEXTS.map((n) => (this[n].value.trim() ? this[n].value : texts[n]));
      return walks[this.walkIndex.value].walk(text, memory);
    });
    this.currentStep = computed(() => {
      const { steps } = this.walk.value;
      return steps[Math.min(this.step.value, steps.length - 1)];
    });
    this.currentHead = computed(() => {
      const { heads, head } = this.walk.value;
      return Math.min(this.head.value ?? head, heads - 1);
    });
    this.cell = computed(() => this._cell());
  }

  /** The selected number: in the matrix that was pointed at or, if that is not in the step, in the step's first matrix. @returns {Cell | null} */
  _cell() {
    const { stages } = this.currentStep.value;
    const pointed = this.pointed.value;
    const isShown = pointed && withInputs(stages).has(pointed.stage);
    const { stage, head: ownHead } = isShown ? pointed : { stage: stages[0], head: null };
    if (!stage) return null;
    const { row, column } = this.selected();
    const head = ownHead ?? this.currentHead.value;
    return { stage, head, row: nearest(stage.rows, row), column: nearest(stage.columns, column) };
  }

  /** The row and column that are selected. */
  selected() {
    return this.position.value ?? { row: this.walk.value.row ?? 1, column: 0 };
  }

  /** Select a number. @param {Stage} stage @param {number} row @param {number} column @param {number | null} [head] */
  point(stage, row, column, head = null) {
    batch(() => {
      this.pointed.value = { stage, head };
      this.position.value = { row, column };
    });
  }

  /** Select the first number of a row, and keep it selected. @param {Stage} stage @param {number} row */
  pin(stage, row) {
    this.point(stage, row, 0);
    this.pinned.value = true;
  }

  /** Show another step; the selected row and column stay. @param {number} step */
  go(step) {
    const last = this.walk.value.steps.length - 1;
    batch(() => {
      this.step.value = Math.max(0, Math.min(last, step));
      this.pointed.value = null;
    });
  }

  /** Change a typed text; the step stays the same, even if its number changes. @param {"text" | "memory"} name @param {string} text */
  type(name, text) {
    const now = stepKey(this.currentStep.value);
    batch(() => {
      this[name].value = text;
      const step = this.walk.value.steps.findIndex((each) => stepKey(each) === now);
      this.go(step < 0 ? this.step.value : step);
    });
  }

  /** Show another walk, at the step with the current step's name if there is one. @param {number} index */
  open(index) {
    const { name } = this.currentStep.value;
    batch(() => {
      this.walkIndex.value = index;
      const step = this.walk.value.steps.findIndex((each) => each.name === name);
      this.go(Math.max(0, step));
      this.head.value = null;
    });
  }

  /** The state as a query string. */
  address() {
    /** @type {Record<string, string>} */
    const words = {};
    if (this.walks.length > 1) words.walk = this.walks[this.walkIndex.value].label;
    words.step = String(this.step.value + 1);
    for (const n of TEXTS) if (this[n].value !== this.initial[n]) words[n] = this[n].value;
    if (this.head.value !== null) words.head = String(this.head.value);
    if (this.pinned.value) {
      const cell = this.cell.value; // null in a step without matrices
      const { row, column } = cell ?? this.selected();
      words.cell = `${row},${column}`;
      if (cell && cell.stage !== this.currentStep.value.stages[0]) words.of = cell.stage.name;
    }
    if (this.temperature.value !== 1) words.temperature = String(this.temperature.value);
    if (this.topK.value) words.top_k = String(this.topK.value);
    if (this.theme.value) words.theme = this.theme.value;
    return new URLSearchParams(words).toString();
  }

  /** Set the state from a query string; invalid entries are ignored. @param {string} text */
  read(text) {
    const words = new URLSearchParams(text);
    batch(() => {
      const index = this.walks.findIndex(({ label }) => label === words.get("walk"));
      if (index >= 0) this.walkIndex.value = index;
      for (const name of TEXTS) {
        const value = words.get(name);
        this[name].value = value?.trim() ? value : this.initial[name];
      }
      const temperature = Number.parseFloat(words.get("temperature") ?? "1");
      this.temperature.value = temperature >= 0 && temperature <= 2 ? temperature : 1;
      this.topK.value = integer(words.get("top_k")) || 0;
      const head = integer(words.get("head"));
      this.head.value = head < this.walk.value.heads ? head : null;
      this.go(this._step(words.get("step")));
      const [row, column] = (words.get("cell") ?? "").split(",").map(integer);
      this.pinned.value = row >= 0 && column >= 0;
      if (this.pinned.value) this.position.value = { row, column };
      const stages = [...withInputs(this.currentStep.value.stages)];
      const stage = stages.find(({ name }) => name === words.get("of"));
      this.pointed.value = stage ? { stage, head: null } : null;
      const theme = words.get("theme") ?? "";
      this.theme.value = ["light", "dark"].includes(theme) ? theme : "";
    });
  }

  /** Find a step by its number, by the name of a stage, or as "likeliest", the first answer. @param {string | null} text */
  _step(text) {
    const number = integer(text);
    if (number >= 1) return number - 1;
    const index = this.walk.value.steps.findIndex((step) =>
      step.answer ? text === "likeliest" : step.stages.some((stage) => stage.name === text),
    );
    return Math.max(0, index);
  }
}

/** What tells a step from the others, whatever the text. @param {import("./types.js").Step} step */
const stepKey = ({ section, name, answer }) => (answer ? "likeliest" : `${section} ${name}`);

/** The stages and their inputs. @param {Stage[]} stages */
const withInputs = (stages) => new Set(stages.flatMap((s) => [s, ...s.factors, ...s.sources]));

/** The largest stored index up to `index`; if there is none, the first stored index. @param {number[]} stored @param {number} index */
const nearest = (stored, index) => stored.findLast((each) => each <= index) ?? stored[0];
