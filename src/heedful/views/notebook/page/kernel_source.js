// The page in a cell of a notebook: its source is the kernel, its keys are its own, and the wheel
// is the notebook’s.
import { mount } from "../../explorer/page/app.js";
import { unpacked } from "../../explorer/page/wire.js";

/** @import { Host } from "../../explorer/page/types.js" */

/** @typedef {{ask: (question: string, words?: Record<string, any>, signal?: AbortSignal) => Promise<ArrayBuffer>}} Kernel */

/**
 * @param {HTMLElement} element @param {Kernel} kernel @param {Model} model
 * @returns {Promise<() => void>} what takes it away again
 */
export async function show(element, kernel, model) {
  /** @type {import("../../explorer/page/types.js").Source} */
  const source = {
    async ask(question, about = {}, signal = undefined) {
      return unpacked(await kernel.ask(question, about, signal));
    },
  };
  const { host, end } = inCell(element, model);
  const unmount = await mount(element, source, host);
  return () => {
    end();
    unmount();
  };
}

/** @typedef {{get: (name: string) => any, set: (name: string, value: any) => void, save_changes: () => void}} Model */

/** @param {HTMLElement} element @param {Model} model @returns {{host: Host, end: () => void}} */
export function inCell(element, model) {
  const box = /** @type {HTMLElement} */ (/** @type {ShadowRoot} */ (element.getRootNode()).host);
  // a notebook deletes and inserts cells by single keys
  const isOwn = (/** @type {Event} */ event) => {
    const { ctrlKey, metaKey, altKey } = /** @type {KeyboardEvent} */ (event);
    return !ctrlKey && !metaKey && !altKey;
  };
  const keep = (/** @type {Event} */ event) => {
    if (isOwn(event)) event.stopPropagation();
  };
  // Jupyter Notebook 7 hears keys before the page does, at the document, and passes over those of
  // elements with this attribute of Lumino's (CommandRegistry, "data-lm-suppress-shortcuts")
  const before = (/** @type {Event} */ event) => {
    if (event.composedPath().includes(box))
      box.toggleAttribute("data-lm-suppress-shortcuts", isOwn(event));
  };
  const kinds = ["keydown", "keypress", "keyup"];
  for (const kind of kinds) box.addEventListener(kind, keep);
  window.addEventListener("keydown", before, true);
  return {
    host: {
      theme: { read: theme, follow },
      address: {
        read: () => model.get("view"),
        write(text) {
          model.set("view", text);
          model.save_changes();
        },
        follow: () => () => {},
      },
    },
    end() {
      for (const kind of kinds) box.removeEventListener(kind, keep);
      window.removeEventListener("keydown", before, true);
    },
  };
}

/** What the notebook wears: JupyterLab and VS Code say it, others are light. */
function theme() {
  const { dataset, classList } = document.body;
  const isDark =
    dataset.jpThemeLight === "false" ||
    classList.contains("vscode-dark") ||
    classList.contains("vscode-high-contrast");
  return isDark ? "dark" : "light";
}

/** @param {() => void} changed @returns {() => void} */
function follow(changed) {
  const watched = new MutationObserver(changed);
  watched.observe(document.body, { attributeFilter: ["data-jp-theme-light", "class"] });
  return () => watched.disconnect();
}
