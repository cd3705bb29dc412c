// What the one file brought with it: elements of deflated bytes, and the parts that they hold.
import { unpacked } from "../wire.js";

/** The bytes of an element of the file, inflated. @param {Element | null} element */
export async function inflated(element) {
  const text = atob(element?.textContent ?? "");
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** The parts of the file by their names (contents.py). */
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
