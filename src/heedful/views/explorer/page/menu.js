// A button with a box under it that closes by Escape, by a click beside it, or by its button.
import { html, useEffect, useRef, useState } from "./html.js";

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
  const at = button.getBoundingClientRect();
  const wide = document.documentElement.clientWidth;
  box.style.top = `${at.bottom + 6}px`;
  box.style.right = "auto";
  box.style.left = "8px";
  requestAnimationFrame(() => {
    const left = Math.min(at.left, wide - box.offsetWidth - 8);
    box.style.left = `${Math.max(8, left)}px`;
    if (box.matches(":focus-within")) return; // a frame can be late: who is inside already stays there
    /** @type {HTMLElement | null} */ (box.querySelector("button, input, select"))?.focus();
  });
}
