// The page that `heedful look` serves. Its source asks the server.
import { mount } from "../app.js";
import { windowHost } from "../host.js";
import { unpacked } from "../wire.js";

const STORED = "heedful: session"; // local storage is separate for each port of a host
let inMemory = ""; // for a browser without local storage

/** The token of the session, which the other tabs of this server share. */
function token() {
  try {
    return localStorage.getItem(STORED) ?? inMemory;
  } catch {
    return inMemory;
  }
}

/** Exchange the word of a new address for the token, and remove the word from the address. */
async function start() {
  const word = new URLSearchParams(location.search).get("word");
  if (!word) return;
  history.replaceState(null, "", location.pathname + location.hash);
  const answer = await sent("/session", { method: "POST" }, word);
  if (!answer.ok) return; // the address may be an old one, of a session that this browser has
  inMemory = await answer.text();
  try {
    localStorage.setItem(STORED, inMemory);
  } catch {}
}

/** @param {string} path @param {RequestInit} options @param {string} proof a word or the token */
const sent = (path, options, proof) =>
  fetch(path, { ...options, headers: { Authorization: `Bearer ${proof}` } }).catch((error) => {
    if (options.signal?.aborted) throw error;
    throw new Error(
      "The server does not answer. Start it again, and open the address that it prints.",
    );
  });

/** @param {string} path @param {RequestInit} [options] */
async function response(path, options = {}) {
  await started;
  const answer = await sent(path, options, token());
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

/** @param {string} path @param {RequestInit} [options] */
const requestAnswer = async (path, options) =>
  unpacked(await (await response(path, options)).arrayBuffer());

/** @param {string} path @param {unknown} body posted as JSON */
const post = (path, body) => requestAnswer(path, { method: "POST", body: JSON.stringify(body) });

/** @type {import("../types.js").Source} */
const source = {
  ask: (question, fields = {}, signal = undefined) =>
    requestAnswer(`/ask/${question}?${new URLSearchParams(fields)}`, { signal }),
  record: (texts) => post("/record", texts),
  page: async (view) => (await response(`/file.html?${new URLSearchParams({ view })}`)).blob(),
  generation: {
    status: (at) => requestAnswer(at === undefined ? "/generation" : `/generation?at=${at}`),
    send: (action, options) => post(`/generation/${action}`, options),
    recordingFile: async (call) => (await response(`/generation/file?call=${call}`)).blob(),
  },
};

const started = start();
mount(/** @type {HTMLElement} */ (document.getElementById("heedful")), source, windowHost());
