// The map of one head: pans and zooms from the whole to single cells. Rows are queries.

import { round, table } from "./colours.js";
import { effect, html, signal, useEffect, useRef } from "./html.js";
import { largest, picture } from "./tiles.js";

const SIDE = 256;
const GUTTER = { left: 96, top: 84 };
const LETTERS = 13; // pixels that a row needs to have its token beside it
const MOST_SCALE = 72;

/** How a map of N × M lies in a canvas. @param {{x: number, y: number, scale: number}} view */
export function placed(view, [N, M], width, height) {
  const room = [Math.max(40, width - GUTTER.left - 8), Math.max(40, height - GUTTER.top - 8)];
  const whole = Math.min(room[0] / M, room[1] / N, MOST_SCALE);
  if (!view.scale) return { x: 0, y: 0, scale: whole, whole, room };
  const scale = Math.min(MOST_SCALE, Math.max(view.scale, whole));
  const held = (at, size, pixels) => {
    const most = size - pixels / scale;
    return most <= 0 ? 0 : Math.min(most, Math.max(0, at));
  };
  return { x: held(view.x, M, room[0]), y: held(view.y, N, room[1]), scale, whole, room };
}

/** The level whose pixels are the finest that the screen shows. */
export function levelOf(scale, ratio) {
  return Math.max(0, Math.floor(-Math.log2(scale * ratio) + 1e-6));
}

export class Painter {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas, state, tiles, tokens, side = state) {
    this.canvas = canvas;
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    Object.assign(this, { state, tiles, tokens, side }); // the side says which call and head
    this.highest = 1;
    this.word = signal("");
    this.legend = signal({ highest: 1, kind: "sqrt", colours: table(false) });
    this.asked = 0;
  }

  /** Paint in the next frame. */
  soon() {
    this.asked ||= requestAnimationFrame(() => {
      this.asked = 0;
      this.paint();
    });
  }

  get place() {
    const [, N, M] = this.side.call.value.shape;
    return placed(this.state.view.value, [N, M], this.canvas.clientWidth, this.canvas.clientHeight);
  }

  paint() {
    const { canvas, context, side } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !height) return;
    if (
      canvas.width !== Math.round(width * ratio) ||
      canvas.height !== Math.round(height * ratio)
    ) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const look = getComputedStyle(canvas);
    const dark = look.getPropertyValue("--dark").trim() === "1";
    this.ink = {
      text: look.color,
      quiet: look.getPropertyValue("--quiet"),
      ground: look.getPropertyValue("--ground"),
      mark: look.getPropertyValue("--mark"),
      hidden: dark ? 0xff2c2724 : 0xffe6e3e1,
    };
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const place = this.place;
    const began = performance.now();
    const shown = this._cover(place, ratio);
    const highest = this._highest(shown);
    const colours = (this.colours = this.dark === dark ? this.colours : table(dark));
    this.dark = dark;
    context.save();
    context.beginPath();
    const [, N, M] = side.call.value.shape;
    const wide = Math.min(place.room[0], (M - place.x) * place.scale);
    const high = Math.min(place.room[1], (N - place.y) * place.scale);
    context.rect(GUTTER.left, GUTTER.top, wide, high);
    context.clip();
    context.imageSmoothingEnabled = false;
    for (const part of shown) this._draw(part, place, colours, highest, ratio);
    this._sink(place, N);
    this._marks(place, N, M);
    context.restore();
    this._labels(place, N, M, wide, high);
    this.tiles.abandon(began);
    this._tell(shown, highest, colours);
  }

  /** The tiles of what is in view, coarser ones where the right ones are not there yet. */
  _cover(place, ratio) {
    const { state, side } = this;
    const [, N, M] = side.call.value.shape;
    const top = Math.max(0, Math.ceil(Math.log2(Math.max(N, M) / SIDE)));
    const level = Math.min(top, levelOf(place.scale, ratio));
    const size = SIDE * 2 ** level;
    const shown = [];
    const last = [
      Math.min(N - 1, place.y + place.room[1] / place.scale),
      Math.min(M - 1, place.x + place.room[0] / place.scale),
    ];
    const wanted = [];
    for (let row = Math.floor(place.y / size); row * size <= last[0]; row++)
      for (let column = Math.floor(place.x / size); column * size <= last[1]; column++)
        wanted.push([row, column]);
    // the middle is asked for last, and the newest question is answered first
    const middle = [(place.y + last[0]) / 2 / size - 0.5, (place.x + last[1]) / 2 / size - 0.5];
    const far = ([row, column]) => Math.hypot(row - middle[0], column - middle[1]);
    wanted.sort((a, b) => far(b) - far(a));
    const get = (l, r, c, fetch) =>
      this.tiles.tile(side.where.value, [side.head.value, l, r, c], state.reduce.value, fetch);
    get(top, 0, 0, true); // the whole, which stands in for everything
    for (const [row, column] of wanted) {
      const exact = get(level, row, column, true);
      if (exact) {
        shown.push({ tile: exact, level, row, column, from: [0, 0, exact.columns, exact.rows] });
        continue;
      }
      for (let up = level + 1; up <= top; up++) {
        const by = 2 ** (up - level);
        const tile = get(up, Math.floor(row / by), Math.floor(column / by), false);
        if (!tile) continue;
        const part = SIDE / by;
        const from = [(column % by) * part, (row % by) * part];
        shown.push({
          tile,
          level,
          row,
          column,
          stands: true,
          from: [
            ...from,
            Math.min(part, tile.columns - from[0]),
            Math.min(part, tile.rows - from[1]),
          ],
          cell: 2 ** up,
        });
        break;
      }
    }
    this.level = level;
    this.missing = shown.length < wanted.length || shown.some((part) => part.stands);
    return shown;
  }

  _highest(shown) {
    let found = 0;
    for (const { tile } of shown) found = Math.max(found, largest(tile, this.state.sink.value));
    return found ? round(found) : 1;
  }

  _draw({ tile, level, row, column, from, cell = 2 ** level }, place, colours, highest, ratio) {
    const image = picture(tile, colours, highest, this.state.colours.value, this.ink.hidden);
    const size = SIDE * 2 ** level;
    const snap = (value) => Math.round(value * ratio) / ratio;
    const [, N, M] = this.side.call.value.shape;
    const x0 = snap(GUTTER.left + (column * size - place.x) * place.scale);
    const y0 = snap(GUTTER.top + (row * size - place.y) * place.scale);
    const right = Math.min(M, column * size + from[2] * cell);
    const lower = Math.min(N, row * size + from[3] * cell);
    const x1 = snap(GUTTER.left + (right - place.x) * place.scale);
    const y1 = snap(GUTTER.top + (lower - place.y) * place.scale);
    // an edge tile's last pixels stand for fewer cells than the others
    const part = [(right - column * size) / cell, (lower - row * size) / cell];
    this.context.drawImage(image, from[0], from[1], part[0], part[1], x0, y0, x1 - x0, y1 - y0);
  }

  /** The first key's column, hatched where it is left out of the scale. */
  _sink(place, N) {
    if (this.state.sink.value || place.x >= 1) return;
    const { context } = this;
    const [x, wide] = [GUTTER.left - place.x * place.scale, Math.max(3, place.scale)];
    context.fillStyle = this.ink.ground;
    context.globalAlpha = 0.82;
    context.fillRect(x, GUTTER.top, wide, Math.min(place.room[1], (N - place.y) * place.scale));
    context.globalAlpha = 1;
  }

  _marks(place, N, M) {
    const cell = this.state.cell.value;
    if (!cell) return;
    const { context } = this;
    const x = GUTTER.left + (cell.key - place.x) * place.scale;
    const y = GUTTER.top + (cell.query - place.y) * place.scale;
    const size = Math.max(place.scale, 3);
    context.strokeStyle = this.ink.mark;
    context.lineWidth = 1;
    context.globalAlpha = 0.55;
    context.strokeRect(GUTTER.left - 2, y, place.room[0] + 4, size);
    context.strokeRect(x, GUTTER.top - 2, size, place.room[1] + 4);
    context.globalAlpha = 1;
    context.lineWidth = 2;
    context.strokeRect(x - 1, y - 1, size + 2, size + 2);
  }

  _labels(place, N, M, wide, high) {
    const { context, tokens, state, side } = this;
    const where = side.where.value;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const every = (scale) => {
      const least = LETTERS / scale;
      if (least <= 1) return 1;
      const ten = 10 ** Math.floor(Math.log10((least * 46) / LETTERS));
      return [1, 2, 5, 10].map((n) => n * ten).find((n) => n * scale >= 46) ?? ten * 10;
    };
    const step = every(place.scale);
    const write = (axis, at, width) => {
      if (step > 1) return at.toLocaleString("en");
      const name = tokens.name(where, axis, at);
      return fitted(
        context,
        name === undefined ? "…" : name === null ? String(at) : name,
        at,
        width,
      );
    };
    const selected = state.cell.value;
    const cut = (first, size, pixels) => [
      Math.ceil(first / step) * step,
      Math.min(size, first + pixels / place.scale),
    ];
    const [startRow, endRow] = cut(place.y, N, high);
    for (let n = startRow; n < endRow; n += step) {
      const y = GUTTER.top + (n + 0.5 - place.y) * place.scale;
      context.fillStyle = selected?.query === n ? this.ink.mark : this.ink.text;
      context.textAlign = "right";
      context.fillText(write("queries", n, GUTTER.left - 14), GUTTER.left - 7, y);
    }
    const [startColumn, endColumn] = cut(place.x, M, wide);
    for (let m = startColumn; m < endColumn; m += step) {
      const x = GUTTER.left + (m + 0.5 - place.x) * place.scale;
      context.save();
      context.translate(x, GUTTER.top - 7);
      context.rotate(-Math.PI / 2);
      context.fillStyle = selected?.key === m ? this.ink.mark : this.ink.text;
      context.textAlign = "left";
      context.fillText(write("keys", m, GUTTER.top - 14), 0, 0);
      context.restore();
    }
    context.fillStyle = this.ink.quiet;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "left";
    context.fillText("queries ↓", 6, GUTTER.top - 22);
    context.fillText("keys →", 6, GUTTER.top - 8);
  }

  _tell(shown, highest, colours) {
    const words = new Set(shown.map(({ tile }) => tile.word));
    const done = shown.find(({ tile }) => tile.word === "sampled")?.tile.done ?? 0;
    const cells = 2 ** this.level;
    let word =
      cells === 1
        ? "every weight"
        : `${this.state.reduce.value} of ${cells} × ${cells} weights a pixel`;
    if (words.has("sampled")) {
      word += ` · sampled; exact in a moment (${Math.round(done * 100)} %)`;
      clearTimeout(this.again);
      this.again = setTimeout(() => this.soon(), 750);
    } else if (this.missing) word += " · loading";
    else word += " · exact";
    if (this.tiles.failed) word = this.tiles.failed;
    this.word.value = word;
    const kind = this.state.colours.value;
    const old = this.legend.value;
    if (old.highest !== highest || old.kind !== kind || old.colours !== colours)
      this.legend.value = { highest, kind, colours };
  }
}

/** A token's name with its position, as long as there is room. */
function fitted(context, name, at, width) {
  const number = ` ${at}`;
  const whole = name + number;
  if (context.measureText(whole).width <= width) return isolated(name) + number;
  const letters = [...name];
  while (letters.length > 1 && context.measureText(letters.join("") + "…" + number).width > width)
    letters.pop();
  return isolated(letters.join("") + "…") + number;
}

/** So that the direction of its script does not move what stands beside it. */
const isolated = (text) => `\u2068${text}\u2069`;

export function Map({ state, side, keep }) {
  const canvas = useRef(null);
  useEffect(() => {
    const mine = keep(canvas.current);
    const stop = effect(() => {
      side.where.value;
      side.head.value;
      state.view.value;
      state.cell.value;
      state.reduce.value;
      state.colours.value;
      state.sink.value;
      state.theme.value;
      mine.tokens.version.value;
      mine.soon();
    });
    const size = new ResizeObserver(() => mine.soon());
    size.observe(canvas.current);
    const unhook = pointer(canvas.current, state, mine);
    return () => {
      stop();
      size.disconnect();
      unhook();
    };
  }, []);
  return html`<canvas class="map" ref=${canvas} tabindex="0" role="application"
    aria-label="The map of weights: rows are queries, columns keys. Arrow keys move the cell, plus and minus zoom."></canvas>`;
}

/** The cell under a place of the canvas, or null. */
export function cellAt(painter, x, y) {
  const place = painter.place;
  const [, N, M] = painter.side.call.value.shape;
  const key = Math.floor((x - GUTTER.left) / place.scale + place.x);
  const query = Math.floor((y - GUTTER.top) / place.scale + place.y);
  const inside =
    x >= GUTTER.left && y >= GUTTER.top && query >= 0 && key >= 0 && query < N && key < M;
  return inside ? { query, key } : null;
}

/** Zoom around a place of the canvas. */
export function zoom(painter, factor, x, y) {
  const place = painter.place;
  const [across, down] = [
    (x - GUTTER.left) / place.scale + place.x,
    (y - GUTTER.top) / place.scale + place.y,
  ];
  const scale = Math.min(MOST_SCALE, place.scale * factor);
  painter.state.view.value =
    scale <= place.whole * 1.001
      ? { x: 0, y: 0, scale: 0 }
      : { x: across - (x - GUTTER.left) / scale, y: down - (y - GUTTER.top) / scale, scale };
}

/** Bring a cell into view, at a size at which it can be read. */
export function reveal(painter, cell, scale = 0) {
  const place = painter.place;
  const wanted = scale || place.scale;
  const inside = (at, first, pixels) => at >= first && at + 1 <= first + pixels / place.scale;
  const is = inside(cell.key, place.x, place.room[0]) && inside(cell.query, place.y, place.room[1]);
  if (is && wanted === place.scale) return;
  painter.state.view.value = {
    x: cell.key + 0.5 - place.room[0] / wanted / 2,
    y: cell.query + 0.5 - place.room[1] / wanted / 2,
    scale: wanted,
  };
}

function pointer(canvas, state, painter) {
  const down = new globalThis.Map();
  let moved = 0;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const on = {
    pointerdown(event) {
      canvas.setPointerCapture(event.pointerId);
      canvas.focus({ preventScroll: true });
      down.set(event.pointerId, at(event));
      moved = 0;
    },
    pointermove(event) {
      const [x, y] = at(event);
      const before = down.get(event.pointerId);
      if (!before) {
        const cell = cellAt(painter, x, y);
        if (cell && !state.pinned.value) choose(state, cell);
        return;
      }
      const others = [...down].filter(([id]) => id !== event.pointerId);
      down.set(event.pointerId, [x, y]);
      moved += Math.hypot(x - before[0], y - before[1]);
      const place = painter.place;
      if (others.length) {
        const [, [ox, oy]] = others[0];
        const factor =
          Math.hypot(x - ox, y - oy) / Math.max(1, Math.hypot(before[0] - ox, before[1] - oy));
        zoom(painter, factor, (x + ox) / 2, (y + oy) / 2);
      } else if (moved > 3 && place.scale > place.whole * 1.001) {
        state.view.value = {
          x: place.x - (x - before[0]) / place.scale,
          y: place.y - (y - before[1]) / place.scale,
          scale: place.scale,
        };
      }
    },
    pointerup(event) {
      const [x, y] = at(event);
      if (down.delete(event.pointerId) && moved <= 3) {
        const cell = cellAt(painter, x, y);
        const same =
          cell &&
          state.pinned.value &&
          String(Object.values(cell)) === String(Object.values(state.cell.value));
        if (cell) choose(state, cell);
        state.pinned.value = Boolean(cell) && !same;
      }
    },
    pointercancel(event) {
      down.delete(event.pointerId);
    },
    wheel(event) {
      event.preventDefault();
      const amount = event.deltaY * (event.deltaMode === 1 ? 18 : 1);
      zoom(painter, Math.exp(-amount * (event.ctrlKey ? 0.01 : 0.0018)), ...at(event));
    },
    dblclick(event) {
      zoom(painter, 2.5, ...at(event));
    },
  };
  for (const [name, listen] of Object.entries(on))
    canvas.addEventListener(name, listen, { passive: false });
  return () => {
    for (const [name, listen] of Object.entries(on)) canvas.removeEventListener(name, listen);
  };
}

/** Look at a cell. */
export function choose(state, cell) {
  const now = state.cell.value;
  if (now?.query !== cell.query || now?.key !== cell.key) state.cell.value = cell;
}
