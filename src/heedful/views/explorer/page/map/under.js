// What stands under the map: its colours, whether its numbers are exact, and buttons to zoom.
import { digits } from "../figures.js";
import { html, useEffect, useRef } from "../html.js";
import { WHOLE } from "../state.js";
import { zoomThere } from "./place.js";

/** @import { State } from "../state.js" */
/** @import { Painter } from "./painter.js" */

/** @param {{state: State, painter: Painter}} given */
export function Under({ state, painter }) {
  const isWhole = !state.view.value.scale;
  const by = (/** @type {number} */ factor) => () => zoomThere(state, painter.place, factor);
  return html`<div class="under">
    <${Legend} state=${state} painter=${painter} />
    <span class="word" role="status">${painter.word.value}</span>
    <span class="zoom" role="group" aria-label="Zoom"><button aria-label="Zoom in" title="Zoom in (+)" onClick=${by(2)}>+</button><button aria-label="Zoom out" title="Zoom out (−)" disabled=${isWhole} onClick=${by(0.5)}>−</button><button disabled=${isWhole} title="The whole map (0)" onClick=${() => (state.view.value = WHOLE)}>whole</button></span>
  </div>`;
}

/** @param {{state: State, painter: Painter}} given */
function Legend({ state, painter }) {
  const { highest, kind, colours } = painter.legend.value;
  return html`<span class="legend"><span>${lowest(kind, highest)}</span><${Colours} colours=${colours} /><span>${ending(highest)}${painter.scale.isCut.value ? html`<abbr title="A few weights in view are larger: they have the last colour."> +</abbr>` : null}</span>
    <small>${SCALES[kind]}${state.sink.value ? "" : ", first key left out"}</small><i class="hatch" aria-hidden="true"></i><small>hidden</small></span>`;
}

/** A scale of colours. @param {{colours: Uint32Array}} given */
export function Colours({ colours }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => {
    const image = new ImageData(256, 1);
    new Uint32Array(image.data.buffer).set(colours);
    canvas.current?.getContext("2d")?.putImageData(image, 0, 0);
  }, [colours]);
  return html`<canvas ref=${canvas} width="256" height="1" aria-hidden="true"></canvas>`;
}

/** @type {Record<string, string>} */
export const SCALES = { linear: "linear", sqrt: "square root", log: "log" };
export const ending = (/** @type {number} */ highest) =>
  highest >= 1e-4 ? String(+highest.toPrecision(2)) : highest.toExponential(0).replace("-", "−");
export const lowest = (/** @type {string} */ kind, /** @type {number} */ highest) =>
  kind === "log" ? `≤ ${digits(highest / 1e4, 4)}` : "0";
