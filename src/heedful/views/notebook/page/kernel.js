// The page in a cell of a notebook: its source is the kernel.
import { mount } from "../../explorer/page/app.js";
import { unpacked } from "../../explorer/page/wire.js";
import { inCell } from "./cell.js";

/** @typedef {{ask: (question: string, words?: Record<string, any>, signal?: AbortSignal) => Promise<ArrayBuffer>}} Kernel */

/**
 * @param {HTMLElement} element @param {Kernel} kernel @param {import("./cell.js").Model} model
 * @returns {Promise<() => void>} what takes it away again
 */
export async function show(element, kernel, model) {
  /** @type {import("../../explorer/page/types.js").Source} */
  const source = {
    async ask(question, about = {}, signal = undefined) {
      return unpacked(await kernel.ask(question, about, signal));
    },
  };
  const { host, end } = inCell(element, model);
  const unmount = await mount(element, source, host);
  return () => {
    end();
    unmount();
  };
}
