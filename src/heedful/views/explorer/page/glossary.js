// Definitions of terms, shown in tooltips by pointer, touch and keyboard.
import { html, useEffect, useRef, useState } from "./html.js";

/** @type {Record<string, string>} */
const DEFINITIONS = {
  query: "The vector of the token that attends. Its dot products with the keys give the scores.",
  key: "The vector of a token that queries can attend to.",
  value: "The vector that a token passes on to the queries that attend to it.",
  position: "The index of a token in its text, from 0.",
  score: "The dot product of query and key, after scale, soft cap and bias.",
  scale: "The factor that multiplies every product query · key; usually 1 / √(width of a key).",
  softcap: "cap · tanh(score / cap): limits every score to the range −cap to cap.",
  bias: "A number that the model adds to a score, for example one that depends on the tokens' distance.",
  mask: "It determines which keys each query may attend to. Masked cells have weight 0 and are striped.",
  dimensions:
    "The components of query and key. Each component of the query is multiplied by the same component of the key.",
  "log-sum-exp":
    "The logarithm of the sum of exp(score) over the row. Subtracting it from the scores makes the weights sum to one.",
  softmax: "exp(score) of each key, divided by the sum over the row.",
  "learned sink":
    "A learned score without a key. It takes a share of each row, so the weights sum to less than one.",
  "grouped heads":
    "Grouped-query attention: several query heads share one head of keys and values.",
  head: "One of several attention computations that run in parallel in a layer.",
  weight:
    "The share of the query's attention that a key receives. Without a learned sink, a row sums to one.",
  row: "All weights of one query: what it attends to.",
  column: "All weights on one key: which queries attend to it.",
  chance: "The expected score if each row's weights were shuffled among its unmasked keys.",
  sampled: "Estimated from some of the queries, until the exact number is computed.",
  pooled: "One number for several cells: their maximum or mean.",
  "half precision": "Stored in 16 bits: accurate to about three significant digits.",
  proved: "These weights times the values reproduce the output of the model's attention.",
  unproved: "The weights could not be compared with the output of the model's attention.",
  refuted: "The weights do not reproduce the output of the model's attention, so none are shown.",
  told: "The model's layer or the user specified which axes are sequences, heads, queries and keys.",
  verified: "Changing the inputs showed which axes are sequences, heads, queries and keys.",
  usual:
    "The axes are assumed to be in the usual order: sequences, heads, queries, keys. Their sizes fit.",
  guessed:
    "The order of the axes (sequences, heads, queries, keys) is a guess: several orders fit their sizes.",
  entropy:
    "The mean entropy of the rows, in nats: 0 for a single key, log(number of keys) for uniform weights.",
  rollout:
    "Attention rollout (Abnar and Zuidema 2020): the mean of the heads of each layer, averaged with the identity, multiplied over the layers. It ignores values and feed-forward layers, so it is no proof of cause.",
  distance: "The mean distance between query and attended key, in tokens.",
  without:
    "The model runs on the text again. The output of a head that is taken away is set to zero; a query without a cell cannot attend to its key. The maps remain those of the unchanged run.",
  loss: "The negative logarithm of the probability that the model gives a token, after the tokens before it. A larger loss is worse.",
};

/** For each kind of head, a sentence for beginners that says what such heads attend to. @type {Record<string, string>} */
const KIND_SENTENCES = {
  previous: "It attends to the previous token.",
  sink: "It attends to the first token, as heads often do when their pattern does not occur.",
  self: "It attends to the token itself.",
  local: "It attends to tokens nearby.",
  broad: "It spreads its attention over all tokens.",
  induction: "It attends to the token that followed an earlier occurrence of this token.",
  duplicate: "It attends to earlier occurrences of this token.",
  "-": "No score of this head is at once high, above chance and averaged over enough queries.",
};

/** @typedef {{definition: string, source: string}} ScoreDefinition */

/** The library's definitions of head scores. @type {Record<string, ScoreDefinition>} */
const scores = {};

/** Add the library's definitions of scores. @param {Record<string, ScoreDefinition> | undefined} definitions */
export function addScores(definitions) {
  Object.assign(scores, definitions ?? {});
}

/** A sentence that says what heads of a kind attend to. @param {string} kind */
export const kindSentence = (kind) => KIND_SENTENCES[kind] ?? "";

/** The definition of a term; "" if there is none. @param {string} word */
export function meaning(word) {
  const score = scores[word];
  if (!score) return DEFINITIONS[word] ?? KIND_SENTENCES[word] ?? "";
  const { definition, source } = score;
  return `${definition[0].toUpperCase()}${definition.slice(1)}. ${source}.`;
}

/** A term with its definition in a tooltip. @param {any} text @param {string} [word] the term to look up */
export function Term(text, word = text) {
  return html`<${WithTip} text=${text} tip=${meaning(word)} />`;
}

/** The precision of an answer that is not exact, and why no exact answer follows. @param {{answer: import("./types.js").Answer}} props */
export function Precision({ answer }) {
  const { word, note } = answer;
  if (!word || word === "exact") return null;
  return html`<span class="quiet">${Term(word)}${note ? `: ${note}` : ""}</span>`;
}

/** Any text with a tooltip. @param {any} text @param {string} tip */
export function Explained(text, tip) {
  return html`<${WithTip} text=${text} tip=${tip} />`;
}

let lastId = 0; // shared by all pages of a document, so that ids are unique

/** @param {{text: any, tip: string}} props */
function WithTip({ text, tip }) {
  const [open, setOpen] = useState(false);
  const id = useState(() => `tip-${++lastId}`)[0];
  const word = useRef(/** @type {HTMLButtonElement | null} */ (null));
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const timer = useRef(0);
  useEffect(() => {
    if (!open || !box.current || !word.current) return;
    box.current.showPopover?.();
    placeBelow(box.current, word.current);
  }, [open, tip]);
  useEffect(() => () => clearTimeout(timer.current), []);
  if (!tip) return text;
  const setLater = (/** @type {boolean} */ isOpen, /** @type {number} */ pause) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setOpen(isOpen), pause);
  };
  const set = (/** @type {boolean} */ isOpen) => setLater(isOpen, 0);
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape" || !open) return;
    event.stopPropagation();
    set(false);
  };
  return html`<span class="with-tip" onPointerEnter=${(/** @type {PointerEvent} */ e) => e.pointerType === "mouse" && setLater(true, 120)}
    onPointerLeave=${() => setLater(false, 120)}><button type="button" class="term" ref=${word} aria-describedby=${open ? id : undefined}
      onFocus=${(/** @type {FocusEvent} */ e) => /** @type {HTMLElement} */ (e.target).matches(":focus-visible") && set(true)}
      onBlur=${() => set(false)} onClick=${() => set(!open)} onKeyDown=${onKeyDown}>${text}</button>${
        open
          ? html`<span class="tip" role="tooltip" popover="manual" id=${id} ref=${box}>${tip}</span>`
          : null
      }</span>`;
}

/** Place a box below an element, or above it if there is no room. @param {HTMLElement} box @param {HTMLElement} element */
export function placeBelow(box, element) {
  const edges = element.getBoundingClientRect();
  box.style.left = "8px"; // so that the window's edge does not make it narrower
  const { offsetWidth: width, offsetHeight: height } = box;
  const hasRoom = edges.bottom + 6 + height < innerHeight || edges.top < height + 6;
  box.style.left = `${Math.max(8, Math.min(edges.left, document.documentElement.clientWidth - width - 8))}px`;
  box.style.top = `${hasRoom ? edges.bottom + 6 : edges.top - height - 6}px`;
}
