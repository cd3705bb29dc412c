// One map on the page: its canvas, what stands over it, and what a screen reader is told.

import { Chooser } from "../controls.js";
import { effect, html, useEffect, useRef, useState } from "../html.js";
import { asked } from "../request.js";
import { Painter } from "./painter.js";
import { pointed } from "./pointer.js";
import { Readout, Told } from "./readout.js";
import { Tiles } from "./tiles.js";

/** @import { State } from "../state.js" */
/** @import { Side, Source } from "../types.js" */
/** @import { Scale } from "./scale.js" */

const NAME =
  "Map of weights: rows are queries, columns keys. Arrow keys move the cell, plus and minus zoom.";

/**
 * @param {object} given
 * @param {State} given.state @param {Side} given.side @param {Source} given.source
 * @param {import("../types.js").Host} given.host
 * @param {any} given.tokens @param {Scale} given.scale
 * @param {(painter: Painter | null) => void} given.keep
 */
export function MapPane({ state, side, source, host, tokens, scale, keep }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [painter, setPainter] = useState(/** @type {Painter | null} */ (null));
  const [weight] = useState(() => asked(source, () => weightOf(state, side), 60));
  useEffect(() => {
    const given = { state, side, source, host, tokens, scale };
    const made = painting(/** @type {HTMLCanvasElement} */ (canvas.current), given);
    setPainter(made.painter);
    keep(made.painter);
    return () => {
      made.end();
      weight.end();
      keep(null);
    };
  }, []);
  const isSecond = side !== state;
  return html`<figure class="map" aria-label=${isSecond ? "The second map" : "The map"}>
    ${
      state.second.value
        ? html`<figcaption><${Chooser} state=${state} side=${side} label=${isSecond ? "Second map" : "First map"} />
      ${isSecond ? html`<button class="plain" aria-label="Close the second map" onClick=${() => (state.second.value = null)}>×</button>` : null}</figcaption>`
        : null
    }
    <div class="field">
      <canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="map" aria-label=${NAME}></canvas>
      ${painter ? html`<${Readout} state=${state} painter=${painter} tokens=${tokens} weight=${weight} />` : null}
      ${painter && !isSecond ? html`<${Told} state=${state} painter=${painter} tokens=${tokens} weight=${weight} />` : null}
    </div></figure>`;
}

/** The weight under the pointer, else of the chosen cell. @param {State} state @param {Side} side @returns {[string, Record<string, any>] | null} */
function weightOf(state, side) {
  const cell = state.hover.value?.cell ?? state.cell.value;
  const [, N, M] = side.call.value.shape;
  if (!cell || cell.query >= N || cell.key >= M) return null;
  const [queries, keys] = [cell.query, cell.key].map((at) => `${at}-${at + 1}`);
  return ["part", { call: side.where.value, head: side.head.value, queries, keys }];
}

/** A painter that paints whenever something changes that it shows. @param {HTMLCanvasElement} canvas @param {any} given */
function painting(canvas, { state, side, source, host, tokens, scale }) {
  const tiles = new Tiles(source, () => painter.soon());
  /** @type {Painter} */
  const painter = new Painter(canvas, state, side, tiles, tokens, scale);
  let view = state.view.peek();
  const stops = [
    effect(() => {
      side.where.value;
      side.head.value;
      state.reduce.value;
      state.colours.value;
      state.sink.value;
      scale.renew();
      painter.soon();
    }),
    effect(() => {
      if (state.view.value !== view) scale.move();
      view = state.view.value;
      for (const one of [
        state.cell,
        state.pinned,
        state.held,
        state.found,
        state.segments.now,
        tokens.version,
        scale.highest,
      ])
        one.value;
      painter.soon();
    }),
    effect(() => {
      state.worn.value;
      requestAnimationFrame(() => painter.newInk()); // when the page has its new colours
    }),
    pointed(canvas, state, painter, Boolean(host.wheel)),
  ];
  const size = new ResizeObserver(() => painter.paint()); // at once, so that nothing is stretched
  size.observe(canvas);
  return {
    painter,
    end() {
      for (const stop of stops) stop();
      size.disconnect();
      painter.close();
    },
  };
}
