// Chooses the tiles that cover the view; coarser tiles are stretched until the right tiles arrive.
import { isMasked, SIDE } from "./tiles.js";
import { inView, levelOf } from "./viewport.js";

/** @import { Side } from "../types.js" */
/** @import { Place } from "./viewport.js" */
/** @import { Tile, Tiles } from "./tiles.js" */

/**
 * A part of the map and the tile that shows it. Rows and columns are ranges of cells.
 * @typedef {object} Part
 * @property {[number, number]} rows
 * @property {[number, number]} columns
 * @property {Tile | null} tile null if nothing is loaded
 * @property {number} cell cells per pixel of the tile, on each side
 * @property {number[]} corner the tile's first query and key
 * @property {boolean} isMasked
 */

/** @param {Tiles} tiles @param {Side} side @param {Place} place @param {string} reduce @param {number} ratio device pixels per CSS pixel @returns {{parts: Part[], needed: Tile[], level: number}} needed: the most urgent first */
export function cover(tiles, side, place, reduce, ratio) {
  const [N, M] = place.shape;
  const top = Math.max(0, Math.ceil(Math.log2(Math.max(N, M) / SIDE)));
  const level = Math.min(top, levelOf(place.scale, ratio));
  const [call, head] = [side.callId.value, side.head.value];
  const size = SIDE * 2 ** level;
  const coarsest = tiles.get(call, head, [top, 0, 0], reduce); // covers the full map
  const parts = [];
  const needed = [];
  const [queries, keys] = inView(place);
  for (let row = Math.floor(queries[0] / size); row * size < queries[1]; row++)
    for (let column = Math.floor(keys[0] / size); column * size < keys[1]; column++) {
      /** @type {Part} */
      const part = {
        rows: [row * size, Math.min(N, (row + 1) * size)],
        columns: [column * size, Math.min(M, (column + 1) * size)],
        tile: null,
        cell: 2 ** level,
        corner: [row * size, column * size],
        isMasked: false,
      };
      const above = coarser(tiles, [call, head, reduce], level, top, row, column);
      part.isMasked =
        isAboveDiagonal(side, part) ||
        (above !== null &&
          isMasked(above.tile, pixels(above, part.rows, 0), pixels(above, part.columns, 1)));
      parts.push(part);
      if (part.isMasked) continue;
      const tile = tiles.get(call, head, [level, row, column], reduce);
      needed.push({ tile, distance: distance(place, part) });
      if (tile.data) part.tile = tile;
      else if (above) Object.assign(part, above);
    }
  needed.sort((a, b) => a.distance - b.distance);
  return { parts, needed: [coarsest, ...needed.map(({ tile }) => tile)], level };
}

/** The finest loaded tile of a coarser level that covers a tile. @param {Tiles} tiles @param {[string, number, string]} map @param {number} level @param {number} top @param {number} row @param {number} column */
function coarser(tiles, [call, head, reduce], level, top, row, column) {
  for (let up = level + 1; up <= top; up++) {
    const factor = 2 ** (up - level);
    const place = [row, column].map((index) => Math.floor(index / factor));
    const tile = tiles.find(call, head, [up, ...place], reduce);
    const cell = 2 ** up;
    if (tile?.data) return { tile, cell, corner: place.map((index) => index * SIDE * cell) };
  }
  return null;
}

/** The pixels of a tile that show a part's rows or columns. @param {{cell: number, corner: number[]}} part @param {[number, number]} range @param {0 | 1} axis */
export function pixels({ cell, corner }, range, axis) {
  const [first, end] = range.map((index) => (index - corner[axis]) / cell);
  return /** @type {[number, number]} */ ([first, end]);
}

/** Whether a causal mask excludes all cells of a part. @param {Side} side @param {Part} part */
function isAboveDiagonal(side, { rows, columns }) {
  const { kind, first } = side.call.value;
  return kind === "causal" && columns[0] > rows[1] - 1 + first;
}

/** The distance of a part from the middle of the view. @param {Place} place @param {Part} part */
function distance(place, { rows, columns }) {
  const middle = [place.y + place.high / place.scale / 2, place.x + place.wide / place.scale / 2];
  return Math.hypot(
    Math.max(rows[0] - middle[0], 0, middle[0] - rows[1]),
    Math.max(columns[0] - middle[1], 0, middle[1] - columns[1]),
  );
}
