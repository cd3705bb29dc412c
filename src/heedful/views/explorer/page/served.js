// The page as `heedful look` serves it: its source is the server that it came from.
import { mount } from "./app.js";
import { alone } from "./host.js";
import { unpacked } from "./wire.js";

/** @type {import("./types.js").Source} */
const source = {
  async ask(question, about = {}, signal = undefined) {
    const response = await fetch(`/ask/${question}?${new URLSearchParams(about)}`, { signal });
    if (!response.ok) throw new Error(await response.text());
    return unpacked(await response.arrayBuffer());
  },
};

mount(/** @type {HTMLElement} */ (document.getElementById("heedful")), source, alone());
