// The likeliest tokens of an answer, as a table with bars.
import { html } from "../../explorer/page/html.js";
import { readable } from "../../explorer/page/tokens.js";

/** @import { Answer, Walk } from "./types.js" */

/** @param {{walk: Walk, answer: Answer}} props */
export function NextTokens({ walk, answer }) {
  const largest = Math.max(...answer.likeliest.map(({ probability }) => probability));
  return html`<table class="answered"><caption>The ${answer.likeliest.length} likeliest of ${walk.vocabulary.toLocaleString("en")} tokens</caption>
    <thead class="hidden"><tr><th scope="col">token</th><th scope="col">probability</th><th scope="col">as a bar</th></tr></thead>
    <tbody>${answer.likeliest.map(
      (
        likely,
      ) => html`<tr><th scope="row"><bdi>${readable(likely.token)}</bdi></th><td>${likely.probability.toFixed(4)}</td>
        <td><i class="bar" style=${`width:${(100 * likely.probability) / largest}%`}></i></td></tr>`,
    )}</tbody></table>`;
}
