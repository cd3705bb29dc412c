// All heads: a small picture each, and a scatter of any two of their scores.

import { painted, table } from "./colours.js";
import { html, signal, useEffect, useRef, useState } from "./html.js";
import { Term } from "./terms.js";
import { number } from "./wire.js";

// one colour a kind, distinct also for the colour-blind (Okabe and Ito 2008)
export const KINDS = {
  previous: "#0072b2",
  sink: "#8c8c8c",
  self: "#009e73",
  local: "#56b4e9",
  broad: "#c9b458",
  induction: "#d55e00",
  duplicate: "#cc79a7",
  "-": "#6b6b6b",
};
const SCORES = [
  "previous",
  "sink",
  "self",
  "local",
  "broad",
  "induction",
  "duplicate",
  "entropy",
  "distance",
];

/** What is known of the heads of each call: small pictures and scores, asked for call after call. */
export class Heads {
  constructor(source, state) {
    this.source = source;
    this.state = state;
    this.known = new globalThis.Map();
    this.version = signal(0);
  }

  /** Of the call at a place, what is known so far. */
  of(call) {
    this.version.value;
    const where = [...this.state.at.value.slice(0, 2), call].join(".");
    if (!this.known.has(where)) {
      const about = { small: null, scores: null };
      this.known.set(where, about);
      this._ask("small", where, about).then(() => this._ask("scores", where, about));
    }
    return this.known.get(where);
  }

  async _ask(question, where, about) {
    try {
      about[question] = await this.source.ask(question, { call: where });
    } catch (error) {
      about.failed = String(/** @type {any} */ (error).message ?? error);
    }
    this.version.value++;
  }

  /** Every head of the text with its scores, as far as they are known. */
  all() {
    const found = [];
    this.state.calls.value.forEach((about, call) => {
      const known = this.of(call);
      about.heads.forEach((head, i) => {
        const scores = known.scores;
        const values = Object.fromEntries(
          SCORES.map((name) => [name, scores?.[name] ? scores[name].data[i] : NaN]),
        );
        found.push({ call, head, i, about, kind: scores?.kinds[i] ?? "", values, known });
      });
    });
    return found;
  }
}

export function HeadsPane({ state, heads }) {
  const [view, setView] = useState("grid");
  const [sort, setSort] = useState("layer");
  const [kind, setKind] = useState("");
  let all = heads.all();
  const kinds = [...new Set(all.map((one) => one.kind).filter(Boolean))];
  if (kind) all = all.filter((one) => one.kind === kind);
  if (sort !== "layer")
    all = [...all].sort((a, b) => (b.values[sort] || -1) - (a.values[sort] || -1));
  return html`<section class="heads" aria-label="Heads">
    <div class="bar"><h2>${Term("Heads", "head")}</h2>
      <div class="choice" role="group" aria-label="How heads are shown">
        ${["grid", "scatter"].map((name) => html`<button aria-pressed=${view === name} onClick=${() => setView(name)}>${name}</button>`)}
      </div></div>
    ${
      view === "grid"
        ? html`<label>sort <select value=${sort} onChange=${(e) => setSort(e.target.value)}>
      ${["layer", ...SCORES].map((name) => html`<option>${name}</option>`)}</select></label>`
        : null
    }
    <label>kind <select value=${kind} onChange=${(e) => setKind(e.target.value)}>
      <option value="">all</option>${kinds.map((name) => html`<option value=${name}>${name === "-" ? "none" : name}</option>`)}</select></label>
    ${
      view === "grid"
        ? html`<${Grid} state=${state} all=${all} rows=${sort === "layer" && !kind} />`
        : html`<${Scatter} state=${state} all=${all} />`
    }
    <${Said} state=${state} all=${all} />
  </section>`;
}

/** The chosen head in words. */
function Said({ state, all }) {
  const mine = all.find((one) => one.call === state.at.value[2] && one.head === state.head.value);
  if (!mine) return null;
  const known = SCORES.filter((name) => Number.isFinite(mine.values[name]));
  return html`<div class="said"><b>${title(mine)}</b> ${mine.kind && mine.kind !== "-" ? html`<span class="kind" style=${`--kind:${KINDS[mine.kind]}`}>${Term(mine.kind)}</span>` : null}
    <dl>${known.map((name) => html`<div><dt>${Term(name)}</dt><dd>${mine.values[name].toFixed(2)}</dd></div>`)}</dl></div>`;
}

export const title = ({ about, head }) =>
  `${about.layer === null ? about.name : `layer ${about.layer}`}, head ${head}`;

/** One canvas with all small pictures; a row is a call. */
function Grid({ state, all, rows }) {
  const canvas = useRef(null);
  const many = Math.max(...state.calls.value.map((call) => call.heads.length), 1);
  const across = rows ? many : Math.min(many, 12);
  const size = Math.max(10, Math.min(34, Math.floor((300 - 22) / across)));
  const places = all.map((one, n) => ({
    ...one,
    x: (rows ? one.i : n % across) * size + 22,
    y: (rows ? one.call : Math.floor(n / across)) * size,
  }));
  const high = Math.max(...places.map((one) => one.y), 0) + size;
  useEffect(() => draw(canvas.current, places, size, state, rows));
  const at = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return places.find((one) => x >= one.x && x < one.x + size && y >= one.y && y < one.y + size);
  };
  return html`<div class="grid"><canvas ref=${canvas} width=${across * size + 22} height=${high} style=${`height:${high}px;width:${across * size + 22}px`}
    tabindex="0" role="application" aria-label="Small pictures of all heads; arrow keys choose one"
    onClick=${(e) => {
      const one = at(e);
      if (one) state.show(one.call, one.head);
    }}
    onPointerMove=${(e) => {
      const one = at(e);
      e.target.title = one
        ? title(one) + (one.kind && one.kind !== "-" ? `, ${one.kind}` : "")
        : "";
    }}
    onKeyDown=${(e) => step(e, state, places, across)} /></div>`;
}

function step(event, state, places, across) {
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[event.key];
  if (!by) return;
  event.preventDefault();
  event.stopPropagation();
  const now = places.findIndex(
    (one) => one.call === state.at.value[2] && one.head === state.head.value,
  );
  const next = places[now + by];
  if (next) state.show(next.call, next.head);
}

function draw(canvas, places, size, state, rows) {
  if (!canvas) return;
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(parseFloat(canvas.style.width) * ratio);
  canvas.height = Math.round(parseFloat(canvas.style.height) * ratio);
  const context = canvas.getContext("2d");
  const look = getComputedStyle(canvas);
  const dark = look.getPropertyValue("--dark").trim() === "1";
  const colours = table(dark);
  context.scale(ratio, ratio);
  context.font = "10px system-ui, sans-serif";
  context.textBaseline = "middle";
  const named = new Set();
  for (const one of places) {
    const inner = size - 3;
    const small = one.known.small;
    if (rows && !named.has(one.call)) {
      named.add(one.call);
      context.fillStyle = look.getPropertyValue("--quiet");
      context.fillText(String(one.about.layer ?? one.call), 2, one.y + size / 2);
    }
    if (small) {
      const [, r, c] = small.maps.shape;
      const data = small.maps.data.subarray(one.i * r * c, (one.i + 1) * r * c);
      let highest = 0;
      for (let i = 0; i < data.length; i++) if (i % c && data[i] > highest) highest = data[i]; // without the sink
      const image = new OffscreenCanvas(c, r);
      const pixels = painted(data, colours, highest || 1, "sqrt", 0);
      image
        .getContext("2d")
        .putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), c, r), 0, 0);
      context.imageSmoothingEnabled = false;
      context.drawImage(image, one.x + 1, one.y + 1, inner, inner);
    } else {
      context.fillStyle = look.getPropertyValue("--line");
      context.fillRect(one.x + 1, one.y + 1, inner, inner);
    }
    if (one.kind && one.kind !== "-") {
      context.fillStyle = KINDS[one.kind] ?? KINDS["-"];
      context.fillRect(one.x + 1, one.y + size - 3, inner, 2);
    }
    if (one.call === state.at.value[2] && one.head === state.head.value) {
      context.strokeStyle = look.getPropertyValue("--mark");
      context.lineWidth = 2;
      context.strokeRect(one.x, one.y, size - 1, size - 1);
    }
  }
}

function Scatter({ state, all }) {
  const [x, setX] = useState("previous");
  const [y, setY] = useState("sink");
  const points = all.filter(
    (one) => Number.isFinite(one.values[x]) && Number.isFinite(one.values[y]),
  );
  const most = (name) =>
    ["entropy", "distance"].includes(name)
      ? Math.max(...points.map((one) => one.values[name]), 1e-9)
      : 1;
  const [mx, my] = [most(x), most(y)];
  const pick = (value, set, label) =>
    html`<select aria-label=${label} value=${value} onChange=${(e) => set(e.target.value)}>${SCORES.map((name) => html`<option>${name}</option>`)}</select>`;
  return html`<div class="scatter">
    <div>${pick(y, setY, "upwards")} against ${pick(x, setX, "across")}</div>
    <svg viewBox="0 0 280 250" role="group" aria-label=${`${y} against ${x}, a point a head`}>
      <path d="M30 8V220H272" class="axes" />
      <text x="272" y="238" text-anchor="end">${x} → ${mx === 1 ? "1" : mx.toFixed(1)}</text>
      <text x="4" y="12">${my === 1 ? "1" : my.toFixed(1)}</text><text x="10" y="224">0</text>
      ${points.map((one) => {
        const mine = one.call === state.at.value[2] && one.head === state.head.value;
        return html`<circle cx=${30 + (one.values[x] / mx) * 240} cy=${220 - (one.values[y] / my) * 208} r=${mine ? 6 : 4}
          fill=${KINDS[one.kind] ?? KINDS["-"]} class=${mine ? "mine" : ""} tabindex="0" role="button" aria-label=${title(one)}
          onClick=${() => state.show(one.call, one.head)} onKeyDown=${(e) => e.key === "Enter" && state.show(one.call, one.head)}><title>${title(one)}${one.kind ? `, ${one.kind}` : ""}</title></circle>`;
      })}
    </svg>
    <ul class="legend">${[...new Set(points.map((one) => one.kind))].map((kind) => html`<li style=${`--kind:${KINDS[kind] ?? KINDS["-"]}`}>${kind === "-" || !kind ? "none" : kind}</li>`)}</ul></div>`;
}
