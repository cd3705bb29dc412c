// A line that is told once, and goes by itself.
import { html, useEffect } from "./html.js";

const STAYS = 6000; // milliseconds

/** @param {{state: import("./state.js").State}} given */
export function Notice({ state }) {
  const text = state.notice.value;
  useEffect(() => {
    const timer = setTimeout(() => (state.notice.value = ""), STAYS);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<div class=${text ? "notice shown" : "notice"} role="status">${text}</div>`;
}
