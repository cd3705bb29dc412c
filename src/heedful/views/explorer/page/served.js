// The page as `heedful look` serves it: its source is the server that it came from.
import { mount } from "./app.js";
import { unpacked } from "./wire.js";

const source = {
  /** What the library is asked. @param {string} question @param {Record<string, any>} about */
  async ask(question, about = {}, signal = undefined) {
    const response = await fetch(`/ask/${question}?${new URLSearchParams(about)}`, { signal });
    if (!response.ok) throw new Error(await response.text());
    return unpacked(await response.arrayBuffer());
  },
};

mount(/** @type {HTMLElement} */ (document.getElementById("heedful")), source);
