// The words that a model thinks likely, as bars.
import { html } from "../../explorer/page/html.js";
import { readable } from "../../explorer/page/tokens.js";

/** @import { Answer, Walk } from "./types.js" */

/** @param {{walk: Walk, answer: Answer}} given */
export function Answered({ walk, answer }) {
  const most = Math.max(...answer.likeliest.map((one) => one.probability));
  return html`<table class="answered"><caption>${answer.likeliest.length} of ${walk.vocabulary.toLocaleString("en")}, the likeliest first</caption>
    <thead class="hidden"><tr><th scope="col">token</th><th scope="col">probability</th><th scope="col">as a bar</th></tr></thead>
    <tbody>${answer.likeliest.map(
      (
        one,
      ) => html`<tr><th scope="row"><bdi>${readable(one.token)}</bdi></th><td>${one.probability.toFixed(4)}</td>
        <td><i class="bar" style=${`width:${(100 * one.probability) / most}%`}></i></td></tr>`,
    )}</tbody></table>`;
}
