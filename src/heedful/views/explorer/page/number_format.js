// Formats of numbers on the page, with a true minus sign.

/** A number with `count` digits after the point; very small and very large numbers in scientific notation. @param {number} value @param {number} [count] */
export function digits(value, count = 4) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value < 0 ? "−∞" : "∞";
  const size = Math.abs(value);
  const text =
    size && (size < 10 ** -count || size >= 1e6)
      ? value.toExponential(count - 1)
      : value.toFixed(count);
  return text.replaceAll("-", "−");
}

/** A number with `count` digits (at most 12) after the point, whatever its size. @param {number} value @param {number} count */
export const fixed = (value, count) => value.toFixed(Math.min(count, 12)).replace("-", "−");

/** A weight with four significant digits. @param {number} weight */
export function formatWeight(weight) {
  if (!Number.isFinite(weight)) return "not a number";
  if (weight < 0) return `−${formatWeight(-weight)}`; // a difference
  if (!weight) return digits(weight);
  if (weight < 1e-4) return weight.toExponential(3).replace("-", "−");
  return weight.toFixed(Math.min(7, Math.max(4, 3 - Math.floor(Math.log10(weight)))));
}

/** A share in percent, with a decimal below 10 % and above 99 %. @param {number} share */
export function percent(share) {
  const hundredths = share * 100;
  if (hundredths > 0 && hundredths < 0.1) return "less than 0.1\u00a0%";
  const count = hundredths < 9.95 || (hundredths > 99 && hundredths < 100) ? 1 : 0;
  return `${Math.floor(hundredths * 10 ** count + 0.5) / 10 ** count}\u00a0%`;
}

/** A probability as short text. @param {number} share */
export const chance = (share) => (share < 0.001 ? "< 0.1\u00a0%" : percent(share));

/** A number with its noun. @param {number} n @param {string} one @param {string} [many] */
export const plural = (n, one, many = `${one}s`) =>
  `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

/** 1st, 2nd, 3rd. @param {number} n */
export function ordinal(n) {
  const last = n % 100;
  const end = last > 10 && last < 14 ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[n % 10] ?? "th");
  return n.toLocaleString("en") + end;
}

/** A non-negative integer, or NaN. @param {string | null} text */
export const integer = (text) =>
  text !== null && /^\d{1,9}$/.test(text) ? Number(text) : Number.NaN;
