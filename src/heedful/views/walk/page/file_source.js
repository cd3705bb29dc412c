// The walk as one file: everything was written into it by `heedful explain --html`.
import { alone } from "../../explorer/page/host.js";
import { inflated, unpacked } from "../../explorer/page/wire.js";
import { mount } from "./app.js";
import { typed } from "./computed_walk.js";
import { given } from "./stored_walk.js";

/** @import { Offered, Walk } from "./types.js" */

/** What the file has: where it begins, and each walk. */
async function read() {
  const buffer = await inflated(document.getElementById("walks"));
  const about = unpacked(buffer);
  let start = 4 + new DataView(buffer).getUint32(0, true);
  const walks = about.walks.map((/** @type {any} */ one) => {
    const told = unpacked(buffer.slice(start, start + one.bytes));
    start += one.bytes;
    return one.typed ? computed(one, told) : ready(one, told);
  });
  return { ...about, walks };
}

/** @param {any} one @param {any} frame @returns {Offered} */
const computed = (one, frame) => ({ ...one, walk: (...texts) => typed(frame, ...texts) });

/** @param {any} one @param {any} told @returns {Offered} */
function ready(one, told) {
  /** @type {Walk | null} */
  let made = null;
  return {
    ...one,
    walk: () => {
      made ??= given(told);
      return made;
    },
  };
}

mount(/** @type {HTMLElement} */ (document.getElementById("heedful")), await read(), alone());
