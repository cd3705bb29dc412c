// Saves the map as PNG or SVG, and the weights in view as CSV. In SVG, labels are text.
import { callTitle } from "../heads/scores.js";
import { ending, lowest, SCALES } from "./scale.js";
import { SvgPen } from "./svg_canvas.js";
import { gutter, inView } from "./viewport.js";

/** @import { State } from "../state.js" */
/** @import { Axis, CallAbout, Side, Source } from "../types.js" */
/** @import { Painter } from "./painter.js" */

const LARGEST_CSV = 1 << 20; // weights
const PAGE = 4096; // tokens per request
const SHARP = 2; // minimum number of PNG pixels per CSS pixel
const [TITLE, FOOT, LINE] = [26, 34, 16];

/** @param {"png" | "svg" | "csv"} kind @param {State} state @param {Source} source @param {Painter[]} painters the maps from left to right */
export async function saveMap(kind, state, source, painters) {
  const name = `${callTitle(state.call.value)} head ${state.head.value}`.replace(/[^\w.]+/g, "-");
  if (kind === "csv") {
    const maps = painters.filter(({ side }) => !side.isDifference);
    const parts = await Promise.all(maps.map(({ side, place }) => csv(source, side, place)));
    const titles = maps.map(({ side }) => [titleOf(state, side)]);
    saveCsv(
      state.hasValueNorms.value ? `${name}-times-value-norms` : name,
      maps.length > 1 ? parts.flatMap((part, i) => [titles[i], ...part]) : parts[0],
    );
  } else if (kind === "svg") {
    const pen = new SvgPen(painters[0].ink);
    const [width, height] = sheet(/** @type {any} */ (pen), state, painters, 1);
    download(new Blob([pen.text(width, height)], { type: "image/svg+xml" }), `${name}.svg`);
  } else {
    const canvas = document.createElement("canvas");
    const ratio = Math.max(SHARP, painters[0].ratio);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const [width, height] = sheet(null, state, painters, ratio);
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    context.scale(ratio, ratio);
    sheet(context, state, painters, ratio);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve));
    if (blob) download(blob, `${name}.png`);
  }
}

/** Save rows of a table; texts are quoted, and NaN is an empty field. @param {string} name @param {(string | number)[][]} rows */
export function saveCsv(name, rows) {
  const fields = rows.map((row) =>
    row
      .map((field) =>
        typeof field === "string" ? quoted(field) : Number.isNaN(field) ? "" : field,
      )
      .join(","),
  );
  download(new Blob([`${fields.join("\n")}\n`], { type: "text/csv" }), `${name}.csv`);
}

/** Save the recording of a text that the model continued, for `heedful.load`. @param {State} state @param {Source} source */
export async function saveRecording(state, source) {
  const blob = await source.generation?.recordingFile(state.callId.value);
  const [recording] = state.path.value;
  const name = state.about.recordings[recording].name.replace(/[^\w]+/g, "-");
  if (blob) download(blob, `${name}.safetensors`);
}

/** @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * Draw all maps side by side, with titles above and a legend below. Return the size.
 * @param {CanvasRenderingContext2D | null} pen null: compute only the size
 * @param {State} state @param {Painter[]} painters @param {number} ratio
 */
function sheet(pen, state, painters, ratio) {
  const maps = painters.map((painter) => cropped(painter));
  const mapWidth = maps.reduce((sum, map) => sum + map.width, 0);
  const width = Math.ceil(Math.max(360, mapWidth));
  const lines = wrapped(caption(state, painters[0]), Math.floor((width - 24) / 6.2));
  const top = Math.max(...maps.map((map) => map.height)) + TITLE;
  const difference = painters.find(({ side }) => side.isDifference);
  const foot = FOOT + (difference ? 18 : 0);
  const height = Math.ceil(top + foot + lines.length * LINE + 6);
  if (!pen) return [width, height];
  const { ink } = painters[0];
  pen.fillStyle = ink.ground;
  pen.fillRect(0, 0, width, height);
  let left = 0;
  for (const [i, map] of maps.entries()) {
    const title = titleOf(state, painters[i].side);
    writeText(pen, title, left + 12, 18, ink.text, "600 13px system-ui, sans-serif");
    drawMap(pen, painters[i], map, left, TITLE, ratio);
    left += map.width;
  }
  legend(pen, state, painters[0], top + 12);
  if (difference) legend(pen, state, difference, top + 30);
  for (const [i, line] of lines.entries())
    writeText(pen, line, 12, top + foot + 6 + i * LINE, ink.quiet, "11px system-ui, sans-serif");
  return [width, height];
}

/** The part of a painter's canvas that is not empty. @param {Painter} painter */
function cropped(painter) {
  const { place, canvas } = painter;
  const gutters = gutter(canvas.clientWidth, canvas.clientHeight);
  const [x, y] = [place.left - gutters.left, place.top - gutters.top];
  return { x, y, width: gutters.left + place.wide + 14, height: gutters.top + place.high + 10 };
}

/** @param {CanvasRenderingContext2D} pen @param {Painter} painter @param {any} map @param {number} ratio */
function drawMap(pen, painter, map, /** @type {number} */ left, /** @type {number} */ top, ratio) {
  const [width, height] = [painter.canvas.clientWidth, painter.canvas.clientHeight];
  if (pen instanceof SvgPen) {
    pen.save();
    pen.out.push(`<g transform="translate(${left - map.x} ${top - map.y})">`);
    painter.draw(pen, painter.place, width, height, 1);
    pen.out.push("</g>");
    pen.restore();
    return;
  }
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  painter.draw(context, painter.place, width, height, ratio);
  const from = [map.x, map.y, map.width, map.height].map((n) => n * ratio);
  pen.drawImage(canvas, from[0], from[1], from[2], from[3], left, top, map.width, map.height);
}

/** @param {CanvasRenderingContext2D} pen @param {State} state @param {Painter} painter @param {number} y */
function legend(pen, state, painter, y) {
  const { highest, kind, colours, hasNaN } = painter.legend.value;
  const small = "11px system-ui, sans-serif";
  const start = lowest(kind, highest);
  writeText(pen, start, 12, y + 9, painter.ink.text, small);
  const left = 18 + painter.measure(start, 11);
  for (let i = 0; i < 64; i++) {
    const colour = colours[i * 4 + 2];
    pen.fillStyle = `rgb(${colour & 255},${(colour >> 8) & 255},${(colour >> 16) & 255})`;
    pen.fillRect(left + i * 2, y, 2.2, 10);
  }
  const words = `${ending(highest)}${painter.scale.isCut.value ? " and above" : ""} · ${unit(state)}${SCALES[kind]}${state.sink.value ? "" : ", first key excluded"}`;
  writeText(pen, words, left + 134, y + 9, painter.ink.text, small);
  const right = left + 134 + painter.measure(words, 11) + 18;
  pen.fillStyle = painter.hatching;
  pen.fillRect(right, y - 1, 12, 12);
  writeText(pen, "masked", right + 18, y + 9, painter.ink.text, small);
  if (!hasNaN) return;
  const last = right + 36 + painter.measure("masked", 11);
  pen.fillStyle = `rgb(${colours[256] & 255},${(colours[256] >> 8) & 255},${(colours[256] >> 16) & 255})`;
  pen.fillRect(last, y - 1, 12, 12);
  writeText(pen, "not a number", last + 18, y + 9, painter.ink.text, small);
}

/** @param {CanvasRenderingContext2D} pen @param {string} text @param {number} x @param {number} y @param {string} colour @param {string} font */
const writeText = (pen, text, x, y, colour, font) => {
  pen.font = font;
  pen.fillStyle = colour;
  pen.textAlign = "left";
  pen.textBaseline = "alphabetic";
  pen.fillText(text, x, y);
};

/** @param {State} state @param {Side} side */
const titleOf = (state, side) =>
  side.isDifference
    ? "second − first"
    : `${callTitle(side.call.value)}, head ${side.head.value}${state.second.value ? ` · ${nameOf(state, side)}` : ""}`;

/** What the numbers are, if they are not weights. @param {State} state */
const unit = (state) => (state.hasValueNorms.value ? "weight × ‖value‖, " : "");

/** @param {State} state @param {Side} side */
function nameOf(state, side) {
  const [recording, text] = side.callId.value.split(".").map(Number);
  const { name, texts } = state.about.recordings[recording];
  return texts.length > 1 ? `${name} · ${texts[text].label}` : name;
}

/** The source of the numbers, their range and their precision. @param {State} state @param {Painter} painter */
function caption(state, painter) {
  const [q, k] = inView(painter.place).map(([from, to]) => `${from}–${to - 1}`);
  return `${nameOf(state, state)} · ${unit(state)}queries ${q}, keys ${k} · ${painter.caption.value} · ${callText(state.call.value)} · heedful`;
}

/** The proof and the layout of a call; for a guessed layout, the reason. @param {CallAbout} call */
const callText = ({ proof, layout, why }) =>
  `${proof} · ${layout === "guessed" ? `warning: guessed layout: ${why}` : `layout ${layout}`}`;

/** Wrap a text into lines. @param {string} text @param {number} length */
function wrapped(text, length) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const last = lines[lines.length - 1];
    if (last && last.length + word.length + 1 > length) lines.push(word);
    else lines[lines.length - 1] = last ? `${last} ${word}` : word;
  }
  return lines;
}

/** The weights of a map in view as rows, with the names of their tokens. @param {Source} source @param {Side} side @param {import("./viewport.js").Place} place @returns {Promise<(string | number)[][]>} */
async function csv(source, side, place) {
  const [queries, keys] = inView(place);
  const [rows, columns] = [queries[1] - queries[0], keys[1] - keys[0]];
  if (rows * columns > LARGEST_CSV)
    throw new Error(
      `${rows.toLocaleString("en")} × ${columns.toLocaleString("en")} weights are in view; expected at most ${LARGEST_CSV.toLocaleString("en")}: zoom in`,
    );
  const [call, head] = [side.callId.value, side.head.value];
  const [{ weights, seen }, queryNames, keyNames] = await Promise.all([
    source.ask("part", { call, head, queries: queries.join("-"), keys: keys.join("-") }),
    tokenNames(source, call, "queries", queries),
    tokenNames(source, call, "keys", keys),
  ]);
  const cell = (/** @type {number} */ i) => (seen.data[i] ? weights.data[i] : Number.NaN);
  const lines = queryNames.map((name, n) => [
    queries[0] + n,
    name,
    ...Array.from({ length: columns }, (_, m) => cell(n * columns + m)),
  ]);
  return [["query", "token", ...keyNames.map((name, i) => `${keys[0] + i} ${name}`)], ...lines];
}

/** A text as a field of a CSV file; "'" keeps spreadsheets from computing it as a formula. @param {string} text */
export const quoted = (text) =>
  `"${text.replace(/^(?=[=+\-@\t\r\n])/, "'").replaceAll('"', '""')}"`;

/** @param {Source} source @param {string} call @param {Axis} axis @param {[number, number]} range @returns {Promise<string[]>} */
async function tokenNames(source, call, axis, [start, stop]) {
  const names = [];
  for (let first = start; first < stop; first += PAGE) {
    const end = Math.min(stop, first + PAGE);
    const { tokens } = await source.ask("tokens", { call, axis, start: first, stop: end });
    names.push(...(tokens ?? Array(end - first).fill("")));
  }
  return names;
}
