// The page that `heedful look` serves. Its source asks the server.
import { mount } from "../app.js";
import { windowHost } from "../host.js";
import { unpacked } from "../wire.js";

/** @param {string} path @param {unknown} [body] posted as JSON; without a body, a GET request */
async function response(path, body) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const answer = await fetch(path, options);
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

/** @param {string} path @param {unknown} [body] */
const requestAnswer = async (path, body) =>
  unpacked(await (await response(path, body)).arrayBuffer());

/** @type {import("../types.js").Source} */
const source = {
  async ask(question, fields = {}, signal = undefined) {
    const url = `/ask/${question}?${new URLSearchParams(fields)}`;
    const answer = await fetch(url, { signal }).catch((error) => {
      if (signal?.aborted) throw error;
      throw new Error(
        "The server does not answer. Start it again, and open the address that it prints.",
      );
    });
    if (!answer.ok) throw new Error(await answer.text());
    return unpacked(await answer.arrayBuffer());
  },
  record: (texts) => requestAnswer("/record", texts),
  generation: {
    status: (at) => requestAnswer(at === undefined ? "/generation" : `/generation?at=${at}`),
    send: (action, options) => requestAnswer(`/generation/${action}`, options),
    recordingFile: async (call) => (await response(`/generation/file?call=${call}`)).blob(),
  },
};

mount(/** @type {HTMLElement} */ (document.getElementById("heedful")), source, windowHost());
