// A diverging scale for all numbers: orange below zero, blue above, the background at zero. Both ends
// have the same lightness, so that the hue alone shows the sign and text stays readable.

const LIGHT = { background: [0.985, 0], end: [0.66, 0.145] };
const DARK = { background: [0.225, 0.004], end: [0.52, 0.13] };

// masked scores are grey, outside the scale
const MASKED = { light: "#e1e3e6", dark: "#30363d" };

/** The colour of a number; `largest` is the magnitude with the strongest colour. @param {number} value @param {number} largest @param {boolean} dark */
export function colour(value, largest, dark) {
  if (Number.isNaN(value)) return "transparent";
  if (!Number.isFinite(value)) return dark ? MASKED.dark : MASKED.light;
  if (!(largest > 0)) return "transparent";
  const share = Math.min(1, Math.abs(value) / largest);
  const { background, end } = dark ? DARK : LIGHT;
  const [light, chroma] = background.map((from, i) => from + (end[i] - from) * share);
  return `oklch(${light.toFixed(4)} ${chroma.toFixed(4)} ${value < 0 ? 55 : 250})`;
}
