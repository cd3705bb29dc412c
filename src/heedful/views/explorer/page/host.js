// Where a page stands that has a window to itself: its keys are the window's, its address too; or
// a frame, which has keys and no address.

/** @import { Host } from "./types.js" */

/** What the system wears. @returns {import("./types.js").Theme} */
export function system() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  return {
    read: () => (dark.matches ? "dark" : "light"),
    follow(changed) {
      dark.addEventListener("change", changed);
      return () => dark.removeEventListener("change", changed);
    },
  };
}

/** @returns {Host} */
export function alone() {
  const here = () => location.hash.slice(1);
  return {
    keys: document,
    wheel: true,
    address: {
      read: here,
      write(text, isStep) {
        if (isStep && here()) history.pushState(null, "", `#${text}`);
        else history.replaceState(null, "", `#${text}`);
      },
      follow(changed) {
        addEventListener("popstate", changed);
        return () => removeEventListener("popstate", changed);
      },
      link: () => location.href,
    },
  };
}

/** @param {string} view what is shown first @returns {Host} */
export function framed(view) {
  let now = view;
  return {
    keys: document,
    address: { read: () => now, write: (text) => (now = text), follow: () => () => {} },
  };
}
