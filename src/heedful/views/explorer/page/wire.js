// Reads the binary format of answers: a header's length, the header in JSON, arrays (see wire.py).

const KINDS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array, float16: Uint16Array };

/** Convert float16 to float32: a sign, five bits of exponent, ten of fraction. */
export function float32(halves) {
  const values = new Float32Array(halves.length);
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
    values[i] = halves[i] & 0x8000 ? -size : size;
  }
  return values;
}

/** @param {ArrayBuffer} buffer @returns {any} the header, with each array under its name: {data, shape} */
export function unpacked(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let start = 4 + length;
  const answer = { ...header };
  for (const [name, about] of Object.entries(header.arrays)) {
    const Kind = KINDS[about.type];
    const count = about.shape.reduce((a, b) => a * b, 1);
    const stored = new Kind(buffer, start, count);
    const data = about.type === "float16" ? float32(stored) : stored;
    answer[name] = { data, shape: about.shape };
    start += Math.ceil((count * Kind.BYTES_PER_ELEMENT) / 8) * 8;
  }
  delete answer.arrays;
  return answer;
}

/** A number of a header. JSON lacks infinities and NaN: infinities are texts, and NaN is null. @param {number | string | null} value */
export function number(value) {
  if (value === null || value === undefined) return NaN;
  return typeof value === "number" ? value : value === "inf" ? Infinity : -Infinity;
}

/** Decompress the base64 text of an element of the one-file page; deflate compares its checksum. @param {Element | null} element */
export async function decompress(element) {
  try {
    const text = atob(element?.textContent ?? "");
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return await new Response(stream).arrayBuffer();
  } catch {
    throw new Error("This page is damaged or incomplete: copy it again, or write it again.");
  }
}

/** The contents of the one-file page: parts by their names (file_contents.py). */
export async function parts() {
  const buffer = await decompress(document.getElementById("numbers"));
  const view = new DataView(buffer);
  /** @type {Record<string, any>} */
  const contents = {};
  for (let start = 0; start < buffer.byteLength; ) {
    const length = view.getUint32(start, true);
    const part = unpacked(buffer.slice(start + 4, start + 4 + length));
    contents[part.part] = part;
    start += 4 + length;
  }
  return contents;
}
