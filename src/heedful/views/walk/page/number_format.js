// Numbers as text, as in views/number_format.py, but with a real minus sign (U+2212).

/** A function that formats all of these numbers with the same number of digits. @param {Iterable<number>} values @returns {(value: number) => string} */
export function formatter(values) {
  let [largest, hundredths] = [0, true];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    largest = Math.max(largest, Math.abs(value));
    hundredths &&= Math.abs(Math.round(value * 100) / 100 - value) < 1e-9;
  }
  const [count, powers] =
    hundredths && largest < 1e5
      ? [2, false]
      : largest >= 1e6 || largest < 1e-3
        ? [2, true]
        : [largest < 1000 ? 4 : 2, false];
  return (value) => {
    if (Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
    const text = powers ? value.toExponential(count) : value.toFixed(count);
    return (/^-[0.]+$/.test(text) ? text.slice(1) : text).replaceAll("-", "−");
  };
}

/** @param {number} value */
export const formatNumber = (value) => formatter([value])(value);

/** Put a negative number in brackets, to follow a sign. @param {string} text */
export const bracketed = (text) => (text.startsWith("−") ? `(${text})` : text);
