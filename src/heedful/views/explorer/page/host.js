// Where a page stands that has a window to itself: its keys are the window's, its address too.

/** @import { Host } from "./types.js" */

/** @returns {Host} */
export function alone() {
  const here = () => location.hash.slice(1);
  return {
    keys: document,
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
