// What the words mean: under the pointer, for a finger, for the keyboard and a screen reader.
import { html, useEffect, useRef, useState } from "./html.js";

/** @type {Record<string, string>} */
const MEANS = {
  query: "What a token asks for: a vector that is compared with every key.",
  key: "What a token offers to those that ask: a vector that queries are compared with.",
  value: "What a token hands on to those that look at it, as long as it is attended to.",
  position: "The place of a token in its text, from 0.",
  score: "How well a query fits a key: their numbers multiplied pairwise, and added up.",
  scale: "What every score is multiplied by; mostly one over the root of the width of a key.",
  softcap: "cap · tanh(score / cap): no score can be larger than the cap.",
  bias: "A number that the model adds to the score, for the distance of two tokens for example.",
  mask: "Which keys a query may see at all. Hidden ones get no weight, and have no colour of the scale.",
  dimensions: "The numbers that a query and a key are made of, one product for each.",
  "log-sum-exp":
    "The logarithm of e^score added up over the row. Taking it off makes the row sum to one.",
  softmax: "e to the power of each score, divided by the sum of them over the row.",
  "learned sink":
    "A score of the model's own for attending to nothing; it takes its share of the row.",
  "grouped heads": "Several query heads that share one head of keys and values.",
  head: "One of several ways of attending that run side by side in a layer.",
  weight: "The share of a row that a key gets. The weights of a row sum to one.",
  row: "All weights of one query: where it looks.",
  column: "All weights on one key: who looks at it.",
  chance:
    "What the same rows would give with their keys shuffled among those that the mask allows.",
  sampled: "Computed from some of the queries; the exact number follows.",
  pooled: "One number for many cells: the largest of them, or their mean.",
  "half precision": "Stored in 16 bits: right to about three digits.",
  proved: "These weights times the values gave the model's own output.",
  unproved: "The numbers could not be compared with the model's output.",
  refuted: "The numbers are not the model's: no weights are shown.",
  told: "The layer itself, or the user, said which axis is texts, heads, queries and keys.",
  verified: "Changed inputs showed which axis is texts, heads, queries and keys.",
  usual: "Texts, heads, queries and keys are taken in the usual order, and their sizes fit.",
  guessed: "Which axis is texts, heads, queries and keys is a guess: another choice was possible.",
  entropy:
    "How spread out the rows are, on average, in nats: 0 is one key, log(keys) is all alike.",
  distance: "How far from itself a token looks on average, in tokens.",
};

/** What each kind of head does, in a sentence for who hears of it first. @type {Record<string, string>} */
const TELLS = {
  previous: "It looks at the token just before.",
  sink: "It rests on the first token, as heads do that have nothing to say here.",
  self: "It looks at the token itself.",
  local: "It looks a few tokens around.",
  broad: "It spreads over all that it may see.",
  induction: "It looks at what came after this token the last time.",
  duplicate: "It looks at earlier occurrences of this token.",
  "-": "No score of it is high, sure and above chance.",
};

/** @typedef {{definition: string, source: string}} Word what the library says of a score */

/** The library's own words for the scores of heads. @type {Record<string, Word>} */
const words = {};

/** Take over what the library says of scores. @param {Record<string, Word> | undefined} given */
export function learn(given) {
  Object.assign(words, given ?? {});
}

/** What a kind of head does. @param {string} kind */
export const tells = (kind) => TELLS[kind] ?? "";

/** What a word means; "" where nothing is known. @param {string} word */
export function meaning(word) {
  const known = words[word];
  if (!known) return MEANS[word] ?? TELLS[word] ?? "";
  const { definition, source } = known;
  return `${definition[0].toUpperCase()}${definition.slice(1)}. ${source}.`;
}

/** A word that says what it means. @param {any} shown @param {string} [word] its name here */
export function Term(shown, word = shown) {
  return html`<${Told} shown=${shown} says=${meaning(word)} />`;
}

/** The word for numbers that are not exact, and why no exact ones follow. @param {{answer: import("./types.js").Answer}} given */
export function Word({ answer }) {
  const { word, note } = answer;
  if (!word || word === "exact") return null;
  return html`<span class="quiet">${Term(word)}${note ? `: ${note}` : ""}</span>`;
}

/** Anything with an explanation of its own. @param {any} shown @param {string} says */
export function Explained(shown, says) {
  return html`<${Told} shown=${shown} says=${says} />`;
}

let told = 0; // so that two pages in one document do not share an id

/** @param {{shown: any, says: string}} given */
function Told({ shown, says }) {
  const [open, setOpen] = useState(false);
  const id = useState(() => `told-${++told}`)[0];
  const word = useRef(/** @type {HTMLButtonElement | null} */ (null));
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const timer = useRef(0);
  useEffect(() => {
    if (!open || !box.current || !word.current) return;
    box.current.showPopover?.();
    below(box.current, word.current);
  }, [open, says]);
  useEffect(() => () => clearTimeout(timer.current), []);
  if (!says) return shown;
  const soon = (/** @type {boolean} */ will, /** @type {number} */ pause) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setOpen(will), pause);
  };
  const now = (/** @type {boolean} */ will) => soon(will, 0);
  const keys = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape" || !open) return;
    event.stopPropagation();
    now(false);
  };
  return html`<span class="told" onPointerEnter=${(/** @type {PointerEvent} */ e) => e.pointerType === "mouse" && soon(true, 120)}
    onPointerLeave=${() => soon(false, 120)}><button type="button" class="term" ref=${word} aria-describedby=${open ? id : undefined}
      onFocus=${(/** @type {FocusEvent} */ e) => /** @type {HTMLElement} */ (e.target).matches(":focus-visible") && now(true)}
      onBlur=${() => now(false)} onClick=${() => now(!open)} onKeyDown=${keys}>${shown}</button>${
        open
          ? html`<span class="tip" role="tooltip" popover="manual" id=${id} ref=${box}>${says}</span>`
          : null
      }</span>`;
}

/** Put a box under what it belongs to, or above where there is no room. @param {HTMLElement} box @param {HTMLElement} of */
export function below(box, of) {
  const at = of.getBoundingClientRect();
  box.style.left = "8px"; // where it is as wide as it would be
  const { offsetWidth: wide, offsetHeight: high } = box;
  const hasRoom = at.bottom + 6 + high < innerHeight || at.top < high + 6;
  box.style.left = `${Math.max(8, Math.min(at.left, document.documentElement.clientWidth - wide - 8))}px`;
  box.style.top = `${hasRoom ? at.bottom + 6 : at.top - high - 6}px`;
}
