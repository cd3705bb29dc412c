// Controls that several parts of the page have: menus, choices of text and head, a line that goes by itself.

import { below } from "./glossary.js";
import { callTitle } from "./heads/scores.js";
import { html, useEffect, useRef, useState } from "./html.js";

/** @import { State } from "./state.js" */
/** @import { Side } from "./types.js" */

/**
 * @param {object} given
 * @param {string} given.label @param {any} given.children @param {string} [given.title]
 * @param {string} [given.kind] a class of the box @param {string} [given.shortcut] its key
 */
export function Menu({ label, children, title, kind = "", shortcut }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const button = useRef(/** @type {HTMLElement | null} */ (null));
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    // not by an id: two pages may stand in one document
    Object.assign(button.current ?? {}, { popoverTargetElement: box.current });
  }, []);
  const toggled = (/** @type {any} */ event) => {
    const open = event.newState === "open";
    if (open) stand(box.current, button.current);
    setOpen(open);
  };
  return html`<span class="menu"><button type="button" ref=${button} aria-haspopup="dialog" aria-expanded=${isOpen} title=${title} aria-keyshortcuts=${shortcut}>${label}<span aria-hidden="true"> ▾</span></button>
    <div ref=${box} popover="auto" role="dialog" aria-label=${label} class=${`box ${kind}`} onToggle=${toggled}>${isOpen ? (typeof children === "function" ? children(() => box.current?.hidePopover()) : children) : null}</div></span>`;
}

/** Put a box under its button, inside of the window. */
function stand(/** @type {HTMLElement | null} */ box, /** @type {HTMLElement | null} */ button) {
  if (!box || !button) return;
  box.style.right = "auto";
  below(box, button);
  requestAnimationFrame(() => {
    below(box, button);
    if (box.matches(":focus-within")) return; // a frame can be late: who is inside already stays there
    /** @type {HTMLElement | null} */ (box.querySelector("button, input, select"))?.focus();
  });
}

/** Some ways, of which one is taken. @param {{label: string, ways: [any, any][], now: any, choose: (way: any) => void}} given */
export const Choice = ({ label, ways, now, choose }) =>
  html`<div class="choice" role="group" aria-label=${label}>${ways.map(([way, says]) => html`<button type="button" aria-pressed=${now === way} onClick=${() => choose(way)}>${says}</button>`)}</div>`;

const STAYS = 6000; // milliseconds

/** @param {{state: import("./state.js").State}} given */
export function Notice({ state }) {
  const text = state.notice.value;
  useEffect(() => {
    const timer = setTimeout(() => (state.notice.value = ""), STAYS);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<div class=${text ? "notice shown" : "notice"} role="status">${text}</div>`;
}

/** @param {{state: State, side: Side, label: string}} given */
export function Chooser({ state, side, label }) {
  const { recordings } = state.about;
  const [recording, text, call] = side.where.value.split(".").map(Number);
  const { calls } = recordings[recording].texts[text];
  const head = side.head.value;
  const texts = recordings.flatMap((one, r) =>
    one.texts.map((of, t) => ({
      id: `${r}.${t}`,
      label: one.texts.length > 1 ? `${one.name} · ${of.label}` : one.name,
    })),
  );
  const open = (/** @type {any} */ event) => {
    const [r, t] = event.target.value.split(".").map(Number);
    side.choose([r, t, Math.min(call, recordings[r].texts[t].calls.length - 1)], head);
  };
  return html`<span class="chooser" role="group" aria-label=${label}>
    ${
      texts.length > 1
        ? html`<select class="of" aria-label="Text" value=${`${recording}.${text}`} onChange=${open}>${texts.map((one) => html`<option value=${one.id}>${one.label}</option>`)}</select>`
        : html`<span class="of" title=${texts[0].label}>${texts[0].label}</span>`
    }
    <select aria-label="Layer" value=${call} onChange=${(/** @type {any} */ e) => side.choose([recording, text, Number(e.target.value)], head)}>${calls.map((one, i) => html`<option value=${i}>${callTitle(one)}</option>`)}</select>
    <select aria-label="Head" value=${head} onChange=${(/** @type {any} */ e) => side.choose([recording, text, call], Number(e.target.value))}>${calls[call].heads.map((one) => html`<option value=${one}>head ${one}</option>`)}</select>
  </span>`;
}
