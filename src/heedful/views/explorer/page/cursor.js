// Where the keyboard is in a list. It is a signal, as keys may come faster than drawings.
import { signal, useState } from "./html.js";

/** @template T @typedef {import("./types.js").Signal<T>} Signal */

/** Nowhere at first. @template T @returns {Signal<T | null>} */
export const useCursor = () => useState(() => signal(/** @type {T | null} */ (null)))[0];
