// The page as one file: every question is answered from what the file brought with it, in the words
// and shapes of answers.py. What it does not have is NaN, and said; nothing of it is told as 0.
import { mount } from "./app.js";
import { Computing } from "./computing.js";
import { alone, framed } from "./host.js";
import { inflated, parts } from "./inflated.js";
import { Kept } from "./kept.js";
import { SharesFiled } from "./shares_filed.js";
import { unpacked } from "./wire.js";

const SIDE = 256; // pixels of a tile
const PART = 1 << 20; // cells in one answer
const [TOKENS, LONGEST] = [4096, 200]; // tokens in one answer, characters of a token
const RIVALS = 8; // of a weight
const SMALL = 32; // cells of a head's small picture

const COMPUTED = 4096 ** 2; // weights that a tile is computed from

/** A text as casefold has it, near enough: ß is ss, ς is σ. @param {string} text */
const folded = (text) =>
  text.toUpperCase().toLowerCase().replaceAll("ς", "σ").replaceAll("ß", "ss");

const numbers = (text) => String(text).split(",").map(Number);

/** A range such as 0-7. */
const range = (text) => String(text).split("-").map(Number);

const QUESTIONS = [
  "tokens",
  "find",
  "image",
  "small",
  "scores",
  "tile",
  "row",
  "column",
  "part",
  "cell",
  "strongest",
  "segments",
];

class Filed {
  /** @param {Record<string, any>} found */
  constructor(found) {
    this.parts = found;
    this.calls = new globalThis.Map();
    /** @type {Promise<Computing> | null} */
    this.computing = null;
    this.shares = new SharesFiled(this);
  }

  /** The causes of a call, brought to the worker; null where the file has none. */
  async _computing(call) {
    const element = document.getElementById(`causes-${call.id}`);
    if (!element) return null;
    this.computing ??= inflated(document.getElementById("worker")).then((of) => new Computing(of));
    const computing = await this.computing;
    call.brought ??= inflated(element).then(async (buffer) => {
      const part = unpacked(buffer);
      const shared = document.getElementById(`shared-${part.shared}`);
      const arrays = shared ? unpacked(await inflated(shared)) : {};
      computing.load(call.id, part, arrays, call.about.shape);
    });
    await call.brought;
    return computing;
  }

  /** What is computed of a call. @param {any} call @param {any} asked @param {AbortSignal} [signal] */
  async _computed(call, asked, signal) {
    const computing = await this._computing(call);
    return computing?.ask({ call: call.id, ...asked }, signal);
  }

  /** The word for what is computed. */
  get computedWord() {
    const { half, difference } = this.parts.about.file;
    return half ? `half precision, within ${short(difference)} where compared` : "exact";
  }

  /**
   * What the library is asked.
   * @param {string} question
   * @param {Record<string, any>} given
   * @param {AbortSignal} [signal]
   */
  async ask(question, given = {}, signal = undefined) {
    if (question === "about") return this.parts.about;
    if (!QUESTIONS.includes(question))
      throw new Error("A file cannot do this; the page that `heedful look` opens can.");
    return this[question](this._call(given.call), given, signal);
  }

  /** What is known of a call. @param {string} id recording.text.call */
  _call(id) {
    if (!this.calls.has(id)) {
      const [r, t, c] = id.split(".").map(Number);
      const about = this.parts.about.recordings[r]?.texts[t]?.calls[c];
      if (!about) throw new Error(`no call ${id} in this file`);
      const common = this.parts[`common ${id}`];
      const arrays = this.parts[`shared ${common["arrays of the mask"]}`] ?? {};
      const mask = common.mask ? { parts: common.mask, arrays } : null;
      const maps = this.parts[`maps ${id}`];
      const kept = maps.wrong ? null : new Kept(maps, about, mask);
      this.calls.set(id, { id, about, common, kept, wrong: maps.wrong });
    }
    return this.calls.get(id);
  }

  /** What is kept of a call's weights. @returns {Kept} */
  _kept({ kept, wrong }) {
    if (wrong) throw new Error(wrong);
    return kept;
  }

  /** The place of a head among those of a call. */
  _head({ about }, head) {
    const at = about.heads.indexOf(Number(head));
    if (at < 0) throw new Error(`head ${head}; expected one of ${about.heads.join(", ")}`);
    return at;
  }

  _names({ common }, axis) {
    return this.parts[`shared ${common[axis]}`] ?? null;
  }

  tokens(call, { axis, start, stop }) {
    const names = this._names(call, axis);
    if (!names) return { start, tokens: null };
    /** @type {Record<number, number>} */
    const cut = {};
    const part = names.tokens.slice(start, Math.min(stop, start + TOKENS));
    const tokens = part.map((name, i) => {
      const known = names.cut[start + i];
      if (known) cut[start + i] = known;
      if (name.length <= LONGEST) return name;
      const letters = [...name]; // an emoji is one character
      if (letters.length <= LONGEST) return name;
      cut[start + i] = known ?? letters.length;
      return letters.slice(0, LONGEST).join("");
    });
    return { start, tokens, cut };
  }

  find(call, { axis, text }) {
    const asked = folded(text);
    const names = this._names(call, axis)?.tokens ?? [];
    const found = [...names.keys()].filter((i) => folded(names[i]).includes(asked));
    const isPart = (/** @type {number} */ i) => Number(folded(names[i]).trim() !== asked.trim());
    found.sort((a, b) => isPart(a) - isPart(b));
    const data = Int32Array.from(found.slice(0, 1000));
    return { count: found.length, places: { data, shape: [data.length] } };
  }

  image(call, { axis }) {
    const found = this.parts[`shared ${call.common.images?.[axis]}`];
    if (!found) throw new Error("The image is not in this file: it has too many.");
    return found;
  }

  segments(call, given) {
    return this.shares.ask(call, given);
  }

  small(call) {
    const kept = this._kept(call);
    const [H, N, M] = call.about.shape;
    let size = kept.cell;
    while (Math.max(N, M) / size > SMALL) size *= 2;
    const shape = [H, Math.ceil(N / size), Math.ceil(M / size)];
    const data = new Float32Array(H * shape[1] * shape[2]);
    for (let h = 0; h < H; h++) {
      const picture = kept.tile(
        h,
        [
          [0, shape[1]],
          [0, shape[2]],
        ],
        size,
        "max",
      ).data;
      data.set(
        picture.map((weight) => weight || 0),
        h * shape[1] * shape[2],
      );
    }
    return { word: kept.word, maps: { data, shape } };
  }

  scores(call) {
    const found = this.parts[`scores ${call.id}`];
    if (!found)
      throw new Error(call.wrong ?? "the scores are not in this file: it has too many heads");
    return found;
  }

  async tile(call, { place, reduce }, signal) {
    const [head, level, row, column] = numbers(place);
    const kept = this._kept(call);
    const [, N, M] = call.about.shape;
    const size = 2 ** level;
    const [rows, columns] = [
      [row, N],
      [column, M],
    ].map(([at, of]) => [at * SIDE, Math.min((at + 1) * SIDE, Math.ceil(of / size))]);
    const shape = [rows[1] - rows[0], columns[1] - columns[0]];
    if (shape[0] <= 0 || shape[1] <= 0 || row < 0 || column < 0)
      throw new Error(
        `tile ${row}, ${column} of level ${level}; expected one of a map of ${N} × ${M}`,
      );
    const h = this._head(call, head);
    if (size < kept.cell && shape[0] * shape[1] * size ** 2 <= COMPUTED) {
      const found = await this._computed(
        call,
        { what: "tile", h, rows, columns, size, reduce },
        signal,
      );
      if (found) return { word: this.computedWord, tile: { data: found, shape } };
    }
    const { word, data } = kept.tile(h, [rows, columns], size, reduce);
    return { word, bounds: size < kept.cell, tile: { data, shape } };
  }

  row(call, { heads, at }, signal) {
    const [, , M] = call.about.shape;
    return this._line(call, numbers(heads), Number(at), M, true, signal);
  }

  column(call, { heads, at }, signal) {
    const [, N] = call.about.shape;
    return this._line(call, numbers(heads), Number(at), N, false, signal);
  }

  /** The mean of some heads along a row or a column; NaN where not all of their weights are in the file. */
  async _line(call, heads, at, size, isRow, signal) {
    const kept = this._kept(call);
    const places = heads.map((one) => this._head(call, one));
    if (!kept.isWhole) {
      const found = await this._computed(call, { what: "line", heads: places, at, isRow }, signal);
      if (found)
        return { word: this.computedWord, atMost: 0, weights: { data: found, shape: [size] } };
    }
    const data = new Float32Array(size);
    const known = new Uint32Array(size);
    const highest = new Float64Array(size); // what the mean does not exceed
    /** @type {[number, number][] | null} */
    let largest = null;
    for (const head of places) {
      let before = -1;
      for (let i = 0; i < size; i++) {
        const [n, m] = isRow ? [at, i] : [i, at];
        if (n !== before) largest = kept.largest(head, n);
        before = n;
        const found = kept.weight(head, n, m, largest);
        const isKnown = !Number.isNaN(found.weight);
        highest[i] += (isKnown ? found.weight : found.atMost) / heads.length;
        data[i] += isKnown ? found.weight / heads.length : 0;
        known[i] += Number(isKnown);
      }
    }
    const missing = known.some((count) => count < heads.length);
    let atMost = 0;
    for (let i = 0; i < size; i++)
      if (known[i] < heads.length) {
        data[i] = NaN;
        atMost = Math.max(atMost, highest[i]);
      }
    const word = missing
      ? `of the ${kept.top} largest weights of a row; others at most ${short(atMost)}`
      : kept.word;
    return { word, atMost: missing ? atMost : 0, weights: { data, shape: [size] } };
  }

  /** Single cells, and which of them the mask lets be seen. */
  async part(call, { head, queries, keys }, signal) {
    const [q, k] = [range(queries), range(keys)];
    const shape = [q[1] - q[0], k[1] - k[0]];
    if (shape[0] * shape[1] > PART)
      throw new Error(`${shape.join(" × ")} cells; expected at most ${PART} at once`);
    const kept = this._kept(call);
    const h = this._head(call, head);
    const asked = { what: "part", h, queries: q, keys: k };
    const computed = kept.isWhole ? null : await this._computed(call, asked, signal);
    const data = computed ?? new Float32Array(shape[0] * shape[1]);
    const seen = new Uint8Array(data.length);
    let at = 0;
    for (let n = q[0]; n < q[1]; n++) {
      const largest = kept.largest(h, n);
      for (let m = k[0]; m < k[1]; m++, at++) {
        seen[at] = Number(!kept.hides(h, n, m));
        if (!computed) data[at] = kept.weight(h, n, m, largest).weight;
      }
    }
    const word = computed
      ? this.computedWord
      : kept.isWhole
        ? kept.word
        : "of the largest of a row";
    return { word, weights: { data, shape }, seen: { data: seen, shape } };
  }

  /** One weight, or what it does not exceed, and the largest of its row. */
  async cell(call, { head, query, key }, signal) {
    const kept = this._kept(call);
    const { about } = call;
    const [h, n, m] = [this._head(call, head), Number(query), Number(key)];
    const { proof, layout, why, name } = about;
    const certain = { proof, layout, why, name };
    const made = await this._computed(call, { what: "cell", h, n, m }, signal);
    const largest = kept.largest(h, n);
    const { weight, atMost, hidden } = kept.weight(h, n, m, largest);
    const isExact = Boolean(largest?.some(([at]) => at === m)) || (kept.isWhole && !kept.half);
    const stored = isExact && this.computedWord !== "exact" ? weight : null;
    if (made) return { ...made, stored, word: this.computedWord, ...certain };
    const missing = Number.isNaN(weight);
    const known = kept.known(h, n).sort((a, b) => b[1] - a[1] || a[0] - b[0]);
    const rivals = known.slice(0, RIVALS);
    const rank = known.findIndex(([at]) => at === m) + 1;
    return {
      filed: true,
      word: missing ? "not in this file" : largest && rank ? "exact" : kept.word,
      said: missing ? absent(kept, largest, atMost) : "",
      weight: missing ? null : weight,
      atMost,
      bound: short(atMost),
      hidden,
      rank: rank || null,
      seen: kept.mask?.count(h, n) ?? null,
      rivals: { data: Int32Array.from(rivals, ([at]) => at), shape: [rivals.length] },
      weights: { data: Float32Array.from(rivals, ([, one]) => one), shape: [rivals.length] },
      ...certain,
    };
  }

  /** The largest weights of a region, of those that are in the file. */
  async strongest(call, { head, queries, keys, count }, signal) {
    const kept = this._kept(call);
    const h = this._head(call, head);
    const [q, k] = [range(queries), range(keys)];
    if (!kept.isWhole && (q[1] - q[0]) * (k[1] - k[0]) <= COMPUTED) {
      const asked = { what: "strongest", h, queries: q, keys: k, count: Number(count) };
      const cells = await this._computed(call, asked, signal);
      if (cells) return { word: this.computedWord, cells };
    }
    /** @type {number[][]} */
    let best = [];
    let missed = 0;
    const least = () => (best.length < count ? -1 : best[best.length - 1][0]);
    for (let n = q[0]; n < q[1]; n++) {
      const largest = kept.largest(h, n);
      /** @type {number[][]} */
      const some = [];
      missed = Math.max(missed, kept.isWhole ? 0 : this._mostOf(kept, h, n, k, largest));
      for (const [m, weight] of kept.known(h, n))
        if (m >= k[0] && m < k[1] && weight > least()) some.push([weight, n, m]);
      best = [...best, ...some].sort((a, b) => b[0] - a[0]).slice(0, count);
    }
    const word =
      missed > Math.max(0, least())
        ? `of the largest of ${kept.rows.size === call.about.shape[1] ? "each row" : "chosen rows"}`
        : kept.isWhole
          ? kept.word
          : "exact";
    return { word, cells: best };
  }

  /** What no weight of a part of a row exceeds that the file has not. */
  _mostOf(kept, h, n, range, largest) {
    const [first, end] = range;
    let most = 0;
    for (let m = first; m < end; m = (Math.floor(m / kept.cell) + 1) * kept.cell) {
      const pooled = kept.pooled(kept.most, h, n, m);
      if (pooled > most) most = pooled;
    }
    return Math.min(most, kept.below(largest));
  }
}

/** Two digits of a bound, never below it. @param {number} bound */
function short(bound) {
  if (!bound) return 0;
  const digits = 10 ** (1 - Math.floor(Math.log10(bound)));
  return Number((Math.ceil(bound * digits) / digits).toPrecision(2));
}

/** Why a weight is not there, and what it does not exceed. */
function absent(kept, largest, atMost) {
  const why = largest
    ? `below the ${kept.top} largest of its row`
    : `a cell of ${kept.cell} × ${kept.cell} in this file`;
  return `Not in this file: ${why}, so at most ${short(atMost)}.`;
}

const source = new Filed(await parts());
const element = /** @type {HTMLElement} */ (document.getElementById("heedful"));
Object.assign(element, { source }); // so that the console can ask it, too
const host = window.parent === window ? alone() : framed(element.dataset.view ?? "");
mount(element, source, host);
