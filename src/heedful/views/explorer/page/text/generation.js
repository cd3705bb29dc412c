// The generation bar: a prompt field, buttons to continue and stop, and alternatives to a token.
import { Menu } from "../controls.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { chance } from "../number_format.js";
import { readable, Token } from "../tokens.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Answer, GenerationOptions } from "../types.js" */
/** @import { LiveText } from "./live_text.js" */

const INTEGERS = ["tokens", "top_k", "seed"]; // options that are integers

/** @param {{state: State, liveText: LiveText, tokens: Tokens}} props */
export function Generation({ state, liveText, tokens }) {
  const prompt = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  if (!liveText.isAvailable) return null;
  const status = liveText.status.value;
  const { says: help = {} } = state.about.written ?? {};
  const others = Object.entries(help).filter(([name]) => name !== "tokens");
  const begin = (/** @type {Event} */ event) => {
    event.preventDefault();
    liveText.send("begin", { prompt: prompt.current?.value ?? "" });
  };
  const keys = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    /** @type {HTMLTextAreaElement} */ (event.target).form?.requestSubmit();
  };
  const runs = Boolean(status?.runs);
  return html`<section class="generation" aria-label="Generation">
    <form class="prompt" onSubmit=${begin}>
      <textarea ref=${prompt} rows="1" dir="auto" spellcheck="false" aria-label=${`Prompt for ${state.about.written?.model}`} aria-keyshortcuts="g" placeholder="Type a prompt" onKeyDown=${keys}>${status?.said ?? ""}</textarea>
      <button class="main" title="Continue the prompt (Enter)">Generate</button>
      ${
        runs
          ? html`<button type="button" key="stop" aria-keyshortcuts="y" onClick=${() => liveText.send("stop")}>Stop</button>`
          : html`<button type="button" key="on" aria-keyshortcuts="y" disabled=${!status || status.full} title="Generate more tokens" onClick=${() => liveText.send("on")}>Go on</button>`
      }
      <${Option} liveText=${liveText} name="tokens" help=${help.tokens} />
      <${Menu} label="Sampling" shortcut="x" title="Sampling options">${others.map(([name, help]) => html`<${Option} liveText=${liveText} name=${name} help=${help} />`)}<//>
    </form>
    <${Status} state=${state} liveText=${liveText} />
    <${Alternatives} state=${state} liveText=${liveText} tokens=${tokens} />
  </section>`;
}

/** A number field of an option. @param {{liveText: LiveText, name: keyof GenerationOptions, help: string}} props */
function Option({ liveText, name, help }) {
  const value = liveText.options.value[name];
  const change = (/** @type {Event} */ event) => {
    const text = /** @type {HTMLInputElement} */ (event.target).value;
    const number = text === "" ? null : Number(text);
    liveText.options.value = { ...liveText.options.peek(), [name]: number };
  };
  const seed = name === "seed" ? (liveText.status.value?.seed ?? "") : "";
  return html`<label class="option" title=${help}><span>${name.replaceAll("_", "-")}</span><input type="number" min="0" step=${INTEGERS.includes(name) ? 1 : 0.01} value=${value ?? ""} placeholder=${seed} onInput=${change} /></label>`;
}

/** The state of the generation, and the seed that repeats it. @param {{state: State, liveText: LiveText}} props */
function Status({ state, liveText }) {
  const status = liveText.status.value;
  const error = liveText.error.value;
  if (error) return html`<p class="status wrong" role="alert">${error}</p>`;
  if (!status) return html`<p class="status quiet"> </p>`;
  const added = status.tokens - status.prompt;
  const count = (/** @type {number} */ n) => `${n.toLocaleString("en")} token${n === 1 ? "" : "s"}`;
  const word = status.runs ? "generating" : status.why || (added ? "stopped" : "ready");
  return html`<p class="status quiet"><span class=${status.runs ? "runs" : ""} role="status">${word}</span>
    <span class="count"> · ${count(status.prompt)} of the prompt, ${added.toLocaleString("en")} added</span>
    ${status.seed === null ? null : html`<span> · seed ${status.seed}</span>`}
    ${liveText.isLive ? null : html` <button type="button" class="plain" onClick=${() => state.choose([status.recording, 0, state.path.peek()[2]], state.head.peek())}>Show the newest text</button>`}</p>`;
}

/** The most likely alternatives to a generated token, or the most likely next tokens. @param {{state: State, liveText: LiveText, tokens: Tokens}} props */
function Alternatives({ state, liveText, tokens }) {
  const status = liveText.status.value;
  const [answer, setAnswer] = useState(/** @type {(Answer & {key: string}) | null} */ (null));
  const index = status && liveText.isLive ? indexOf(state, status) : null;
  const key = status && index !== null ? `${status.recording} ${index}` : "";
  useEffect(() => {
    if (!key) return;
    let isAborted = false;
    liveText.source.generation?.status(Number(key.split(" ")[1])).then(
      (/** @type {Answer} */ latest) => isAborted || setAnswer({ ...latest, key }),
      () => {},
    );
    return () => {
      isAborted = true;
    };
  }, [key]);
  const current = answer?.key === key ? answer : null;
  if (!status || index === null)
    return html`<p class="rivals quiet">${status?.runs ? "Each new token is added to the map." : "Select a generated token in the text to list its most likely alternatives."}</p>`;
  const isNext = index === status.tokens;
  const label = isNext
    ? "next"
    : html`instead of <${Token} tokens=${tokens} callId=${state.callId.value} axis="keys" index=${index} /> <b>${chance(status.chances[index - status.prompt])}</b>`;
  return html`<div class="rivals" role="group" aria-label=${isNext ? "The most likely next tokens" : `Alternatives to token ${index}`}><span class="quiet" title="The model’s probabilities, before temperature and the other sampling options">${label}</span>
    ${current?.pieces.map(
      (/** @type {string} */ piece, /** @type {number} */ n) =>
        html`<button type="button" class="jump" disabled=${isNext && status.full} title=${isNext ? "Continue with this token" : "Remove the text from here on, and continue with this token"} onClick=${() => liveText.send("choose", { at: index, token: current.ids[n] })}><bdi>${readable(piece)}</bdi> <b>${chance(current.chances.data[n])}</b></button>`,
    )}</div>`;
}

/** The index of the token whose alternatives are listed: the selected generated token, or the next token. @param {State} state @param {import("../types.js").GenerationStatus} status */
function indexOf(state, status) {
  const cell = state.pinned.value ? state.cell.value : null;
  const { kind, first } = state.call.value;
  const index = cell && kind !== "self" ? cell.query + first : null;
  if (index !== null && index >= status.prompt) return index;
  return status.runs || index !== null ? null : status.tokens;
}
