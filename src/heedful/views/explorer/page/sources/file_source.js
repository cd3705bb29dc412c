// The page as one file: every question is answered from what the file brought with it, in the words
// and shapes of handlers.py. Weights are computed by a worker; heads without query and key have
// their pictures and scores alone, and say so.
import { mount } from "../app.js";
import { alone, framed } from "../host.js";
import { inflated, parts } from "../wire.js";
import { sharesOf } from "./file_segments.js";
import { Computing } from "./worker_client.js";

const SIDE = 256; // pixels of a tile
const PART = 1 << 20; // cells in one answer
const TOKENS = 4096; // in one answer
const lacking = (/** @type {string} */ what) =>
  new Error(
    `This page has no query and key for ${what}: look at the recording itself, or make the page with a larger --limit.`,
  );

/** A text as casefold has it, near enough: ß is ss, ς is σ. @param {string} text */
const folded = (text) =>
  text.toUpperCase().toLowerCase().replaceAll("ς", "σ").replaceAll("ß", "ss");

const numbers = (text) => String(text).split(",").map(Number);

/** A range such as 0-7. */
const range = (text) => String(text).split("-").map(Number);

const QUESTIONS =
  "tokens find image small scores tile row column part cell strongest segments".split(" ");

class File {
  /** @param {Record<string, any>} parts */
  constructor(parts) {
    this.parts = parts;
    /** @type {Promise<Computing> | null} */
    this.computing = null;
    const { difference } = parts.about.file;
    /** The word for what is computed. */
    this.word = difference ? `within ${short(difference)}` : "exact";
  }

  /**
   * What the library is asked.
   * @param {string} question
   * @param {Record<string, any>} words
   * @param {AbortSignal} [signal]
   */
  async ask(question, words = {}, signal = undefined) {
    if (question === "about") return this.parts.about;
    if (!QUESTIONS.includes(question))
      throw new Error("A file cannot do this; the page that `heedful look` opens can.");
    return this[question](this._call(words.call), words, signal);
  }

  /** What is known of a call. @param {string} id recording.text.call */
  _call(id) {
    const [r, t, c] = id.split(".").map(Number);
    const about = this.parts.about.recordings[r]?.texts[t]?.calls[c];
    if (!about) throw new Error(`no call ${id} in this file`);
    return { id, about, part: this.parts[`call ${id}`] };
  }

  /** What there is of the weights of a call. */
  _measured({ part }) {
    if (part.wrong) throw new Error(part.wrong);
    return part;
  }

  /** The place of a head among those of a call. */
  _head({ about }, head) {
    const at = about.heads.indexOf(Number(head));
    if (at < 0) throw new Error(`head ${head}; expected one of ${about.heads.join(", ")}`);
    return at;
  }

  /** Whether the file has query and key of a head. */
  _has({ id }, h) {
    return document.getElementById(`query-${id}-${h}`) !== null;
  }

  /** The places of the heads of a call that have query and key, if any has. */
  held(call) {
    const places = [...this._measured(call).kinds.keys()].filter((h) => this._has(call, h));
    if (!places.length) throw lacking("the heads of this call");
    return places;
  }

  /** What the worker computes of a head. @param {any} call @param {any} question @param {AbortSignal} [signal] */
  async computed(call, question, signal) {
    const { inputs } = this._measured(call);
    const { h } = question;
    if (!this._has(call, h)) throw lacking("this head");
    this.computing ??= inflated(document.getElementById("worker")).then((of) => new Computing(of));
    const computing = await this.computing;
    const names = {
      query: `query-${call.id}-${h}`,
      key: `key-${call.id}-${Math.floor(h / inputs.group)}`,
      ...(inputs["mask part"] && { mask: inputs["mask part"] }),
      ...(inputs.bias.length && { bias: inputs.bias[inputs.bias.length > 1 ? h : 0] }),
    };
    const of = { ...inputs, shape: call.about.shape };
    return computing.ask({ ...question, call: of, parts: names }, signal);
  }

  _names({ part }, axis) {
    return this.parts[`shared ${part[axis]}`] ?? null;
  }

  tokens(call, { axis, start, stop }) {
    const names = this._names(call, axis);
    if (!names) return { start, tokens: null };
    const tokens = names.tokens.slice(start, Math.min(stop, start + TOKENS));
    const here = Object.entries(names.cut).filter(
      ([at]) => start <= Number(at) && Number(at) < stop,
    );
    return { start, tokens, cut: Object.fromEntries(here) };
  }

  find(call, { axis, text }) {
    const wanted = folded(text);
    const names = this._names(call, axis)?.tokens ?? [];
    const places = [...names.keys()].filter((i) => folded(names[i]).includes(wanted));
    const isPart = (/** @type {number} */ i) => Number(folded(names[i]).trim() !== wanted.trim());
    places.sort((a, b) => isPart(a) - isPart(b));
    const data = Int32Array.from(places.slice(0, 1000));
    return { count: places.length, places: { data, shape: [data.length] } };
  }

  image(call, { axis }) {
    const picture = this.parts[`shared ${call.part.images?.[axis]}`];
    if (!picture) throw new Error("The image is not in this file: it has too many.");
    return picture;
  }

  segments(call, words, signal) {
    return sharesOf(this, call, words, signal);
  }

  small(call) {
    const { data, shape } = this._measured(call).small;
    return { word: "exact", maps: { data: data.map((weight) => weight || 0), shape } };
  }

  scores(call) {
    const { inputs, small, part, queries, keys, images, ...scores } = this._measured(call);
    return { word: "exact", ...scores };
  }

  async tile(call, { place, reduce }, signal) {
    const [head, level, row, column] = numbers(place);
    const h = this._head(call, head);
    const [, N, M] = call.about.shape;
    const size = 2 ** level;
    const [rows, columns] = [
      [row, N],
      [column, M],
    ].map(([at, of]) => [at * SIDE, Math.min((at + 1) * SIDE, Math.ceil(of / size))]);
    if (rows[1] <= rows[0] || columns[1] <= columns[0] || row < 0 || column < 0)
      throw new Error(
        `tile ${row}, ${column} of level ${level}; expected one of a map of ${N} × ${M}`,
      );
    if (!this._has(call, h)) return this._stretched(call, h, rows, columns, size);
    const question = { what: "tile", h, rows, columns, size, reduce };
    const { tile, isSampled } = await this.computed(call, question, signal);
    return { word: isSampled ? `of one query in ${size}` : this.word, tile };
  }

  /** Pixels of a tile of the picture of a head, stretched. */
  _stretched(call, h, rows, columns, size) {
    const { data, shape } = this._measured(call).small;
    const [, N, M] = call.about.shape;
    const [, r, c] = shape;
    const [down, across] = [Math.ceil(N / r), Math.ceil(M / c)];
    const wide = columns[1] - columns[0];
    const pixels = Float32Array.from({ length: (rows[1] - rows[0]) * wide }, (_, at) => {
      const n = (rows[0] + Math.floor(at / wide)) * size;
      const m = (columns[0] + (at % wide)) * size;
      return data[(h * r + Math.floor(n / down)) * c + Math.floor(m / across)];
    });
    const tile = { data: pixels, shape: [rows[1] - rows[0], wide] };
    return { word: "no query and key in this page", bounds: true, tile };
  }

  row(call, { heads, at }, signal) {
    return this._line(call, numbers(heads), Number(at), true, signal);
  }

  column(call, { heads, at }, signal) {
    return this._line(call, numbers(heads), Number(at), false, signal);
  }

  /** The mean of some heads along a row or a column. */
  async _line(call, heads, at, isRow, signal) {
    const places = heads.map((head) => this._head(call, head));
    if (heads.length > 1 && places.some((h) => !this._has(call, h)))
      throw lacking("some of these heads");
    const lines = await Promise.all(
      places.map((h) => this.computed(call, { what: "line", h, at, isRow }, signal)),
    );
    const data = new Float32Array(lines[0].length);
    for (const line of lines)
      for (let i = 0; i < data.length; i++) data[i] += line[i] / lines.length;
    return { word: this.word, weights: { data, shape: [data.length] } };
  }

  /** Single cells, and which of them the mask lets be seen. */
  async part(call, { head, queries, keys }, signal) {
    const [q, k] = [range(queries), range(keys)];
    const shape = [q[1] - q[0], k[1] - k[0]];
    if (shape[0] * shape[1] > PART)
      throw new Error(`${shape.join(" × ")} cells; expected at most ${PART} at once`);
    const question = { what: "part", h: this._head(call, head), queries: q, keys: k };
    return { word: this.word, ...(await this.computed(call, question, signal)) };
  }

  /** One weight with all that makes it. */
  async cell(call, { head, query, key }, signal) {
    const { proof, layout, why, name } = call.about;
    const question = { what: "cell", h: this._head(call, head), n: Number(query), m: Number(key) };
    const weight = await this.computed(call, question, signal);
    return { ...weight, word: this.word, proof, layout, why, name };
  }

  /** The largest weights of a region. */
  async strongest(call, { head, queries, keys, count }, signal) {
    const region = { queries: range(queries), keys: range(keys), count: Number(count) };
    const question = { what: "strongest", h: this._head(call, head), ...region };
    const { by, cells } = await this.computed(call, question, signal);
    return { word: by > 1 ? `of one query in ${by}` : this.word, cells };
  }
}

/** Two digits of a bound, never below it. @param {number} bound */
function short(bound) {
  const digits = 10 ** (1 - Math.floor(Math.log10(bound)));
  return Number((Math.ceil(bound * digits) / digits).toPrecision(2));
}

const source = new File(await parts());
const element = /** @type {HTMLElement} */ (document.getElementById("heedful"));
Object.assign(element, { source }); // so that the console can ask it, too
const host = window.parent === window ? alone() : framed(element.dataset.view ?? "");
mount(element, source, host);
