// A sequential colour scale in OKLCH with linear lightness: perceptually uniform, also for the
// colour-blind and in grey print. Larger weights are darker on a light page, lighter on a dark one.
// Colour space: Björn Ottosson 2020, https://bottosson.github.io/posts/oklab/

// stops: lightness, chroma, hue
const LIGHT = [
  [0.975, 0.012, 230],
  [0.8, 0.075, 228],
  [0.6, 0.12, 245],
  [0.42, 0.13, 268],
  [0.23, 0.09, 285],
];
const DARK = [
  [0.25, 0.04, 275],
  [0.42, 0.1, 275],
  [0.62, 0.115, 225],
  [0.8, 0.12, 170],
  [0.96, 0.11, 105],
];

const NOT_A_NUMBER = { light: [0.62, 0.23, 350], dark: [0.72, 0.2, 350] };

/** 256 colours as RGBA words, then the colour of weights that are not numbers. @param {boolean} dark */
export function table(dark) {
  const stops = dark ? DARK : LIGHT;
  const colours = new Uint8ClampedArray(257 * 4);
  for (let i = 0; i < 256; i++) {
    const share = i / 255;
    const lightness = i === 255 ? stops[4][0] : stops[0][0] + (stops[4][0] - stops[0][0]) * share;
    const stop = Math.max(
      0,
      stops.findIndex(([other]) => (dark ? other >= lightness : other <= lightness)) - 1,
    );
    const [low, high] = [stops[stop], stops[Math.min(stop + 1, 4)]];
    const part = high[0] === low[0] ? 0 : (lightness - low[0]) / (high[0] - low[0]);
    const [, chroma, hue] = low.map((value, n) => value + (high[n] - value) * part);
    colours.set([...rgb(lightness, chroma, hue), 255], i * 4);
  }
  return withNotANumber(colours, dark);
}

/** 256 colours from orange (negative) to blue (positive), then that of weights that are not numbers. @param {boolean} dark */
export function diverging(dark) {
  const [middle, end] = dark ? [0.25, 0.82] : [0.975, 0.42];
  const colours = new Uint8ClampedArray(257 * 4);
  for (let i = 0; i < 256; i++) {
    const amount = Math.abs(i - 127.5) / 127.5;
    const colour = rgb(middle + (end - middle) * amount, 0.15 * amount, i < 128 ? 55 : 255);
    colours.set([...colour, 255], i * 4);
  }
  return withNotANumber(colours, dark);
}

/** @param {Uint8ClampedArray} colours @param {boolean} dark */
function withNotANumber(colours, dark) {
  const [lightness, chroma, hue] = NOT_A_NUMBER[dark ? "dark" : "light"];
  colours.set([...rgb(lightness, chroma, hue), 255], 256 * 4);
  return new Uint32Array(colours.buffer);
}

/** Convert OKLCH to sRGB, 0 to 255. */
function rgb(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map(
    (part) =>
      255 * (part <= 0.0031308 ? 12.92 * part : 1.055 * Math.max(part, 0) ** (1 / 2.4) - 0.055),
  );
}

/** The position of a weight on the scale, 0 to 1. @param {number} weight @param {number} highest @param {import("../types.js").Colours} kind */
export function share(weight, highest, kind) {
  if (kind === "difference") return Math.min(1, Math.max(0, 0.5 + weight / highest / 2));
  const part = Math.min(1, Math.max(0, weight / highest));
  if (kind === "sqrt") return Math.sqrt(part);
  if (kind === "log") return Math.max(0, 1 + Math.log10(Math.max(part, 1e-9)) / 4); // four decades
  return part;
}

/** Round a weight up to the next 1, 2 or 5 · 10ⁿ, so that small changes of the largest weight keep the scale. */
export function round(highest) {
  if (!(highest > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(highest));
  for (const step of [1, 2, 5, 10]) if (highest <= step * ten * 1.0001) return step * ten;
  return 1;
}

/** The pixels of a tile. @param {Float32Array} data weights; NaN: masked; Infinity: not a number @param {Uint32Array} colours @param {number} maskedColour */
export function paintPixels(data, colours, highest, kind, maskedColour) {
  const pixels = new Uint32Array(data.length);
  for (let i = 0; i < data.length; i++) {
    const weight = data[i];
    if (Number.isNaN(weight)) pixels[i] = maskedColour;
    else if (weight === Infinity) pixels[i] = colours[256];
    else pixels[i] = colours[Math.round(share(weight, highest, kind) * 255)];
  }
  return pixels;
}
