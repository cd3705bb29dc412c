// The page as one file: every question is answered from what the file brought with it.
import { mount } from "./app.js";
import { unpacked } from "./wire.js";

const SIDE = 256;

/** The numbers of the file, each part by its name. */
async function parts() {
  const text = document.getElementById("numbers")?.textContent ?? "";
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  let start = 4 + new DataView(buffer).getUint32(0, true);
  const found = {};
  for (const [name, length] of Object.entries(unpacked(buffer).parts)) {
    found[name] = unpacked(buffer.slice(start, start + length));
    start += length;
  }
  return found;
}

class Filed {
  constructor(found) {
    this.parts = found;
  }

  async ask(question, given = {}) {
    if (question === "about") return this.parts.about;
    const call = this.parts[`call ${given.call}`];
    const [r, t, c] = given.call.split(".").map(Number);
    const about = this.parts.about.recordings[r].texts[t].calls[c];
    return this[question]({ ...given, of: call, about, names: this.parts[`tokens ${given.call}`] });
  }

  tokens({ names, axis, start, stop }) {
    return { start, tokens: names[axis]?.slice(start, stop) ?? null, cut: {} };
  }

  find({ names, axis, text }) {
    const asked = text.toLowerCase();
    const found = [];
    (names[axis] ?? []).forEach((name, i) => name.toLowerCase().includes(asked) && found.push(i));
    return { count: found.length, places: { data: Int32Array.from(found.slice(0, 1000)) } };
  }

  small({ of }) {
    const [H, r, c] = of.maps.shape;
    const by = Math.ceil(Math.max(r, c) / 32);
    const shape = [H, Math.ceil(r / by), Math.ceil(c / by)];
    const data = new Float32Array(shape[0] * shape[1] * shape[2]);
    for (let h = 0; h < H; h++)
      data.set(
        pooled(of.maps.data.subarray(h * r * c), r, c, 0, 0, r, c, by, "max").data,
        h * shape[1] * shape[2],
      );
    return { word: "exact", maps: { data, shape } };
  }

  scores({ of, about }) {
    const found = { kinds: about.kinds ?? about.heads.map(() => "-") };
    for (const [name, array] of Object.entries(of))
      if (name.startsWith("score ")) found[name.slice(6)] = array;
    return found;
  }

  /** A tile pooled from the map of the file, or its cells repeated where they are larger. */
  tile({ of, about, place, reduce }) {
    const [head, level, row, column] = place.split(",").map(Number);
    const [, r, c] = of.maps.shape;
    const map = of.maps.data.subarray(about.heads.indexOf(head) * r * c);
    const [, N, M] = about.shape;
    const size = 2 ** level;
    const rows = Math.min(SIDE, Math.ceil(N / size) - row * SIDE);
    const columns = Math.min(SIDE, Math.ceil(M / size) - column * SIDE);
    const word =
      of.cell > size
        ? `max of ${of.cell} × ${of.cell}, all that this file has`
        : of.half
          ? "half precision"
          : "exact";
    if (size >= of.cell) {
      const by = size / of.cell;
      const found = pooled(
        map,
        r,
        c,
        row * SIDE * by,
        column * SIDE * by,
        rows * by,
        columns * by,
        by,
        reduce,
      );
      return { word, tile: { data: found.data, shape: [found.rows, found.columns] } };
    }
    const data = new Float32Array(rows * columns);
    for (let i = 0; i < rows; i++)
      for (let j = 0; j < columns; j++) {
        const [y, x] = [
          ((row * SIDE + i) * size) / of.cell,
          ((column * SIDE + j) * size) / of.cell,
        ].map(Math.floor);
        data[i * columns + j] = map[y * c + x];
      }
    return { word, tile: { data, shape: [rows, columns] } };
  }

  row({ of, about, heads, at }) {
    return this.line(of, about, Number(heads), Number(at), true);
  }

  column({ of, about, heads, at }) {
    return this.line(of, about, Number(heads), Number(at), false);
  }

  /** A row or a column, of single weights or of cells. */
  line(of, about, head, at, isRow) {
    const [, r, c] = of.maps.shape;
    const [, N, M] = about.shape;
    const map = of.maps.data.subarray(about.heads.indexOf(head) * r * c);
    const data = new Float32Array(isRow ? M : N);
    const mine = Math.floor(at / of.cell);
    for (let i = 0; i < data.length; i++) {
      const other = Math.floor(i / of.cell);
      data[i] = (isRow ? map[mine * c + other] : map[other * c + mine]) || 0;
    }
    if (isRow && of.cell > 1) this.exactly(of, about, head, at, data);
    return {
      word: of.cell > 1 ? "pooled" : of.half ? "half precision" : "exact",
      weights: { data, shape: [data.length] },
    };
  }

  /** Put in what the file knows of a row's largest weights. */
  exactly(of, about, head, query, data) {
    const n = of.rows.data.indexOf(query);
    if (n < 0) return;
    const [, rows, k] = of.keys.shape;
    const start = (about.heads.indexOf(head) * rows + n) * k;
    for (let i = 0; i < k; i++)
      if (of.keys.data[start + i] >= 0) data[of.keys.data[start + i]] = of.weights.data[start + i];
  }

  cell({ of, about, head, query, key }) {
    const { weights, word } = this.line(of, about, Number(head), Number(query), true);
    return { filed: true, word, weight: weights.data[key], proof: about.proof, why: about.why };
  }

  part({ of, about, head, queries, keys }) {
    const [q, k] = [queries, keys].map((text) => text.split("-").map(Number));
    const data = new Float32Array((q[1] - q[0]) * (k[1] - k[0]));
    for (let n = q[0]; n < q[1]; n++)
      data.set(
        this.line(of, about, Number(head), n, true).weights.data.subarray(...k),
        (n - q[0]) * (k[1] - k[0]),
      );
    return { word: "", weights: { data, shape: [q[1] - q[0], k[1] - k[0]] } };
  }
}

/** A part of a map pooled in squares of `by`; NaN where all of it is hidden. */
function pooled(map, high, wide, top, left, rows, columns, by, reduce) {
  const shape = [
    Math.ceil(Math.min(rows, high - top) / by),
    Math.ceil(Math.min(columns, wide - left) / by),
  ];
  const data = new Float32Array(shape[0] * shape[1]);
  for (let i = 0; i < shape[0]; i++)
    for (let j = 0; j < shape[1]; j++) {
      let [sum, most, count, seen] = [0, 0, 0, false];
      for (let y = top + i * by; y < Math.min(top + (i + 1) * by, high); y++)
        for (let x = left + j * by; x < Math.min(left + (j + 1) * by, wide); x++) {
          const weight = map[y * wide + x];
          count++;
          if (weight !== weight) continue;
          seen = true;
          sum += weight;
          if (weight > most) most = weight;
        }
      data[i * shape[1] + j] = !seen ? NaN : reduce === "max" ? most : sum / count;
    }
  return { data, rows: shape[0], columns: shape[1] };
}

mount(/** @type {HTMLElement} */ (document.getElementById("heedful")), new Filed(await parts()));
