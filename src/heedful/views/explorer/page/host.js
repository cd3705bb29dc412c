// Where a page stands that has a window to itself: its keys are the window's, its address too; or
// a frame, which has keys and no address.
import { effect } from "./html.js";

/** @import { Address, Host } from "./types.js" */

const PAUSE = 200; // milliseconds for which nothing changes before the address does

/**
 * Keep an address and what is shown the same; ends that.
 * @param {Address} address @param {(text: string) => void} read take over what it says
 * @param {() => string} written what is shown, as an address
 * @param {() => string} step what of it can be gone back to
 */
export function follow(address, read, written, step) {
  read(address.read());
  const unfollow = address.follow(() => read(address.read()));
  let waiting = 0;
  let stood = step();
  const stop = effect(() => {
    const [text, now] = [written(), step()];
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (address.read() !== text) address.write(text, now !== stood);
      stood = now;
    }, PAUSE);
  });
  return () => {
    unfollow();
    stop();
    clearTimeout(waiting);
  };
}

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
