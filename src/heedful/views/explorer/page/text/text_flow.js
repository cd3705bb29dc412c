// Tokens as running text. Of a long one a window is laid out, which follows the chosen token.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { nearest, useCursor } from "../list_navigation.js";
import { share } from "../map/colours.js";
import { percent, weighed } from "../number_format.js";
import { lines, marksOf, tag, useMarking } from "../segments/marking.js";
import { pieces } from "../tokens.js";

/** @import { State } from "../state.js" */
/** @import { Tokens } from "../tokens.js" */
/** @import { Axis } from "../types.js" */
/** @import { Reading } from "./chosen_token.js" */

export const WINDOW = 700; // tokens that are laid out
const MARGIN = 40; // so many are to be seen around the chosen one
const SPACED = /^[\p{L}\p{N}[<¿¡([{“‘"'\p{Extended_Pictographic}]/u; // a word piece that begins a word

/** Tokens after a prompt, each with the chance that the model gave it. @typedef {{prompt: number, chances: Float32Array}} Added */

/**
 * @typedef {object} Given
 * @property {State} state
 * @property {Tokens} tokens
 * @property {Reading} reading
 * @property {Axis} axis
 * @property {number} size how many tokens
 * @property {import("../segments/segments.js").Reads | null} reads which text that can be marked it is
 * @property {string} label
 * @property {string} id a name of its own in the document
 * @property {number | null} chosen
 * @property {number | null} other the chosen key, where it stands in this text too
 * @property {Float32Array | null} looks how much each is looked at by the token that is pointed at
 * @property {Float32Array | null} looked how much each looks at it
 * @property {number} offset the first token of `looked`
 * @property {Added | null} added the chances with which tokens were chosen
 * @property {number | null} ends where a prompt ended and the generated tokens begin
 * @property {(at: number) => void} choose
 */

/** @param {Given} given */
export function Run(given) {
  const { state, reading, axis, size, id, chosen } = given;
  const [start, setStart] = useState(0);
  const held = /** @type {import("../types.js").Signal<number | null>} */ (useCursor());
  const cursor = held.value;
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const where = state.where.value;
  const long = size > WINDOW;
  const begun = Math.max(0, Math.min(start, size - WINDOW));
  useLayoutEffect(() => {
    if (chosen === null || !long) return;
    if (chosen < begun + MARGIN || chosen >= begun + WINDOW - MARGIN)
      setStart(Math.max(0, Math.min(chosen - WINDOW / 2, size - WINDOW)));
  }, [chosen, where]);
  useEffect(() => {
    const mine = box.current?.querySelector(".mine");
    if (mine && box.current) visible(mine, box.current);
  }, [chosen, begun, Boolean(given.looks)]);
  const [first, end] = [long ? begun : 0, long ? Math.min(size, begun + WINDOW) : size];
  const point = (/** @type {number | null} */ at) => {
    const now = reading.pointed.peek();
    if (at === null ? now : now?.axis !== axis || now.at !== at)
      reading.pointed.value = at === null ? null : { axis, at };
  };
  const go = (/** @type {number} */ at) => {
    const to = Math.max(0, Math.min(size - 1, at));
    held.value = to;
    point(to);
    if (long && (to < first + 5 || to >= end - 5)) setStart(Math.max(0, to - WINDOW / 2));
  };
  const of = (/** @type {Event} */ event) => {
    const token = /** @type {HTMLElement} */ (event.target).closest?.("[data-at]");
    return token ? Number(token.getAttribute("data-at")) : null;
  };
  const marking = useMarking(state, given.reads, of);
  const keys = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const now = held.peek() ?? chosen ?? first;
    const to = moved(event.key, now, size, box.current);
    if (event.shiftKey && (!marking.is || to === null)) return;
    if (to !== null) {
      go(to);
      if (event.shiftKey) marking.extend(Math.max(0, Math.min(size - 1, to)), now);
      else marking.leave();
    } else if (marking.key(event.key)) held.value = now;
    else if (event.key === "Enter" || event.key === " ") given.choose(now);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const leave = () => {
    held.value = null;
    point(null);
  };
  const spans = laid(given, first, end, cursor, marking);
  const at = cursor ?? chosen;
  const active = at !== null && at >= first && at < end ? at : first;
  return html`<div class="piece">
    ${long ? html`<${Move} size=${size} first=${first} end=${end} chosen=${chosen} label=${given.label} move=${setStart} />` : null}
    <div class=${marking.is ? "run marking" : "run"} ref=${box} role="listbox" aria-orientation="horizontal" tabindex="0" dir=${direction(given, first, end)} aria-label=${given.label}
      aria-activedescendant=${`${id}-${active}`} onKeyDown=${keys} onBlur=${leave}
      onPointerOver=${(/** @type {PointerEvent} */ e) => e.pointerType === "mouse" && point(of(e))} onPointerLeave=${() => point(null)} ...${marking.drag}
      onClick=${(/** @type {MouseEvent} */ e) => {
        const found = of(e);
        if (found !== null && !marking.click(e, found, held.peek() ?? chosen)) given.choose(found);
        held.value = null;
      }}>${spans}</div></div>`;
}

/** The tokens of a window. @param {Given} given @param {number} first @param {number} end @param {number | null} cursor @param {ReturnType<typeof useMarking>} marking */
function laid(given, first, end, cursor, marking) {
  const { state, tokens, axis, looks, looked, offset } = given;
  const where = state.where.value;
  const colours = /** @type {import("../types.js").Colours} */ (state.colours.value);
  const words = tokens.areWords(where, axis);
  const most = looks ? largest(looks, 0, looks.length) : 1;
  const mostUnder = looked ? largest(looked, 0, looked.length) : 1;
  const { segments } = state;
  const marks = marksOf(given.reads ? segments.now.value[given.reads] : [], first, end);
  const found = [];
  for (let i = first; i < end; i++) {
    const token = tokens.token(where, axis, i);
    const [weight, back] = [looks?.[i] ?? Number.NaN, looked?.[i - offset] ?? Number.NaN]; // NaN: not known
    const name = ["token"];
    if (i === given.chosen) name.push("mine");
    if (i === given.other) name.push("other");
    if (i === cursor) name.push("cursor");
    if (marking.isIn(i)) name.push("selected");
    const inside = marks.inside.get(i);
    if (inside) name.push("marked");
    if (token && /[\n↵]/.test(token.text)) name.push("breaks");
    const shade =
      looks || looked
        ? `--share:${share(weight || 0, most, colours).toFixed(3)};--under:${share(back || 0, mostUnder, colours).toFixed(3)}`
        : "";
    const style = inside ? `${shade};--lines:${lines(inside)}` : shade;
    if (given.ends === i)
      found.push(
        html`<span class="ends" key="ends" role="presentation">generated from here</span>`,
      );
    if (words && i > first && token && SPACED.test(token.text) && !token.text.startsWith("##"))
      found.push(" ");
    for (const one of marks.begins.get(i) ?? []) found.push(tag(one, i));
    const chance =
      given.added && i >= given.added.prompt
        ? given.added.chances[i - given.added.prompt]
        : undefined;
    const isChosen = chance !== undefined;
    const shares = [
      ...(inside ?? []).map((one) => `in ${one.name}`),
      isChosen ? `probability ${percent(chance)}` : "",
      Number.isNaN(weight) ? "" : `looked at ${weighed(weight)}`,
      Number.isNaN(back) ? "" : `looks back ${weighed(back)}`,
    ].filter(Boolean);
    found.push(html`<span key=${i} id=${`${given.id}-${i}`} class=${name.join(" ")} style=${style} data-chance=${isChosen ? Math.round(chance * 100) : undefined} role="option" data-at=${i}
      aria-selected=${i === given.chosen} aria-label=${`${tokens.label(where, axis, i)}, ${i}${shares.length ? `, ${shares.join(", ")}` : ""}`} title=${`${i}${shares.length ? ` · ${shares.join(" · ")}` : ""}`}>${shown(token, i, words)}</span>`);
  }
  return found;
}

/** A token's letters, its spaces as spaces and its line ends as line ends. @param {{text: string, length?: number} | null | undefined} token @param {number} at @param {boolean} words */
function shown(token, at, words) {
  if (!token) return html`<bdi class="place">${token === null ? at : "…"}</bdi>`;
  const more = words && token.text.startsWith("##");
  return html`<bdi>${pieces(more ? token.text.slice(2) : token.text, token.length).map(
    ({ kind, text }) =>
      kind === "letters"
        ? text
        : kind === "end"
          ? html`<i class="sign">↵</i>${"\n"}`
          : html`<i class=${kind}>${text}</i>`,
  )}</bdi>`;
}

/** The largest of a part, not 0. @param {Float32Array} data @param {number} from @param {number} to */
function largest(data, from, to) {
  let most = 1e-9;
  for (let i = from; i < to; i++) if (data[i] > most) most = data[i];
  return most;
}

/** Of a text that begins from the right, so that its tokens follow each other as they are read. @param {Given} given @param {number} first @param {number} end */
function direction({ state, tokens, axis }, first, end) {
  for (let i = first; i < Math.min(end, first + 60); i++) {
    const strong = tokens.token(state.where.value, axis, i)?.text.match(/\p{L}/u)?.[0];
    if (strong) return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/u.test(strong) ? "rtl" : "ltr";
  }
  return "ltr";
}

/** Where a key leads: along the text, or to the line above or below. @param {string} key @param {number} now @param {number} size @param {HTMLElement | null} box */
function moved(key, now, size, box) {
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
  const places = tokens.map((token) => {
    const { left, top } = token.getBoundingClientRect();
    return { x: left, y: top };
  });
  const at = (/** @type {Element} */ token) => Number(token.getAttribute("data-at"));
  const mine = tokens.findIndex((token) => at(token) === now);
  return mine < 0 ? now + down * 10 : at(tokens[nearest(places, mine, down)]);
}

/** Scroll what holds a box, and nothing else, until a part of it is seen. @param {Element} part @param {HTMLElement} box */
function visible(part, box) {
  for (
    let holder = box.parentElement;
    holder && !holder.matches(".page");
    holder = holder.parentElement
  ) {
    if (holder.scrollHeight <= holder.clientHeight) continue;
    const [at, of] = [part.getBoundingClientRect(), holder.getBoundingClientRect()];
    if (at.top < of.top + 40) holder.scrollTop -= of.top + 40 - at.top;
    else if (at.bottom > of.bottom - 10) holder.scrollTop += at.bottom - of.bottom + 10;
  }
}

/** Which part of a long text is laid out. @param {{size: number, first: number, end: number, chosen: number | null, label: string, move: (start: number) => void}} given */
function Move({ size, first, end, chosen, label, move }) {
  const away = chosen !== null && (chosen < first || chosen >= end);
  const number = (/** @type {number} */ n) => n.toLocaleString("en");
  return html`<div class="move"><button type="button" disabled=${first === 0} onClick=${() => move(Math.max(0, first - WINDOW + 50))}>earlier</button>
    <input type="range" aria-label=${`Part of ${label} that is shown`} min="0" max=${size - WINDOW} step="1" value=${first} aria-valuetext=${`tokens ${number(first)} to ${number(end - 1)}`} onInput=${(/** @type {Event} */ e) => move(Number(/** @type {HTMLInputElement} */ (e.target).value))} />
    <button type="button" disabled=${end >= size} onClick=${() => move(Math.min(size - WINDOW, first + WINDOW - 50))}>later</button>
    <span class="quiet">tokens ${number(first)} to ${number(end - 1)} of ${number(size)}</span>
    ${away ? html`<button type="button" onClick=${() => move(Math.max(0, /** @type {number} */ (chosen) - WINDOW / 2))}>back to the chosen token</button>` : null}</div>`;
}
