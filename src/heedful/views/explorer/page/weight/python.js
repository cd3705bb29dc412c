// The line of Python that gives the number that is shown.
import { html, useRef, useState } from "../html.js";

/** @import { State } from "../state.js" */
/** @import { Cell, TextAbout } from "../types.js" */

/**
 * @param {TextAbout} text what is looked at
 * @param {number} call @param {number} head @param {Cell} at
 */
export const line = (text, call, head, at) =>
  `${text.code}[${text.calls[call].at}].weights(head=${head}, queries=[${at.query}], keys=[${at.key}])`;

/** @param {{state: State, at: Cell}} given */
export function Line({ state, at }) {
  const [recording, text, call] = state.at.value;
  const { name, texts } = state.about.recordings[recording];
  const written = line(texts[text], call, state.head.value, at);
  const shown = useRef(/** @type {HTMLElement | null} */ (null));
  const [said, setSaid] = useState("");
  const copy = async () => {
    setSaid((await copied(written, shown.current)) ? "copied" : "selected: copy it");
    setTimeout(() => setSaid(""), 2000);
  };
  const many = state.about.recordings.length > 1;
  return html`<div class="python"><p class="quiet">The same in Python${many ? html`, of <bdi>${name}</bdi>` : ""}</p>
    <code ref=${shown}>${written}</code><button type="button" onClick=${copy}>copy</button><span role="status" class="quiet">${said}</span></div>`;
}

/** Copy a text; where a page may not, select it. @param {string} text @param {HTMLElement | null} element */
async function copied(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    if (element) getSelection()?.selectAllChildren(element);
    return false;
  }
}
