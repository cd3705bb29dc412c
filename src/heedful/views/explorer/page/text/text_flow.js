// Tokens as running text. Of a long text, only a window around the chosen token is rendered.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { nearest, useCursor } from "../list_navigation.js";
import { share } from "../map/colours.js";
import { formatWeight, percent } from "../number_format.js";
import { lines, marksOf, tag, useMarking } from "../segments/marking.js";
import { pieces } from "../tokens.js";
import { largest, signed } from "../without/without.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Axis } from "../types.js" */
/** @import { ChosenToken } from "./chosen_token.js" */

export const WINDOW = 700; // tokens that are rendered
const MARGIN = 40; // tokens on each side of the chosen token that the window must contain
const SPACED = /^[\p{L}\p{N}[<¿¡([{“‘"'\p{Extended_Pictographic}]/u; // matches tokens that get a space before them, if tokens contain no spaces

const PROMPT_END = html`<span class="ends" key="ends" role="presentation">generated from here</span>`;

/** The probabilities of the tokens after a prompt. @typedef {{prompt: number, chances: Float32Array}} Added */

/** @typedef {{state: State, tokens: Tokens, chosenToken: ChosenToken, axis: Axis, size: number, label: string, id: string, choose: (index: number) => void} & Details} Props */

/**
 * @typedef {object} Details
 * @property {import("../segments/segments.js").TextRole | null} role null if the text cannot be marked
 * @property {number | null} chosen the chosen token
 * @property {number | null} other the key of the selected cell, if it is in this text
 * @property {Float32Array | null} rowWeights the weight of the current query on each token
 * @property {Float32Array | null} columnWeights the weight of each query on the current key
 * @property {number} offset the index of the token of query 0
 * @property {Float32Array | null} changes the change in the loss of each token, which replaces weights
 * @property {Added | null} added the probabilities of generated tokens
 * @property {number | null} promptLength the index of the first generated token, in all passes of a generation
 */

/** A function that points at a token, or at none for null. @param {ChosenToken} chosenToken @param {Axis} axis */
export const pointer = (chosenToken, axis) => (/** @type {number | null} */ index) => {
  const now = chosenToken.pointed.peek();
  if (index === null ? now : now?.axis !== axis || now.index !== index)
    chosenToken.pointed.value = index === null ? null : { axis, index };
};

/** @param {Props} props */
export function TextFlow(props) {
  const { state, chosenToken, axis, size, id, chosen } = props;
  const [start, setStart] = useState(0);
  const cursorSignal = /** @type {import("../types.js").Signal<number | null>} */ (useCursor());
  const cursor = cursorSignal.value;
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const callId = state.callId.value;
  const isLong = size > WINDOW;
  const shownStart = Math.max(0, Math.min(start, size - WINDOW));
  useLayoutEffect(() => {
    if (chosen === null || !isLong) return;
    if (chosen < shownStart + MARGIN || chosen >= shownStart + WINDOW - MARGIN)
      setStart(Math.max(0, Math.min(chosen - WINDOW / 2, size - WINDOW)));
  }, [chosen, callId]);
  useEffect(() => {
    const chosenSpan = box.current?.querySelector(".mine");
    if (chosenSpan && box.current) scrollIntoPage(chosenSpan, box.current);
  }, [chosen, shownStart, Boolean(props.rowWeights)]);
  const [first, end] = isLong ? [shownStart, Math.min(size, shownStart + WINDOW)] : [0, size];
  const point = pointer(chosenToken, axis);
  const go = (/** @type {number} */ token) => {
    const to = Math.max(0, Math.min(size - 1, token));
    cursorSignal.value = to;
    point(to);
    if (isLong && (to < first + 5 || to >= end - 5)) setStart(Math.max(0, to - WINDOW / 2));
  };
  const tokenOf = (/** @type {Event} */ event) => {
    const token = /** @type {HTMLElement} */ (event.target).closest?.("[data-at]");
    return token ? Number(token.getAttribute("data-at")) : null;
  };
  const marking = useMarking(state, props.role, tokenOf);
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const now = cursorSignal.peek() ?? chosen ?? first;
    const to = destination(event.key, now, size, box.current);
    if (event.shiftKey && (!marking.isActive || to === null)) return;
    if (to !== null) {
      go(to);
      if (event.shiftKey) marking.extend(Math.max(0, Math.min(size - 1, to)), now);
      else marking.restart();
    } else if (marking.key(event.key)) cursorSignal.value = now;
    else if (event.key === "Enter" || event.key === " ") props.choose(now);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const onBlur = () => {
    cursorSignal.value = null;
    point(null);
  };
  const spans = tokenSpans(props, first, end, cursor, marking);
  const token = cursor ?? chosen;
  const active = token !== null && token >= first && token < end ? token : first;
  return html`<div class="piece">
    ${isLong ? html`<${WindowControls} size=${size} first=${first} end=${end} chosen=${chosen} label=${props.label} move=${setStart} />` : null}
    <div class=${marking.isActive ? "run marking" : "run"} ref=${box} role="listbox" aria-orientation="horizontal" tabindex="0" dir=${direction(props, first, end)} aria-label=${props.label}
      aria-activedescendant=${`${id}-${active}`} onKeyDown=${onKeyDown} onBlur=${onBlur}
      onPointerOver=${(/** @type {PointerEvent} */ e) => e.pointerType === "mouse" && point(tokenOf(e))} onPointerLeave=${() => point(null)} ...${marking.drag}
      onClick=${(/** @type {MouseEvent} */ e) => {
        const [token, from] = [tokenOf(e), cursorSignal.peek() ?? chosen];
        if (token !== null && !marking.click(e, token, from)) props.choose(token);
        cursorSignal.value = null;
      }}>${spans}</div></div>`;
}

/** The rendered tokens of a window. @param {Props} props @param {number} first @param {number} end @param {number | null} cursor @param {ReturnType<typeof useMarking>} marking */
function tokenSpans(props, first, end, cursor, marking) {
  const { state, tokens, axis, rowWeights, columnWeights, offset } = props;
  const callId = state.callId.value;
  const colours = /** @type {import("../types.js").Colours} */ (state.colours.value);
  const areWords = tokens.areWords(callId, axis);
  const mostInRow = rowWeights ? largest(rowWeights) : 1;
  const mostInLoss = props.changes ? largest(props.changes) : 1;
  const mostInColumn = columnWeights ? largest(columnWeights) : 1;
  const { segments } = state;
  const marks = marksOf(props.role ? segments.current.value[props.role] : [], first, end);
  const spans = [];
  for (let i = first; i < end; i++) {
    const token = tokens.token(callId, axis, i);
    const forward = rowWeights?.[i] ?? Number.NaN; // NaN: not loaded
    const back = columnWeights?.[i - offset] ?? Number.NaN;
    const name = ["token"];
    if (i === props.chosen) name.push("mine");
    if (i === props.other) name.push("other");
    if (i === cursor) name.push("cursor");
    if (marking.isSelected(i)) name.push("selected");
    const inside = marks.inside.get(i);
    if (inside) name.push("marked");
    if (token && /[\n↵]/.test(token.text)) name.push("breaks");
    const change = props.changes?.[i] ?? Number.NaN;
    if (change) name.push(change > 0 ? "worse" : "better");
    const shade = props.changes
      ? `--share:${Math.abs(change || 0) / mostInLoss}`
      : rowWeights || columnWeights
        ? `--share:${share(forward || 0, mostInRow, colours).toFixed(3)};--under:${share(back || 0, mostInColumn, colours).toFixed(3)}`
        : "";
    const style = inside ? `${shade};--lines:${lines(inside)}` : shade;
    if (props.promptLength === i) spans.push(PROMPT_END);
    if (areWords && i > first && token && SPACED.test(token.text) && !token.text.startsWith("##"))
      spans.push(" ");
    for (const segment of marks.begins.get(i) ?? []) spans.push(tag(segment, i));
    const probability = props.added?.chances[i - props.added.prompt]; // undefined in the prompt
    const isGenerated = probability !== undefined;
    const details = [
      ...(inside ?? []).map(({ name }) => `in ${name}`),
      isGenerated ? `probability ${percent(probability)}` : "",
      Number.isNaN(change) ? "" : `change in loss ${signed(change)}`,
      Number.isNaN(forward) ? "" : `receives ${formatWeight(forward)}`,
      Number.isNaN(back) ? "" : `gives ${formatWeight(back)}`,
    ].filter(Boolean);
    spans.push(html`<span key=${i} id=${`${props.id}-${i}`} class=${name.join(" ")} style=${style} data-chance=${isGenerated ? Math.round(probability * 100) : undefined} role="option" data-at=${i}
      aria-selected=${i === props.chosen} aria-label=${`${tokens.label(callId, axis, i)}, ${i}${details.length ? `, ${details.join(", ")}` : ""}`} title=${`${i}${details.length ? ` · ${details.join(" · ")}` : ""}`}>${tokenText(token, i, areWords)}</span>`);
  }
  return spans;
}

/** A token's characters, with true spaces and line breaks. @param {{text: string, length?: number} | null | undefined} token @param {number} index @param {boolean} areWords */
function tokenText(token, index, areWords) {
  if (!token) return html`<bdi class="place">${token === null ? index : "…"}</bdi>`;
  const continues = areWords && token.text.startsWith("##");
  return html`<bdi>${pieces(continues ? token.text.slice(2) : token.text, token.length).map(
    ({ kind, text }) =>
      kind === "letters"
        ? text
        : kind === "end"
          ? html`<i class="sign">↵</i>${"\n"}`
          : html`<i class=${kind}>${text}</i>`,
  )}</bdi>`;
}

/** The direction of a text, from its first letter. @param {Props} props @param {number} first @param {number} end */
function direction({ state, tokens, axis }, first, end) {
  for (let i = first; i < Math.min(end, first + 60); i++) {
    const strong = tokens.token(state.callId.value, axis, i)?.text.match(/\p{L}/u)?.[0];
    if (strong) return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/u.test(strong) ? "rtl" : "ltr";
  }
  return "ltr";
}

/** The token to which a key moves: along the text, or to the line above or below. @param {string} key @param {number} now @param {number} size @param {HTMLElement | null} box */
function destination(key, now, size, box) {
  const back = box?.dir === "rtl" ? -1 : 1;
  if (key === "ArrowLeft") return now - back;
  if (key === "ArrowRight") return now + back;
  if (key === "Home") return 0;
  if (key === "End") return size - 1;
  if (key === "PageDown") return now + 100;
  if (key === "PageUp") return now - 100;
  const down = key === "ArrowDown" ? 1 : key === "ArrowUp" ? -1 : 0;
  if (!down || !box) return null;
  const tokens = [...box.querySelectorAll("[data-at]")];
  const places = tokens.map((token) => token.getBoundingClientRect());
  const indexOf = (/** @type {Element} */ token) => Number(token.getAttribute("data-at"));
  const current = tokens.findIndex((token) => indexOf(token) === now);
  return current < 0 ? now + down * 10 : indexOf(tokens[nearest(places, current, down)]);
}

/** Scroll the box's ancestors inside the page until an element of the box is visible. @param {Element} element @param {HTMLElement} box */
function scrollIntoPage(element, box) {
  const { parentElement: parent } = box;
  if (!parent || parent.matches(".page")) return;
  if (parent.scrollHeight > parent.clientHeight) {
    const [inner, outer] = [element.getBoundingClientRect(), parent.getBoundingClientRect()];
    if (inner.top < outer.top + 40) parent.scrollTop -= outer.top + 40 - inner.top;
    else if (inner.bottom > outer.bottom - 10) parent.scrollTop += inner.bottom - outer.bottom + 10;
  }
  scrollIntoPage(element, parent);
}

/** Controls for the rendered window of a long text. @param {{size: number, first: number, end: number, chosen: number | null, label: string, move: (start: number) => void}} props */
function WindowControls({ size, first, end, chosen, label, move }) {
  const isOutside = chosen !== null && (chosen < first || chosen >= end);
  const number = (/** @type {number} */ n) => n.toLocaleString("en");
  return html`<div class="move"><button type="button" disabled=${first === 0} onClick=${() => move(Math.max(0, first - WINDOW + 50))}>earlier</button>
    <input type="range" aria-label=${`Part of ${label} that is shown`} min="0" max=${size - WINDOW} step="1" value=${first} aria-valuetext=${`tokens ${number(first)} to ${number(end - 1)}`} onInput=${(/** @type {Event} */ e) => move(Number(/** @type {HTMLInputElement} */ (e.target).value))} />
    <button type="button" disabled=${end >= size} onClick=${() => move(Math.min(size - WINDOW, first + WINDOW - 50))}>later</button>
    <span class="quiet">tokens ${number(first)} to ${number(end - 1)} of ${number(size)}</span>
    ${isOutside ? html`<button type="button" onClick=${() => move(Math.max(0, /** @type {number} */ (chosen) - WINDOW / 2))}>back to the selected token</button>` : null}</div>`;
}
