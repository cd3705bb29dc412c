// The page as `heedful look` serves it: its source is the server that it came from.
import { mount } from "./app.js";
import { alone } from "./host.js";
import { unpacked } from "./wire.js";

/** @type {import("./types.js").Source} */
const source = {
  async ask(question, about = {}, signal = undefined) {
    const asked = `/ask/${question}?${new URLSearchParams(about)}`;
    const response = await fetch(asked, { signal }).catch((error) => {
      if (signal?.aborted) throw error;
      throw new Error("The server does not answer any more: start it again, and open its address.");
    });
    if (!response.ok) throw new Error(await response.text());
    return unpacked(await response.arrayBuffer());
  },
  async record(texts) {
    const response = await fetch("/record", { method: "POST", body: JSON.stringify(texts) });
    if (!response.ok) throw new Error(await response.text());
    return unpacked(await response.arrayBuffer());
  },
};

mount(/** @type {HTMLElement} */ (document.getElementById("heedful")), source, alone());
