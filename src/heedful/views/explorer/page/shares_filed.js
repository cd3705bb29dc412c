// Who reads what in the one file: a table that was put into it, or one that the worker computes.

const STEP = 1 << 22; // weights that are computed in one step
const PATIENCE = 150; // milliseconds that an answer waits to be whole
const KEPT = 200; // calls whose tables are kept

/** @typedef {[number, number][]} Runs */
/** @typedef {{share: Float64Array, chance: Float64Array, left: Float64Array, queries: Float64Array}} Sums */
/** @typedef {{done: number, answer: any, failed: Error | null, end: AbortController, work: Promise<void>}} Job */

export class SharesFiled {
  /** @param {any} file what answers the page (filed.js) */
  constructor(file) {
    this.file = file;
    /** @type {Map<string, Job>} */
    this.jobs = new Map();
  }

  /** @param {any} call @param {{keys: string, queries?: string, stop?: any}} given */
  async ask(call, { keys, queries = "", stop }) {
    const part = this.file.parts[`segments ${call.id}`];
    if (part?.of === `${keys}|${queries}`) return part;
    const id = `${call.id} ${keys}|${queries}`;
    if (stop) return this._drop(id);
    if (!this.jobs.has(id)) this._begin(id, call, keys, queries);
    const job = /** @type {Job} */ (this.jobs.get(id));
    await Promise.race([job.work, new Promise((soon) => setTimeout(soon, PATIENCE))]);
    if (job.failed) throw job.failed;
    return job.answer ?? { word: "not computed yet", done: job.done };
  }

  /** @param {string} id */
  _drop(id) {
    const job = this.jobs.get(id);
    if (job && !job.answer) {
      job.end.abort();
      this.jobs.delete(id);
    }
    return { word: "stopped" };
  }

  /** @param {string} id @param {any} call @param {string} keys @param {string} queries */
  _begin(id, call, keys, queries) {
    if (this.jobs.size >= KEPT) this.jobs.delete(this.jobs.keys().next().value ?? "");
    /** @type {Job} */
    const job = {
      done: 0,
      answer: null,
      failed: null,
      end: new AbortController(),
      work: Promise.resolve(),
    };
    job.work = this._work(job, call, keys, queries).catch((error) => {
      job.failed = error;
      this.jobs.delete(id);
    });
    this.jobs.set(id, job);
  }

  /** Head after head, rows after rows. @param {Job} job @param {any} call @param {string} keys @param {string} queries */
  async _work(job, call, keys, queries) {
    this.file._kept(call); // or it says why there is nothing
    const { shape, kind, first } = call.about;
    const [H, N, M] = shape;
    const to = withRest(runs(keys), M);
    const from =
      kind === "cross"
        ? withRest(runs(queries), N)
        : withRest(
            runs(keys).map((one) => moved(one, first, N)),
            N,
          );
    const [A, B] = [from.length, to.length];
    const size = Math.max(1, Math.floor(STEP / Math.max(1, M)));
    const all = {
      share: new Float64Array(H * A * B),
      chance: new Float64Array(H * A * B),
      learned: new Float64Array(H * A),
      queries: new Int32Array(H * A),
    };
    let sinks = false;
    for (let h = 0; h < H; h++) {
      const sums = nothing(A, B);
      for (let row = 0; row < N; row += size) {
        const asked = { what: "shares", h, from, to, rows: [row, Math.min(N, row + size)] };
        const found = await this.file._computed(call, asked, job.end.signal);
        if (!found) throw new Error(LACKING);
        add(sums, found);
        sinks = found.sinks;
        job.done = (h + Math.min(N, row + size) / N) / H;
      }
      means(all, sums, h, A, B, sinks);
    }
    const array = (/** @type {any} */ data, /** @type {number[]} */ of) => ({ data, shape: of });
    job.answer = {
      word: this.file.computedWord,
      sinks,
      share: array(all.share, [H, A, B]),
      chance: array(all.chance, [H, A, B]),
      learned: array(all.learned, [H, A]),
      queries: array(all.queries, [H, A]),
      keys: array(
        Int32Array.from(to, (one) => one.reduce((sum, [a, b]) => sum + b - a, 0)),
        [B],
      ),
    };
  }
}

const LACKING =
  "This file has no table of these segments. `heedful look … --html` puts in the one of --segments; with --exact the page computes any.";

/** @param {number} A @param {number} B @returns {Sums} */
const nothing = (A, B) => ({
  share: new Float64Array(A * B),
  chance: new Float64Array(A * B),
  left: new Float64Array(A),
  queries: new Float64Array(A),
});

/** @param {Sums} sums @param {Sums} more */
function add(sums, more) {
  for (const name of /** @type {(keyof Sums)[]} */ (["share", "chance", "left", "queries"]))
    for (let i = 0; i < sums[name].length; i++) sums[name][i] += more[name][i];
}

/** Sums of a head as means; NaN where no query may see anything. @param {any} all @param {Sums} sums @param {number} h @param {number} A @param {number} B @param {boolean} sinks */
function means(all, sums, h, A, B, sinks) {
  for (let a = 0; a < A; a++) {
    const n = sums.queries[a];
    all.queries[h * A + a] = n;
    all.learned[h * A + a] = n ? (sinks ? 1 - sums.left[a] / n : 0) : Number.NaN;
    for (let b = 0; b < B; b++) {
      const at = a * B + b;
      all.share[h * A * B + at] = n ? sums.share[at] / n : Number.NaN;
      all.chance[h * A * B + at] = n ? sums.chance[at] / n : Number.NaN;
    }
  }
}

/** Segments of a question: 0-40,50-60;60-80. @param {string} text @returns {Runs[]} */
const runs = (text) =>
  text
    .split(";")
    .filter(Boolean)
    .map((one) =>
      one.split(",").map((run) => /** @type {[number, number]} */ (run.split("-").map(Number))),
    );

/** Those of the queries that stand at some keys. @param {Runs} of @param {number} first @param {number} N @returns {Runs} */
const moved = (of, first, N) =>
  of
    .map(
      ([a, b]) =>
        /** @type {[number, number]} */ ([Math.max(0, a - first), Math.min(N, b - first)]),
    )
    .filter(([a, b]) => a < b);

/** With what is in no segment, if there is any. @param {Runs[]} segments @param {number} size @returns {Runs[]} */
function withRest(segments, size) {
  const inside = new Uint8Array(size);
  for (const one of segments) for (const [a, b] of one) inside.fill(1, a, b);
  /** @type {Runs} */
  const rest = [];
  for (let at = 0; at < size; at++) {
    if (inside[at]) continue;
    const last = rest.at(-1);
    if (last?.[1] === at) last[1]++;
    else rest.push([at, at + 1]);
  }
  return rest.length ? [...segments, rest] : segments;
}
