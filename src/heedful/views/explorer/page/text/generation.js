// Where a prompt is typed, continued and stopped; what a token's rivals were, and going on from one.

import { Menu } from "../controls.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { percent } from "../number_format.js";
import { readable, Token } from "../tokens.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Answer, Wishes } from "../types.js" */
/** @import { Growing } from "./live_text.js" */

const WHOLE = ["tokens", "top_k", "seed"]; // wishes that are whole numbers

/** @param {{state: State, growing: Growing, tokens: Tokens}} given */
export function Generation({ state, growing, tokens }) {
  const prompt = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  if (!growing.isThere) return null;
  const told = growing.told.value;
  const { says = {} } = state.about.written ?? {};
  const others = Object.entries(says).filter(([name]) => name !== "tokens");
  const begin = (/** @type {Event} */ event) => {
    event.preventDefault();
    growing.begin(prompt.current?.value ?? "");
  };
  const keys = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    /** @type {HTMLTextAreaElement} */ (event.target).form?.requestSubmit();
  };
  const runs = Boolean(told?.runs);
  return html`<section class="generation" aria-label="Generation">
    <form class="prompt" onSubmit=${begin}>
      <textarea ref=${prompt} rows="1" dir="auto" spellcheck="false" aria-label=${`Prompt for ${state.about.written?.model}`} aria-keyshortcuts="g" placeholder="Type a prompt; nothing begins from nothing" onKeyDown=${keys}>${told?.said ?? ""}</textarea>
      <button class="main" title="Continue the prompt (Enter)">Generate</button>
      ${
        runs
          ? html`<button type="button" key="stop" aria-keyshortcuts="y" onClick=${() => growing.stop()}>Stop</button>`
          : html`<button type="button" key="on" aria-keyshortcuts="y" disabled=${!told || told.full} title="More tokens after these" onClick=${() => growing.on()}>Go on</button>`
      }
      <${Wish} growing=${growing} name="tokens" says=${says.tokens} />
      <${Menu} label="Sampling" shortcut="x" title="How the next token is chosen">${others.map(([name, says]) => html`<${Wish} growing=${growing} name=${name} says=${says} />`)}<//>
    </form>
    <${How} state=${state} growing=${growing} />
    <${Rivals} state=${state} growing=${growing} tokens=${tokens} />
  </section>`;
}

/** One wish: a number with its name. @param {{growing: Growing, name: keyof Wishes, says: string}} given */
function Wish({ growing, name, says }) {
  const value = growing.wishes.value[name];
  const change = (/** @type {Event} */ event) => {
    const text = /** @type {HTMLInputElement} */ (event.target).value;
    growing.wishes.value = { ...growing.wishes.peek(), [name]: text === "" ? null : Number(text) };
  };
  const seed = name === "seed" ? (growing.told.value?.seed ?? "") : "";
  return html`<label class="wish" title=${says}><span>${name.replaceAll("_", "-")}</span><input type="number" min="0" step=${WHOLE.includes(name) ? 1 : 0.01} value=${value ?? ""} placeholder=${seed} onInput=${change} /></label>`;
}

/** How far it is, and what gives it again. @param {{state: State, growing: Growing}} given */
function How({ state, growing }) {
  const told = growing.told.value;
  const wrong = growing.wrong.value;
  if (wrong) return html`<p class="how wrong" role="alert">${wrong}</p>`;
  if (!told) return html`<p class="how quiet"> </p>`;
  const added = told.tokens - told.prompt;
  const count = (/** @type {number} */ n) => `${n.toLocaleString("en")} token${n === 1 ? "" : "s"}`;
  const word = told.runs ? "generating" : told.why ? told.why : added ? "stopped" : "ready";
  return html`<p class="how quiet"><span class=${told.runs ? "runs" : ""} role="status">${word}</span>
    <span class="count"> · ${count(told.prompt)} of the prompt, ${added.toLocaleString("en")} added</span>
    ${told.seed === null ? null : html`<span> · seed ${told.seed}</span>`}
    ${growing.isLive ? null : html` <button type="button" class="plain" onClick=${() => state.choose([told.recording, 0, state.at.peek()[2]], state.head.peek())}>Show the newest text</button>`}</p>`;
}

/** What else could stand where a generated token stands, or after the last. @param {{state: State, growing: Growing, tokens: Tokens}} given */
function Rivals({ state, growing, tokens }) {
  const told = growing.told.value;
  const [found, setFound] = useState(/** @type {(Answer & {of: string}) | null} */ (null));
  const at = told && growing.isLive ? placeOf(state, told) : null;
  const of = told && at !== null ? `${told.recording} ${at}` : "";
  useEffect(() => {
    if (!of) return;
    let isOver = false;
    growing.source.generation?.told(Number(of.split(" ")[1])).then(
      (/** @type {Answer} */ answer) => isOver || setFound({ ...answer, of }),
      () => {},
    );
    return () => {
      isOver = true;
    };
  }, [of]);
  const known = found?.of === of ? found : null;
  if (!told || at === null)
    return html`<p class="rivals quiet">${told?.runs ? "Each token is added to the map as it comes." : "Choose a generated token in the text: here stand its likeliest rivals."}</p>`;
  const isNext = at === told.tokens;
  const says = isNext
    ? "next"
    : html`instead of <${Token} tokens=${tokens} where=${state.where.value} axis="keys" at=${at} /> <b>${chance(told.chances[at - told.prompt])}</b>`;
  return html`<div class="rivals" role="group" aria-label=${isNext ? "The likeliest next tokens" : `Rivals of token ${at}`}><span class="quiet" title="The model’s own probabilities, before temperature and the rest">${says}</span>
    ${known?.pieces.map(
      (/** @type {string} */ piece, /** @type {number} */ n) =>
        html`<button type="button" class="jump" disabled=${isNext && told.full} title=${isNext ? "Go on with this token" : "Cut the text here, and go on from this token"} onClick=${() => growing.choose(at, known.ids[n])}><bdi>${readable(piece)}</bdi> <b>${chance(known.chances.data[n])}</b></button>`,
    )}</div>`;
}

/** A share in few letters. @param {number} share */
const chance = (share) => (share < 0.001 ? "< 0.1\u00a0%" : percent(share));

/** The place whose rivals are shown: the chosen token's, else the next. @param {State} state @param {import("../types.js").Grown} told */
function placeOf(state, told) {
  const cell = state.pinned.value ? state.cell.value : null;
  const { kind, first } = state.call.value;
  const at = cell && kind !== "self" ? cell.query + first : null;
  if (at !== null && at >= told.prompt) return at;
  return told.runs || at !== null ? null : told.tokens;
}
