// Answers as they come: the length of a head, the head in JSON, then arrays (see wire.py).

const KINDS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array, float16: Uint16Array };

/** Half-precision numbers as single ones: sign, five bits of exponent, ten of fraction. */
export function whole(halves) {
  const found = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) {
    const [exponent, fraction] = [(halves[i] >> 10) & 31, halves[i] & 1023];
    const size =
      exponent === 0
        ? fraction * 2 ** -24
        : exponent === 31
          ? fraction
            ? NaN
            : Infinity
          : (1 + fraction / 1024) * 2 ** (exponent - 15);
    found[i] = halves[i] & 0x8000 ? -size : size;
  }
  return found;
}

/**
 * @param {ArrayBuffer} buffer
 * @returns {any} the head, with each array by its name: {data, shape}
 */
export function unpacked(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let start = 4 + length;
  const found = { ...head };
  for (const [name, about] of Object.entries(head.arrays)) {
    const Kind = KINDS[about.type];
    const count = about.shape.reduce((a, b) => a * b, 1);
    const stored = new Kind(buffer, start, count);
    found[name] = { data: about.type === "float16" ? whole(stored) : stored, shape: about.shape };
    start += Math.ceil((count * Kind.BYTES_PER_ELEMENT) / 8) * 8;
  }
  delete found.arrays;
  return found;
}

/** A number that JSON has no word for. @param {number | string | null} value */
export function number(value) {
  if (value === null || value === undefined) return NaN;
  return typeof value === "number" ? value : value === "inf" ? Infinity : -Infinity;
}

/** The bytes of an element of the file, inflated. @param {Element | null} element */
export async function inflated(element) {
  const text = atob(element?.textContent ?? "");
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** The parts of the file by their names (file_contents.py). */
export async function parts() {
  const buffer = await inflated(document.getElementById("numbers"));
  const view = new DataView(buffer);
  /** @type {Record<string, any>} */
  const found = {};
  for (let start = 0; start < buffer.byteLength; ) {
    const length = view.getUint32(start, true);
    const part = unpacked(buffer.slice(start + 4, start + 4 + length));
    found[part.part] = part;
    start += 4 + length;
  }
  return found;
}
