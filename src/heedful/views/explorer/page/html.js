// What every view is written with: Preact's `h` behind htm's templates, hooks and signals.

export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { Fragment, render } from "./vendor/preact.js";
export { batch, computed, effect, signal, untracked } from "./vendor/signals-core.js";

import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";
import "./vendor/signals.js"; // components that read a signal are drawn anew when it changes

export const html = htm.bind(h);
