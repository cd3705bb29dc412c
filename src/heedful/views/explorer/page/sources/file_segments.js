// Shares of segments in the one-file page, computed by the worker.

const STEP = 1 << 22; // weights per request to the worker

/** @typedef {[number, number][]} Runs */

/** The shares of attention between segments, for each head of a call, in the server's format. @param {any} file the source (file_source.js) @param {any} call @param {{keys: string, queries?: string}} fields @param {AbortSignal} [signal] */
export async function sharesOf(file, call, { keys, queries = "" }, signal) {
  const { kind, first } = call.about;
  const [H, N, M] = call.about.shape;
  const to = withRest(runs(keys), M);
  const marked =
    kind === "cross" ? runs(queries) : runs(keys).map((segment) => toQueries(segment, first, N));
  const from = withRest(marked, N);
  const [A, B] = [from.length, to.length];
  const heads = file.availableHeads(call);
  const sinks = call.part.inputs.sinks;
  const table = {
    share: numbers(H, A, B),
    chance: numbers(H, A, B),
    learned: numbers(H, A),
    queries: { data: new Int32Array(H * A), shape: [H, A] },
  };
  const size = Math.max(1, Math.floor(STEP / Math.max(1, M)));
  for (const h of heads) {
    const steps = [];
    for (let row = 0; row < N; row += size) {
      const rows = [row, Math.min(N, row + size)];
      steps.push(await file.computed(call, { what: "shares", h, from, to, rows }, signal));
    }
    const sum = (name, i) => steps.reduce((sum, step) => sum + step[name][i], 0);
    for (let a = 0; a < A; a++) {
      const n = sum("queries", a);
      table.queries.data[h * A + a] = n;
      if (!n) continue;
      table.learned.data[h * A + a] = sinks ? 1 - sum("total", a) / n : 0;
      for (let i = a * B; i < (a + 1) * B; i++) {
        table.share.data[h * A * B + i] = sum("share", i) / n;
        table.chance.data[h * A * B + i] = sum("chance", i) / n;
      }
    }
  }
  const sizes = to.map((segment) => segment.reduce((sum, [a, b]) => sum + b - a, 0));
  return {
    word: heads.length < H ? `${file.word}, of the ${heads.length} heads in this page` : file.word,
    sinks,
    ...table,
    keys: { data: Int32Array.from(sizes), shape: [B] },
  };
}

/** An array of NaN, which marks fully masked segments and heads that are not in the file. */
const numbers = (/** @type {number[]} */ ...shape) => ({
  data: new Float64Array(shape.reduce((a, b) => a * b, 1)).fill(Number.NaN),
  shape,
});

/** Parse the segments of a request: 0-40,50-60;60-80. @param {string} text @returns {Runs[]} */
function runs(text) {
  const segments = text.split(";").filter(Boolean);
  return segments.map((segment) =>
    segment.split(",").map((run) => /** @type {[number, number]} */ (run.split("-").map(Number))),
  );
}

/** Convert ranges of keys to the queries at the same positions. @param {Runs} ranges @param {number} first @param {number} N */
const toQueries = (ranges, first, N) =>
  /** @type {Runs} */ (
    ranges.map(([a, b]) => [Math.max(0, a - first), Math.min(N, b - first)])
  ).filter(([a, b]) => a < b);

/** Add the tokens outside all segments, if there are any such tokens, as a last segment. @param {Runs[]} segments @param {number} size @returns {Runs[]} */
function withRest(segments, size) {
  const inside = new Uint8Array(size);
  for (const segment of segments) for (const [a, b] of segment) inside.fill(1, a, b);
  /** @type {Runs} */
  const rest = [];
  for (let i = 0; i < size; i++) {
    if (inside[i]) continue;
    const last = rest.at(-1);
    if (last?.[1] === i) last[1]++;
    else rest.push([i, i + 1]);
  }
  return rest.length ? [...segments, rest] : segments;
}
