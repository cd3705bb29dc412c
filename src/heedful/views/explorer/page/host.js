// The surroundings of the page: a window, whose address stores the state, or a frame in a window.
import { effect } from "./html.js";

/** @import { Address, Host } from "./types.js" */

const PAUSE = 200; // milliseconds without changes before the address is updated

/**
 * Synchronise the address with the state of the page; return a function that stops this.
 * @param {Address} address @param {(text: string) => void} read set the state from an address
 * @param {() => string} state the state as an address
 * @param {() => string} step the part of the state whose changes add entries to the history
 */
export function follow(address, read, state, step) {
  read(address.read());
  const unfollow = address.follow(() => read(address.read()));
  let timer = 0;
  let previousStep = step();
  const stop = effect(() => {
    const [text, now] = [state(), step()];
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (address.read() !== text) address.write(text, now !== previousStep);
      previousStep = now;
    }, PAUSE);
  });
  return () => {
    unfollow();
    stop();
    clearTimeout(timer);
  };
}

/** The system's theme. @returns {import("./types.js").Theme} */
export function systemTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  return {
    read: () => (dark.matches ? "dark" : "light"),
    follow(changed) {
      dark.addEventListener("change", changed);
      return () => dark.removeEventListener("change", changed);
    },
  };
}

/** The host of a page that fills a browser window. @param {string} [view] the state without an address @returns {Host} */
export function windowHost(view = "") {
  const hash = () => location.hash.slice(1);
  return {
    keys: document,
    wheel: true,
    address: {
      read: () => hash() || view,
      write(text, isStep) {
        if (isStep && hash()) history.pushState(null, "", `#${text}`);
        else history.replaceState(null, "", `#${text}`);
      },
      follow(changed) {
        addEventListener("popstate", changed);
        return () => removeEventListener("popstate", changed);
      },
      link: () => ({
        address: location.href,
        place: `It works in this browser, while ${location.protocol === "file:" ? "the file stays at its place" : "heedful look runs"}.`,
      }),
    },
  };
}

/** The host of a page in a frame. @param {string} view the initial state @returns {Host} */
export function frameHost(view) {
  let now = view;
  return {
    keys: document,
    address: { read: () => now, write: (text) => (now = text), follow: () => () => {} },
  };
}
