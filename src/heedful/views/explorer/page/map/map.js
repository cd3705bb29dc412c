// A map on the page: its canvas, the readout at the pointer, the announcement for screen readers.
import { Chooser } from "../controls.js";
import { effect, html, useEffect, useRef, useState } from "../html.js";
import { liveAnswer } from "../request.js";
import { canSubtract } from "./difference.js";
import { Painter } from "./painter.js";
import { followPointer } from "./pointer.js";
import { Announcement, Readout } from "./readout.js";
import { Legend } from "./scale.js";
import { Tiles } from "./tiles.js";

/** @import { State } from "../state.js" */
/** @import { Side, Source } from "../types.js" */
/** @import { Scale } from "./scale.js" */

const NAME =
  "Map of weights: rows are queries, columns keys. Arrow keys move the cell, plus and minus zoom.";

/**
 * @param {object} props
 * @param {State} props.state @param {Side} props.side @param {Source} props.source
 * @param {import("../types.js").Host} props.host
 * @param {any} props.tokens @param {Scale} props.scale
 * @param {(painter: Painter | null) => void} props.onPainter called with the painter of the map
 */
export function MapPane({ state, side, source, host, tokens, scale, onPainter }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [painter, setPainter] = useState(/** @type {Painter | null} */ (null));
  const [weight] = useState(() => liveAnswer(source, () => weightOf(state, side), 60));
  useEffect(() => {
    const props = { state, side, source, host, tokens, scale };
    const painting = startPainting(/** @type {HTMLCanvasElement} */ (canvas.current), props);
    setPainter(painting.painter);
    onPainter(painting.painter);
    return () => {
      painting.end();
      weight.end();
      onPainter(null);
    };
  }, []);
  const isSecond = side !== state;
  const close = side.isDifference ? state.isSubtracted : state.second;
  return html`<figure class="map" aria-label=${side.isDifference ? "The difference" : isSecond ? "The second map" : "The map"}>
    ${
      state.second.value
        ? html`<figcaption>${side.isDifference ? (painter ? html`<${Legend} state=${state} painter=${painter} />` : null) : html`<${Chooser} state=${state} side=${side} label=${isSecond ? "Second map" : "First map"} />`}
      ${isSecond && !side.isDifference ? html`<${Subtract} state=${state} />` : null}
      ${isSecond ? html`<button class="plain" aria-label=${side.isDifference ? "Close the difference" : "Close the second map"} onClick=${() => (close.value = side.isDifference ? false : null)}>×</button>` : null}</figcaption>`
        : null
    }
    <div class="field">
      <canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="map" aria-label=${NAME}></canvas>
      ${painter ? html`<${Readout} state=${state} painter=${painter} tokens=${tokens} weight=${weight} />` : null}
      ${painter && !isSecond ? html`<${Announcement} state=${state} painter=${painter} tokens=${tokens} weight=${weight} />` : null}
    </div></figure>`;
}

/** A button that opens the difference of the two maps. @param {{state: State}} props */
function Subtract({ state }) {
  const isPossible = canSubtract(state);
  return html`<button aria-pressed=${state.isSubtracted.value} disabled=${!isPossible} title=${isPossible ? "A third map: the second minus the first" : "The maps have different numbers of tokens, so they cannot be subtracted"} onClick=${() => (state.isSubtracted.value = !state.isSubtracted.value)}>Difference</button>`;
}

/** The question for the weight under the pointer or, without a pointer, of the selected cell. @param {State} state @param {Side} side @returns {[string, Record<string, any>] | null} */
function weightOf(state, side) {
  const cell = state.hover.value?.cell ?? state.cell.value;
  const [, N, M] = side.call.value.shape;
  if (!cell || cell.query >= N || cell.key >= M) return null;
  const [queries, keys] = [cell.query, cell.key].map((index) => `${index}-${index + 1}`);
  return ["part", { call: side.callId.value, head: side.head.value, queries, keys }];
}

/** Create a painter that repaints on every change. @param {HTMLCanvasElement} canvas @param {any} props */
function startPainting(canvas, { state, side, source, host, tokens, scale }) {
  const tiles = new Tiles(source, () => painter.requestPaint());
  /** @type {Painter} */
  const painter = new Painter(canvas, state, side, tiles, tokens, scale);
  let view = state.view.peek();
  const stops = [
    effect(() => {
      side.callId.value;
      side.head.value;
      state.reduce.value;
      state.colours.value;
      state.sink.value;
      scale.restart();
      painter.requestPaint();
    }),
    effect(() => {
      if (state.view.value !== view) scale.noteMove();
      view = state.view.value;
      for (const signal of [
        state.cell,
        state.pinned,
        state.highlighted,
        state.matches,
        state.segments.current,
        tokens.version,
        scale.highest,
      ])
        signal.value;
      painter.requestPaint();
    }),
    effect(() => {
      state.activeTheme.value;
      requestAnimationFrame(() => painter.updateInk()); // once the page has its new colours
    }),
    followPointer(canvas, state, painter, Boolean(host.wheel)),
  ];
  const size = new ResizeObserver(() => painter.paint()); // paint now instead of in the next frame, so that the old image is never stretched
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
