// The colour scale that all maps of the page share, so that their colours can be compared. Also the
// bar below the map, with the legend, the precision of the numbers, and zoom buttons.
import { html, signal, useEffect, useRef } from "../html.js";
import { digits } from "../number_format.js";
import { FULL_VIEW } from "../state.js";
import { round } from "./colours.js";
import { zoomAtCell } from "./viewport.js";

/** @import { State } from "../state.js" */
/** @import { Painter } from "./painter.js" */

const STILL = 140; // milliseconds without a move before the scale may change
const FEW = 24; // with at most this number of blocks, the scale ends at the largest weight
const SHARE = 0.9; // with more blocks, it ends at this quantile of the blocks' largest weights

export class Scale {
  constructor() {
    this.highest = signal(1);
    this.isCut = signal(false); // whether some weights exceed the end of the scale
    /** @type {Map<object, number[]>} the largest weight of each visible block, by map */
    this.blocks = new Map();
    this.lastMove = 0; // a time of performance.now()
    this.isStale = true;
  }

  /** Note that the view has moved; the scale does not change while the view moves. */
  noteMove() {
    this.lastMove = performance.now();
  }

  /** Recompute the scale at the next report, because the maps have changed. */
  restart() {
    this.isStale = true;
  }

  /**
   * Report the largest weights of a map. Return the milliseconds after which to report again; 0: never.
   * @param {object} map @param {number[]} largest of each block; empty if nothing is loaded
   */
  report(map, largest) {
    if (!largest.length) return 0;
    this.blocks.set(map, largest);
    const wait = this.isStale ? 0 : STILL - (performance.now() - this.lastMove);
    if (wait > 0) return wait;
    this.isStale = false;
    const largestWeight = Math.max(
      ...[...this.blocks.values()].map((weights) => Math.max(...weights)),
    );
    this.highest.value = round(Math.max(...[...this.blocks.values()].map(scaleEnd)));
    this.isCut.value = largestWeight > this.highest.value * 1.0001;
    return 0;
  }

  /** @param {object} map a map that has been closed */
  leave(map) {
    this.blocks.delete(map);
  }
}

/** The end of the scale for one map. @param {number[]} largest */
function scaleEnd(largest) {
  if (largest.length <= FEW) return Math.max(...largest);
  return largest.toSorted((a, b) => a - b)[Math.floor(SHARE * (largest.length - 1))];
}

/** @param {{state: State, painter: Painter}} props */
export function LegendBar({ state, painter }) {
  const isWhole = !state.view.value.scale;
  const zoomBy = (/** @type {number} */ factor) => () => zoomAtCell(state, painter.place, factor);
  return html`<div class="legend-bar">
    <${Legend} state=${state} painter=${painter} />
    <span class="word" role="status">${painter.caption.value}</span>
    <span class="zoom" role="group" aria-label="Zoom"><button aria-label="Zoom in" title="Zoom in (+)" onClick=${zoomBy(2)}>+</button><button aria-label="Zoom out" title="Zoom out (−)" disabled=${isWhole} onClick=${zoomBy(0.5)}>−</button><button disabled=${isWhole} title="The full map (0)" onClick=${() => (state.view.value = FULL_VIEW)}>fit</button></span>
  </div>`;
}

/** @param {{state: State, painter: Painter}} props */
export function Legend({ state, painter }) {
  const { highest, kind, colours, hasNaN } = painter.legend.value;
  return html`<span class="legend"><span>${lowest(kind, highest)}</span><${Colours} colours=${colours} /><span>${ending(highest)}${painter.scale.isCut.value ? html`<abbr title="A few weights in view are larger; they have the last colour."> +</abbr>` : null}</span>
    <small>${state.hasValueNorms.value ? "weight × ‖value‖, " : ""}${SCALES[kind]}${state.sink.value ? "" : ", first key excluded"}</small><i class="hatch" aria-hidden="true"></i><small>masked</small>${hasNaN ? html`<i class="nan" aria-hidden="true"></i><small>not a number</small>` : null}</span>`;
}

/** The colours of the scale as a strip. @param {{colours: Uint32Array}} props */
export function Colours({ colours }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => {
    const image = new ImageData(256, 1);
    new Uint32Array(image.data.buffer).set(colours.subarray(0, 256));
    canvas.current?.getContext("2d")?.putImageData(image, 0, 0);
  }, [colours]);
  return html`<canvas ref=${canvas} width="256" height="1" aria-hidden="true"></canvas>`;
}

/** @type {Record<string, string>} */
export const SCALES = {
  linear: "linear",
  sqrt: "square root",
  log: "log",
  difference: "second − first",
};
export const ending = (/** @type {number} */ highest) =>
  highest >= 1e-4 ? String(+highest.toPrecision(2)) : highest.toExponential(0).replace("-", "−");
export const lowest = (/** @type {string} */ kind, /** @type {number} */ highest) =>
  kind === "difference"
    ? `−${ending(highest)}`
    : kind === "log"
      ? `≤ ${digits(highest / 1e4, 4)}`
      : "0";
