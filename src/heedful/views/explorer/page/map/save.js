// What is shown, as a file: a picture (PNG, or SVG with text as text), or the cells in view as CSV.

import { callTitle } from "../heads/scores.js";
import { ending, lowest, SCALES } from "./scale.js";
import { SvgPen } from "./svg_canvas.js";
import { gutter, inView } from "./viewport.js";

/** @import { State } from "../state.js" */
/** @import { Axis, CallAbout, Side, Source } from "../types.js" */
/** @import { Painter } from "./painter.js" */

const MOST = 1 << 20; // weights in one table
const PAGE = 4096; // tokens in one answer
const SHARP = 2; // pixels of a PNG for one of the screen, at least
const [TITLE, FOOT, LINE] = [26, 34, 16];

/**
 * @param {"png" | "svg" | "csv"} kind @param {State} state @param {Source} source
 * @param {Painter[]} painters the maps from left to right
 */
export async function saved(kind, state, source, painters) {
  const name = `${callTitle(state.call.value)} head ${state.head.value}`.replace(/[^\w.]+/g, "-");
  if (kind === "csv") {
    const text = await csv(state, source, painters[0]);
    give(new Blob([text], { type: "text/csv" }), `${name}.csv`);
  } else if (kind === "svg") {
    const pen = new SvgPen(painters[0].ink);
    const [width, height] = sheet(/** @type {any} */ (pen), state, painters, 1);
    give(new Blob([pen.text(width, height)], { type: "image/svg+xml" }), `${name}.svg`);
  } else {
    const canvas = document.createElement("canvas");
    const ratio = Math.max(SHARP, painters[0].ratio);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const [width, height] = sheet(null, state, painters, ratio);
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    context.scale(ratio, ratio);
    sheet(context, state, painters, ratio);
    const blob = await new Promise((done) => canvas.toBlob(done));
    if (blob) give(blob, `${name}.png`);
  }
}

/** The recording of a text that the model continued, as `heedful.load` opens it. @param {State} state @param {Source} source */
export async function recorded(state, source) {
  const blob = await source.generation?.file(state.where.value);
  const [recording] = state.at.value;
  const name = state.about.recordings[recording].name.replace(/[^\w]+/g, "-");
  if (blob) give(blob, `${name}.safetensors`);
}

/** @param {Blob} blob @param {string} name */
function give(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * All maps beside each other with their names above and one legend under them. Returns the size.
 * @param {CanvasRenderingContext2D | null} pen null: the size alone
 * @param {State} state @param {Painter[]} painters @param {number} ratio
 */
function sheet(pen, state, painters, ratio) {
  const maps = painters.map((painter) => cropped(painter));
  const wide = maps.reduce((sum, map) => sum + map.width, 0);
  const width = Math.ceil(Math.max(360, wide));
  const foot = caption(state, painters[0]);
  const lines = wrapped(foot, Math.floor((width - 24) / 6.2));
  const top = Math.max(...maps.map((map) => map.height)) + TITLE;
  const height = Math.ceil(top + FOOT + lines.length * LINE + 6);
  if (!pen) return [width, height];
  const { ink } = painters[0];
  pen.fillStyle = ink.ground;
  pen.fillRect(0, 0, width, height);
  let left = 0;
  for (const [i, map] of maps.entries()) {
    const title = titleOf(state, painters[i].side);
    write(pen, title, left + 12, 18, ink.text, "600 13px system-ui, sans-serif");
    placedAt(pen, painters[i], map, left, TITLE, ratio);
    left += map.width;
  }
  legend(pen, state, painters[0], top + 12);
  for (const [i, line] of lines.entries())
    write(pen, line, 12, top + FOOT + 6 + i * LINE, ink.quiet, "11px system-ui, sans-serif");
  return [width, height];
}

/** The part of a painter's canvas that has something. @param {Painter} painter */
function cropped(painter) {
  const { place, canvas } = painter;
  const names = gutter(canvas.clientWidth, canvas.clientHeight);
  const [x, y] = [place.left - names.left, place.top - names.top];
  return { x, y, width: names.left + place.wide + 14, height: names.top + place.high + 10 };
}

/** @param {CanvasRenderingContext2D} pen @param {Painter} painter @param {any} map @param {number} ratio */
function placedAt(pen, painter, map, /** @type {number} */ left, /** @type {number} */ top, ratio) {
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
  const { highest, kind, colours } = painter.legend.value;
  const small = "11px system-ui, sans-serif";
  const start = lowest(kind, highest);
  write(pen, start, 12, y + 9, painter.ink.text, small);
  const left = 18 + painter.measure(start, 11);
  for (let i = 0; i < 64; i++) {
    const colour = colours[i * 4 + 2];
    pen.fillStyle = `rgb(${colour & 255},${(colour >> 8) & 255},${(colour >> 16) & 255})`;
    pen.fillRect(left + i * 2, y, 2.2, 10);
  }
  const words = `${ending(highest)}${painter.scale.isCut.value ? " and more" : ""} · ${SCALES[kind]}${state.sink.value ? "" : ", first key left out"}`;
  write(pen, words, left + 134, y + 9, painter.ink.text, small);
  const right = left + 134 + painter.measure(words, 11) + 18;
  pen.fillStyle = painter.hatching;
  pen.fillRect(right, y - 1, 12, 12);
  write(pen, "hidden", right + 18, y + 9, painter.ink.text, small);
}

/** @param {CanvasRenderingContext2D} pen @param {string} text @param {number} x @param {number} y @param {string} colour @param {string} font */
const write = (pen, text, x, y, colour, font) => {
  pen.font = font;
  pen.fillStyle = colour;
  pen.textAlign = "left";
  pen.textBaseline = "alphabetic";
  pen.fillText(text, x, y);
};

/** @param {State} state @param {Side} side */
const titleOf = (state, side) =>
  `${callTitle(side.call.value)}, head ${side.head.value}${state.second.value ? ` · ${nameOf(state, side)}` : ""}`;

/** @param {State} state @param {Side} side */
function nameOf(state, side) {
  const [recording, text] = side.where.value.split(".").map(Number);
  const { name, texts } = state.about.recordings[recording];
  return texts.length > 1 ? `${name} · ${texts[text].label}` : name;
}

/** Where the numbers are from and what they are. @param {State} state @param {Painter} painter */
function caption(state, painter) {
  const [q, k] = inView(painter.place).map(([from, to]) => `${from}–${to - 1}`);
  return `${nameOf(state, state)} · queries ${q}, keys ${k} · ${painter.word.value} · ${known(state.call.value)} · heedful`;
}

/** What is certain of a call; of a guess, why it is one. @param {CallAbout} call */
const known = ({ proof, layout, why }) =>
  `${proof} · ${layout === "guessed" ? `warning: guessed layout: ${why}` : `layout ${layout}`}`;

/** @param {string} text @param {number} letters */
function wrapped(text, letters) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const last = lines[lines.length - 1];
    if (last && last.length + word.length + 1 > letters) lines.push(word);
    else lines[lines.length - 1] = last ? `${last} ${word}` : word;
  }
  return lines;
}

/** The weights in view with the names of their tokens. @param {State} state @param {Source} source @param {Painter} painter */
async function csv(state, source, painter) {
  const [queries, keys] = inView(painter.place);
  const [rows, columns] = [queries[1] - queries[0], keys[1] - keys[0]];
  if (rows * columns > MOST)
    throw new Error(
      `${rows.toLocaleString("en")} × ${columns.toLocaleString("en")} weights are in view: zoom in until there are at most ${MOST.toLocaleString("en")}`,
    );
  const call = state.where.value;
  const about = { call, head: state.head.value, queries: queries.join("-"), keys: keys.join("-") };
  const [{ weights, seen }, down, across] = await Promise.all([
    source.ask("part", about),
    named(source, call, "queries", queries),
    named(source, call, "keys", keys),
  ]);
  const lines = [
    ["query", "token", ...across.map((name, i) => quoted(`${keys[0] + i} ${name}`))].join(","),
  ];
  const told = (/** @type {number} */ i) => (seen.data[i] ? weights.data[i] : ""); // hidden
  for (let n = 0; n < rows; n++) {
    const row = Array.from({ length: columns }, (_, m) => told(n * columns + m));
    lines.push([queries[0] + n, quoted(down[n]), ...row].join(","));
  }
  return `${lines.join("\n")}\n`;
}

const quoted = (/** @type {string} */ text) => `"${text.replaceAll('"', '""')}"`;

/** @param {Source} source @param {string} call @param {Axis} axis @param {[number, number]} range @returns {Promise<string[]>} */
async function named(source, call, axis, [start, stop]) {
  const found = [];
  for (let at = start; at < stop; at += PAGE) {
    const end = Math.min(stop, at + PAGE);
    const { tokens } = await source.ask("tokens", { call, axis, start: at, stop: end });
    found.push(...(tokens ?? Array(end - at).fill("")));
  }
  return found;
}
