// What stands under the map: its colours, whether its numbers are exact, and buttons to zoom.
import { html, useEffect, useRef } from "./html.js";
import { zoom } from "./map.js";
import { digits } from "./weight.js";

export function Under({ state, painter }) {
  const { highest, kind } = painter.legend.value;
  const place = state.view.value.scale;
  const middle = (event, factor) =>
    zoom(painter, factor, painter.canvas.clientWidth / 2, painter.canvas.clientHeight / 2);
  return html`<div class="under">
    <${Legend} legend=${painter.legend} />
    <span class="word" aria-live="polite">${painter.word.value}</span>
    <span class="grow"></span>
    <button aria-label="Zoom in" onClick=${(e) => middle(e, 2)}>+</button><button aria-label="Zoom out" onClick=${(e) => middle(e, 0.5)}>−</button>
    <button onClick=${() => (state.view.value = { x: 0, y: 0, scale: 0 })} disabled=${!place}>whole</button>
  </div>`;
}

function Legend({ legend }) {
  const canvas = useRef(null);
  const { highest, kind, colours } = legend.value;
  useEffect(() => {
    const image = new ImageData(256, 1);
    new Uint32Array(image.data.buffer).set(colours);
    canvas.current?.getContext("2d").putImageData(image, 0, 0);
  });
  return html`<span class="legend"><span>${kind === "log" ? digits(highest / 1e4, 6) : "0"}</span><canvas ref=${canvas} width="256" height="1"></canvas><span>${+highest.toPrecision(2)}</span><i class="box"></i>hidden</span>`;
}
