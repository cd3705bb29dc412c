// Shared controls: menus, toggle groups, the choice of text, layer and head, and notices.
import { placeBelow } from "./glossary.js";
import { callTitle } from "./heads/scores.js";
import { html, useEffect, useRef, useState } from "./html.js";

/** @import { State } from "./state.js" */
/** @import { Side } from "./types.js" */

/**
 * A button that opens a box of controls. @param {object} props
 * @param {string} props.label @param {any} props.children @param {string} [props.title]
 * @param {string} [props.kind] a CSS class of the box @param {string} [props.shortcut] the key that opens it
 */
export function Menu({ label, children, title, kind = "", shortcut }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const button = useRef(/** @type {HTMLElement | null} */ (null));
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    // set as an element, not by an id, since a document may contain two pages
    Object.assign(button.current ?? {}, { popoverTargetElement: box.current });
  }, []);
  const toggled = (/** @type {any} */ event) => {
    const open = event.newState === "open";
    if (open) placeBox(box.current, button.current, kind === "over-map");
    setOpen(open);
  };
  return html`<span class="menu"><button type="button" ref=${button} aria-haspopup="dialog" aria-expanded=${isOpen} title=${title} aria-keyshortcuts=${shortcut}>${label}<span aria-hidden="true"> ▾</span></button>
    <div ref=${box} popover="auto" role="dialog" aria-label=${label} class=${`box ${kind}`} onToggle=${toggled}>${isOpen ? (typeof children === "function" ? children(() => box.current?.hidePopover()) : children) : null}</div></span>`;
}

/** Place a box under its button, inside the window. */
function placeBox(
  /** @type {HTMLElement | null} */ box,
  /** @type {HTMLElement | null} */ button,
  isOverMap = false,
) {
  if (!box || !button) return;
  box.style.right = "auto";
  placeBelow(box, button);
  requestAnimationFrame(() => {
    placeBelow(box, button);
    const map = button.closest(".page")?.querySelector('[data-part="map"]');
    if (isOverMap && map) {
      const right = document.documentElement.clientWidth - map.getBoundingClientRect().right;
      Object.assign(box.style, { left: "auto", right: `${right + 8}px` }); // beside the weight
    }
    if (box.matches(":focus-within")) return; // the user has already moved the focus here
    /** @type {HTMLElement | null} */ (box.querySelector("button, input, select"))?.focus();
  });
}

/** A group of toggle buttons, of which one is pressed. @param {{label: string, options: [any, any][], selected: any, choose: (option: any) => void}} props */
export const Choice = ({ label, options, selected, choose }) =>
  html`<div class="choice" role="group" aria-label=${label}>${options.map(([option, text]) => html`<button type="button" aria-pressed=${selected === option} onClick=${() => choose(option)}>${text}</button>`)}</div>`;

const NOTICE_TIME = 6000; // milliseconds

/** A message that disappears after some seconds. @param {{state: State}} props */
export function Notice({ state }) {
  const text = state.notice.value;
  useEffect(() => {
    const timer = setTimeout(() => (state.notice.value = ""), NOTICE_TIME);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<div class=${text ? "notice shown" : "notice"} role="status">${text}</div>`;
}

/** The choice of text, layer and head. @param {{state: State, side: Side, label: string}} props */
export function Chooser({ state, side, label }) {
  const { recordings } = state.about;
  const [recording, text, call] = side.callId.value.split(".").map(Number);
  const { calls } = recordings[recording].texts[text];
  const head = side.head.value;
  const texts = recordings.flatMap(({ name, texts }, r) =>
    texts.map((about, t) => ({
      id: `${r}.${t}`,
      label: texts.length > 1 ? `${name} · ${about.label}` : name,
    })),
  );
  const open = (/** @type {any} */ event) => {
    const [r, t] = event.target.value.split(".").map(Number);
    side.choose([r, t, Math.min(call, recordings[r].texts[t].calls.length - 1)], head);
  };
  return html`<span class="chooser" role="group" aria-label=${label}>
    ${
      texts.length > 1
        ? html`<select class="text-name" aria-label="Text" value=${`${recording}.${text}`} onChange=${open}>${texts.map((entry) => html`<option value=${entry.id}>${entry.label}</option>`)}</select>`
        : html`<span class="text-name" title=${texts[0].label}>${texts[0].label}</span>`
    }
    <select aria-label="Layer" value=${call} onChange=${(/** @type {any} */ e) => side.choose([recording, text, Number(e.target.value)], head)}>${calls.map((about, i) => html`<option value=${i}>${callTitle(about)}</option>`)}</select>
    <select aria-label="Head" value=${head} onChange=${(/** @type {any} */ e) => side.choose([recording, text, call], Number(e.target.value))}>${calls[call].heads.map((number) => html`<option value=${number}>head ${number}</option>`)}</select>
  </span>`;
}

/** A line of Python code with a copy button. @param {{code: string, children: any}} props */
export function Code({ code, children }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [message, setMessage] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(code);
      setMessage("copied");
    } catch {
      if (element.current) getSelection()?.selectAllChildren(element.current);
      setMessage("selected for copying");
    }
    setTimeout(() => setMessage(""), 2000);
  };
  return html`<div class="python"><p class="quiet">${children}</p>
    <code ref=${element}>${code}</code><button type="button" onClick=${copy}>copy</button><span role="status" class="quiet">${message}</span></div>`;
}
