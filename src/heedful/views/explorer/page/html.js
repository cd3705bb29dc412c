// What all views import: Preact, its hooks and signals, and htm's templates.

export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { Fragment, render } from "./vendor/preact.js";
export { batch, computed, effect, signal, untracked } from "./vendor/signals-core.js";

import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";
import "./vendor/signals.js"; // re-renders components when a signal that they read changes

export const html = htm.bind(h);
