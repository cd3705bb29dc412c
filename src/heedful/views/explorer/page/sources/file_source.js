// The one-file page: its source answers every question from the contents of the file, in the format
// of handlers.py. A worker computes the weights. Heads that are stored without query and key have
// only small pictures and scores.
import { mount } from "../app.js";
import { frameHost, windowHost } from "../host.js";
import { decompress, parts } from "../wire.js";
import { sharesOf } from "./file_segments.js";
import { WorkerClient } from "./worker_client.js";

const SIDE = 256; // pixels of a tile
const PART = 1 << 20; // cells per answer
const TOKENS = 4096; // tokens per answer
const missingInputs = (/** @type {string} */ heads) =>
  new Error(
    `This page has no query and key for ${heads}: open the recording with heedful look, or write the page with a larger --limit.`,
  );

/** Fold the case of a text nearly like Python's casefold: ß becomes ss, ς becomes σ. @param {string} text */
const folded = (text) =>
  text.toUpperCase().toLowerCase().replaceAll("ς", "σ").replaceAll("ß", "ss");

/** Parse a list such as 0,1 or, with "-", a range such as 0-7. */
const numbers = (text, separator = ",") => String(text).split(separator).map(Number);
const range = (text) => numbers(text, "-");

const QUESTIONS =
  "tokens find image small scores tile row column part cell all_heads norms strongest segments";

class FileSource {
  /** @param {Record<string, any>} parts */
  constructor(parts) {
    this.parts = parts;
    /** @type {Promise<WorkerClient> | null} */
    this.worker = null;
    const { difference } = parts.about.file;
    /** The precision of computed weights. */
    this.word = difference ? `within ${short(difference)}` : "exact";
  }

  /** Answer a question in the server's format. @param {string} question @param {Record<string, any>} fields @param {AbortSignal} [signal] */
  async ask(question, fields = {}, signal = undefined) {
    if (question === "about") return this.parts.about;
    if (!QUESTIONS.split(" ").includes(question))
      throw new Error("A page in one file cannot do this; the page that `heedful look` opens can.");
    return this[question](this._call(fields.call), fields, signal);
  }

  /** The description and the contents of a call. @param {string} id recording.text.call */
  _call(id) {
    const [r, t, c] = id.split(".").map(Number);
    const about = this.parts.about.recordings[r]?.texts[t]?.calls[c];
    if (!about) throw new Error(`no call ${id} in this file`);
    return { id, about, part: this.parts[`call ${id}`] };
  }

  /** The contents of a call. Throw if its weights are not available. */
  _contents({ part }) {
    if (part.wrong) throw new Error(part.wrong);
    return part;
  }

  /** The index of a head in a call. */
  _index({ about }, head) {
    const index = about.heads.indexOf(Number(head));
    if (index < 0)
      throw new Error(`no head ${head} in this call; expected one of ${about.heads.join(", ")}`);
    return index;
  }

  /** Whether the file contains query and key of a head. */
  _has({ id }, h) {
    return document.getElementById(`query-${id}-${h}`) !== null;
  }

  /** The indices of those heads of a call whose query and key are in the file. Throw if there are none. */
  availableHeads(call) {
    const heads = [...this._contents(call).kinds.keys()].filter((h) => this._has(call, h));
    if (!heads.length) throw missingInputs("the heads of this call");
    return heads;
  }

  /** Let the worker answer a question about a head. @param {any} call @param {any} question @param {AbortSignal} [signal] */
  async computed(call, question, signal) {
    const { inputs } = this._contents(call);
    const { h } = question;
    if (!this._has(call, h)) throw missingInputs("this head");
    const script = () => decompress(document.getElementById("worker"));
    this.worker ??= script().then((source) => new WorkerClient(source));
    const worker = await this.worker;
    const names = {
      query: `query-${call.id}-${h}`,
      key: `key-${call.id}-${Math.floor(h / inputs.group)}`,
      ...(inputs["mask part"] && { mask: inputs["mask part"] }),
      ...(inputs.bias.length && { bias: inputs.bias[inputs.bias.length > 1 ? h : 0] }),
    };
    const description = { ...inputs, shape: call.about.shape };
    return worker.ask({ ...question, call: description, parts: names }, signal);
  }

  _names({ part }, axis) {
    return this.parts[`shared ${part[axis]}`] ?? null;
  }

  tokens(call, { axis, start, stop }) {
    const names = this._names(call, axis);
    if (!names) return { start, tokens: null };
    const tokens = names.tokens.slice(start, Math.min(stop, start + TOKENS));
    const cut = Object.entries(names.cut).filter(
      ([at]) => start <= Number(at) && Number(at) < stop,
    );
    return { start, tokens, cut: Object.fromEntries(cut) };
  }

  find(call, { axis, text }) {
    const query = folded(text);
    const names = this._names(call, axis)?.tokens ?? [];
    const places = [...names.keys()].filter((i) => folded(names[i]).includes(query));
    const isPart = (/** @type {number} */ i) => Number(folded(names[i]).trim() !== query.trim());
    places.sort((a, b) => isPart(a) - isPart(b));
    const data = Int32Array.from(places.slice(0, 1000));
    return { count: places.length, places: { data, shape: [data.length] } };
  }

  image(call, { axis }) {
    const picture = this.parts[`shared ${call.part.images?.[axis]}`];
    if (!picture)
      throw new Error("The image is not in this file, because the recording has too many images.");
    return picture;
  }

  segments(call, words, signal) {
    return sharesOf(this, call, words, signal);
  }

  small(call) {
    const { data, shape } = this._contents(call).small;
    return { word: "exact", maps: { data: data.map((weight) => weight || 0), shape } };
  }

  scores(call) {
    const { inputs, small, part, queries, keys, images, ...scores } = this._contents(call);
    return { word: "exact", ...scores };
  }

  async tile(call, { place, reduce }, signal) {
    const [head, level, row, column] = numbers(place);
    const h = this._index(call, head);
    const [, N, M] = call.about.shape;
    const size = 2 ** level;
    /** The pixels of a tile along an axis. */
    const side = (n, length) => [n * SIDE, Math.min((n + 1) * SIDE, Math.ceil(length / size))];
    const [rows, columns] = [side(row, N), side(column, M)];
    if (rows[1] <= rows[0] || columns[1] <= columns[0] || row < 0 || column < 0)
      throw new Error(
        `tile ${row}, ${column} of level ${level}; expected one of a map of ${N} × ${M}`,
      );
    if (!this._has(call, h)) return this._stretched(call, h, rows, columns, size);
    const question = { what: "tile", h, rows, columns, size, reduce };
    const { tile, isSampled } = await this.computed(call, question, signal);
    return { word: isSampled ? `from one query in ${size}` : this.word, tile };
  }

  /** A tile from the small picture of a head, stretched. */
  _stretched(call, h, rows, columns, size) {
    const { data, shape } = this._contents(call).small;
    const [, N, M] = call.about.shape;
    const [, r, c] = shape;
    const [down, across] = [Math.ceil(N / r), Math.ceil(M / c)];
    const wide = columns[1] - columns[0];
    const pixels = Float32Array.from({ length: (rows[1] - rows[0]) * wide }, (_, i) => {
      const n = (rows[0] + Math.floor(i / wide)) * size;
      const m = (columns[0] + (i % wide)) * size;
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
    const indices = heads.map((head) => this._index(call, head));
    if (heads.length > 1 && indices.some((h) => !this._has(call, h)))
      throw missingInputs("some of these heads");
    const lines = await Promise.all(
      indices.map((h) => this.computed(call, { what: "line", h, at, isRow }, signal)),
    );
    const data = new Float32Array(lines[0].length);
    for (const line of lines)
      for (let i = 0; i < data.length; i++) data[i] += line[i] / lines.length;
    return { word: this.word, weights: { data, shape: [data.length] } };
  }

  /** The weights of a region, and which of its cells are not masked. */
  async part(call, { head, queries, keys }, signal) {
    const [q, k] = [range(queries), range(keys)];
    const shape = [q[1] - q[0], k[1] - k[0]];
    if (shape[0] * shape[1] > PART)
      throw new Error(`${shape.join(" × ")} cells; expected at most ${PART} at once`);
    const question = { what: "part", h: this._index(call, head), queries: q, keys: k };
    return { word: this.word, ...(await this.computed(call, question, signal)) };
  }

  /** A weight with its calculation. */
  async cell(call, { head, query, key }, signal) {
    const { proof, layout, why, name } = call.about;
    const question = { what: "cell", h: this._index(call, head), n: Number(query), m: Number(key) };
    const weight = await this.computed(call, question, signal);
    return { ...weight, word: this.word, proof, layout, why, name };
  }

  /** The norm of each key's value. */
  async norms(call, { head }, signal) {
    const question = { what: "norms", h: this._index(call, head) };
    const data = await this.computed(call, question, signal);
    return { word: this.word, norms: { data, shape: [data.length] } };
  }

  /** The weight of a cell in every head; NaN in a head whose query and key are not in the file. */
  async all_heads(call, { query, key }, signal) {
    const region = { queries: [query, query + 1], keys: [key, key + 1] };
    const weights = call.about.heads.map(async (_, h) => {
      if (!this._has(call, h)) return Number.NaN;
      const part = await this.computed(call, { what: "part", h, ...region }, signal);
      return part.weights.data[0];
    });
    const data = Float32Array.from(await Promise.all(weights));
    return { word: this.word, weights: { data, shape: [data.length] } };
  }

  /** The largest weights of a region. */
  async strongest(call, { head, queries, keys, count }, signal) {
    const region = { queries: range(queries), keys: range(keys), count: Number(count) };
    const question = { what: "strongest", h: this._index(call, head), ...region };
    const { step, cells } = await this.computed(call, question, signal);
    return { word: step > 1 ? `from one query in ${step}` : this.word, cells };
  }
}

/** Round a bound up to two significant digits. @param {number} bound */
function short(bound) {
  const digits = 10 ** (1 - Math.floor(Math.log10(bound)));
  return Number((Math.ceil(bound * digits) / digits).toPrecision(2));
}

const source = new FileSource(await parts());
const element = /** @type {HTMLElement} */ (document.getElementById("heedful"));
Object.assign(element, { source }); // for questions from the browser's console
const host =
  window.parent === window
    ? windowHost(element.dataset.view)
    : frameHost(element.dataset.view ?? "");
mount(element, source, host);
