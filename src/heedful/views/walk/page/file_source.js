// The entry module of the page that `heedful explain --html` writes. It reads the file's walks.
import { windowHost } from "../../explorer/page/host.js";
import { decompress, unpacked } from "../../explorer/page/wire.js";
import { mount } from "./app.js";
import { computeWalk } from "./computed_walk.js";
import { modelWalk } from "./model_walk.js";
import { readWalk } from "./stored_walk.js";

/** @import { PageWalk, Walk } from "./types.js" */

/** Read the header and the walks from the file. */
async function read() {
  const buffer = await decompress(document.getElementById("walks"));
  const header = unpacked(buffer);
  let start = 4 + new DataView(buffer).getUint32(0, true);
  const walks = header.walks.map((/** @type {any} */ entry) => {
    const data = unpacked(buffer.slice(start, start + entry.bytes));
    start += entry.bytes;
    if (data.tokenizer) return { ...entry, walk: modelWalk(data, header.text) };
    return entry.typed ? computed(entry, data) : stored(entry, data);
  });
  return { ...header, walks };
}

/** @param {any} entry @param {any} data @returns {PageWalk} */
const computed = (entry, data) => ({ ...entry, walk: (...texts) => computeWalk(data, ...texts) });

/** @param {any} entry @param {any} data @returns {PageWalk} */
function stored(entry, data) {
  /** @type {Walk | null} */
  let walk = null;
  return { ...entry, walk: () => (walk ??= readWalk(data)) };
}

mount(/** @type {HTMLElement} */ (document.getElementById("heedful")), await read(), windowHost());
