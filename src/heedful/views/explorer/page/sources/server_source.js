// The page as `heedful look` serves it: its source is the server that it came from.
import { mount } from "../app.js";
import { alone } from "../host.js";
import { unpacked } from "../wire.js";

/** @param {string} path @param {unknown} [body] what is posted; else it is asked */
async function response(path, body) {
  const how = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const found = await fetch(path, how);
  if (!found.ok) throw new Error(await found.text());
  return found;
}

/** @param {string} path @param {unknown} [body] */
const answered = async (path, body) => unpacked(await (await response(path, body)).arrayBuffer());

/** @type {import("../types.js").Source} */
const source = {
  async ask(question, about = {}, signal = undefined) {
    const asked = `/ask/${question}?${new URLSearchParams(about)}`;
    const found = await fetch(asked, { signal }).catch((error) => {
      if (signal?.aborted) throw error;
      throw new Error("The server does not answer any more: start it again, and open its address.");
    });
    if (!found.ok) throw new Error(await found.text());
    return unpacked(await found.arrayBuffer());
  },
  record: (texts) => answered("/record", texts),
  generation: {
    told: (at) => answered(at === undefined ? "/generation" : `/generation?at=${at}`),
    do: (deed, words) => answered(`/generation/${deed}`, words),
    file: async (call) => (await response(`/generation/file?call=${call}`)).blob(),
  },
};

mount(/** @type {HTMLElement} */ (document.getElementById("heedful")), source, alone());
