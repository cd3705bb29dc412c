// The explorer's page in a notebook's cell. Numbers come from the kernel. Keys without modifiers do
// not reach the notebook, and the wheel scrolls the notebook unless the map has the focus.
import { mount } from "../../explorer/page/app.js";
import { unpacked } from "../../explorer/page/wire.js";

/** @import { Host } from "../../explorer/page/types.js" */

/** @typedef {{ask: (question: string, words?: Record<string, any>, signal?: AbortSignal) => Promise<ArrayBuffer>}} Kernel */

/** @param {HTMLElement} element @param {Kernel} kernel @param {Model} model @returns {Promise<() => void>} a function that removes the page */
export async function show(element, kernel, model) {
  /** @type {import("../../explorer/page/types.js").Source} */
  const source = {
    async ask(question, words = {}, signal = undefined) {
      return unpacked(await kernel.ask(question, words, signal));
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
  // a key without a modifier could be a shortcut of the notebook, for example to delete a cell
  const isPageKey = (/** @type {Event} */ event) => {
    const { ctrlKey, metaKey, altKey } = /** @type {KeyboardEvent} */ (event);
    return !ctrlKey && !metaKey && !altKey;
  };
  const stopPageKeys = (/** @type {Event} */ event) => {
    if (isPageKey(event)) event.stopPropagation();
  };
  // Jupyter Notebook 7 handles keys at the document, before the page. It ignores keys inside elements
  // with this attribute (Lumino's CommandRegistry, "data-lm-suppress-shortcuts")
  const suppressShortcuts = (/** @type {Event} */ event) => {
    if (event.composedPath().includes(box))
      box.toggleAttribute("data-lm-suppress-shortcuts", isPageKey(event));
  };
  const kinds = ["keydown", "keypress", "keyup"];
  for (const kind of kinds) box.addEventListener(kind, stopPageKeys);
  window.addEventListener("keydown", suppressShortcuts, true);
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
      for (const kind of kinds) box.removeEventListener(kind, stopPageKeys);
      window.removeEventListener("keydown", suppressShortcuts, true);
    },
  };
}

/** The theme of JupyterLab or VS Code; "light" in other notebooks. */
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
  const observer = new MutationObserver(changed);
  observer.observe(document.body, { attributeFilter: ["data-jp-theme-light", "class"] });
  return () => observer.disconnect();
}
