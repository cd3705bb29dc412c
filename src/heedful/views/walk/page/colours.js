// One scale for all numbers: orange below zero, blue above, the ground at zero. Both ends are
// equally light, so that only the hue tells the sign, and no number on them is hard to read.

const LIGHT = { ground: [0.985, 0], end: [0.66, 0.145] };
const DARK = { ground: [0.225, 0.004], end: [0.52, 0.13] };

// what a mask hides has no colour of the scale
const HIDDEN = { light: "#e1e3e6", dark: "#30363d" };

/**
 * The colour of a number, where `most` is the largest of its matrix.
 * @param {number} value @param {number} most @param {boolean} dark
 */
export function colour(value, most, dark) {
  if (Number.isNaN(value)) return "transparent";
  if (!Number.isFinite(value)) return dark ? HIDDEN.dark : HIDDEN.light;
  if (!(most > 0)) return "transparent";
  const share = Math.min(1, Math.abs(value) / most);
  const { ground, end } = dark ? DARK : LIGHT;
  const [light, chroma] = ground.map((from, i) => from + (end[i] - from) * share);
  return `oklch(${light.toFixed(4)} ${chroma.toFixed(4)} ${value < 0 ? 55 : 250})`;
}
