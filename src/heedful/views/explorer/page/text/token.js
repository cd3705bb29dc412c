// A token with its position; where it has no name, the position alone.
import { html } from "../html.js";

/** @import { Tokens } from "../tokens.js" */
/** @import { Axis } from "../types.js" */

/** @param {{tokens: Tokens, where: string, axis: Axis, at: number}} given */
export function Token({ tokens, where, axis, at }) {
  const name = tokens.name(where, axis, at);
  return name
    ? html`<bdi>${name}</bdi><small class="place">${at}</small>`
    : html`<span>${at}</span>`;
}
