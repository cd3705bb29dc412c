// The colour scale: its end, one for all maps on the page so that colours can be compared; and what
// stands of it under the map, with whether the numbers are exact, and buttons to zoom.

import { html, signal, useEffect, useRef } from "../html.js";
import { digits } from "../number_format.js";
import { WHOLE } from "../state.js";
import { round } from "./colours.js";
import { zoomThere } from "./viewport.js";

/** @import { State } from "../state.js" */
/** @import { Painter } from "./painter.js" */

const STILL = 140; // milliseconds without a move after which the scale may change
const FEW = 24; // blocks of a map up to which the largest weight of all is the end of the scale
const SHARE = 0.9; // of more blocks, this share is not beyond it: one corner leaves the rest its colours

export class Scale {
  constructor() {
    this.highest = signal(1);
    this.isCut = signal(false); // whether there are weights beyond the end
    /** @type {Map<object, number[]>} the largest weights of blocks of each map in view */
    this.seen = new Map();
    this.moved = 0; // when the view moved last
    this.fresh = true;
  }

  /** The view moves: colours stay as they are meanwhile. */
  move() {
    this.moved = performance.now();
  }

  /** What is shown is another: its colours begin anew. */
  renew() {
    this.fresh = true;
  }

  /**
   * A map tells its largest weights. Returns the milliseconds after which it should tell again.
   * @param {object} whose @param {number[]} largest of each block; none where nothing is there yet
   */
  tell(whose, largest) {
    if (!largest.length) return 0;
    this.seen.set(whose, largest);
    const wait = this.fresh ? 0 : STILL - (performance.now() - this.moved);
    if (wait > 0) return wait;
    this.fresh = false;
    const most = Math.max(...[...this.seen.values()].map((one) => Math.max(...one)));
    this.highest.value = round(Math.max(...[...this.seen.values()].map(end)));
    this.isCut.value = most > this.highest.value * 1.0001;
    return 0;
  }

  /** @param {object} whose a map that has been closed */
  leave(whose) {
    this.seen.delete(whose);
  }
}

/** Where the scale of one map ends. @param {number[]} largest */
function end(largest) {
  if (largest.length <= FEW) return Math.max(...largest);
  return largest.toSorted((a, b) => a - b)[Math.floor(SHARE * (largest.length - 1))];
}

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
