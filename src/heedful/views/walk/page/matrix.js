// One matrix: colours of all its numbers, the numbers where they fit, names along its sides, and
// what lights up. Pointed at with a mouse or a finger, walked through with the arrow keys.
import { html, useLayoutEffect, useRef } from "../../explorer/page/html.js";
import { readable } from "../../explorer/page/tokens.js";
import { colour } from "./colours.js";
import { fits, inCell, isShare, letters, light } from "./scene.js";
import { BROAD, LETTERS, longest, namesAbove } from "./sizes.js";
import { label } from "./stages.js";

/** @import { State } from "./state.js" */
/** @import { Group, Panel } from "./scene.js" */
/** @import { Walk } from "./types.js" */

/** @typedef {{state: State, walk: Walk, group: Group, panel: Panel, names: {rows: boolean, columns: boolean}, dark: boolean}} Given */

const NAMED = 11; // pixels that a name takes at least

/** @param {Given} given */
export function Matrix(given) {
  const { state, walk, group, panel, names, dark } = given;
  const { rows, columns, wide, high } = panel;
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const at = (/** @type {PointerEvent} */ event) => {
    const body = /** @type {HTMLElement} */ (box.current).getBoundingClientRect();
    const row = rows[Math.floor(((event.clientY - body.top) / body.height) * rows.length)];
    const column = columns[Math.floor(((event.clientX - body.left) / body.width) * columns.length)];
    return row === undefined || column === undefined || row === null || column === null
      ? null
      : [row, column];
  };
  const point = (/** @type {PointerEvent} */ event) => {
    const place = at(event);
    if (place) look(state, panel, place[0], place[1]);
  };
  const moved = (/** @type {PointerEvent} */ event) => {
    if (event.pointerType === "mouse" && !state.pinned.value) point(event);
  };
  const clicked = (/** @type {PointerEvent} */ event) => {
    const before = JSON.stringify(place(state, panel));
    point(event);
    state.pinned.value = !(state.pinned.value && before === JSON.stringify(place(state, panel)));
  };
  const keys = (/** @type {KeyboardEvent} */ event) => {
    const move = MOVES[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    step(state, panel, move);
    event.preventDefault();
    event.stopPropagation();
  };
  const above = namesAbove(walk, group); // for names of columns
  const size = `width:${columns.length * wide}px;height:${rows.length * high}px;--above:${above}px`;
  return html`<div class="matrix" style=${size}>
    ${names.columns ? html`<${Columns} walk=${walk} group=${group} panel=${panel} />` : null}
    ${names.rows ? html`<${Rows} walk=${walk} panel=${panel} />` : null}
    <div class="body" ref=${box} tabindex="0" role="group" aria-roledescription="matrix"
      aria-label=${`${called(panel)}, ${rows.length} by ${columns.length}. The arrow keys walk through its numbers.`}
      onPointerMove=${moved} onClick=${clicked} onKeyDown=${keys}>
      ${fits(panel) ? html`<${Numbers} walk=${walk} panel=${panel} dark=${dark} />` : html`<${Painted} panel=${panel} dark=${dark} />`}
      <${Lights} ...${given} />
    </div>
  </div>`;
}

/** @type {Record<string, [number, number]>} */
const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Look at a number where it is drawn. @param {State} state @param {Panel} panel @param {number} row @param {number} column */
function look(state, panel, row, column) {
  const [own, other] = panel.turned ? [column, row] : [row, column];
  state.point(panel.stage, own, other, panel.head);
}

/** The number of this panel that is looked at, as it is drawn. @param {State} state @param {Panel} panel */
function place(state, panel) {
  const cell = state.cell.value;
  if (cell?.stage !== panel.stage) return null;
  return panel.turned ? [cell.column, cell.row] : [cell.row, cell.column];
}

/** The next number, over a gap. @param {State} state @param {Panel} panel @param {[number, number]} move */
function step(state, panel, [down, right]) {
  const now = place(state, panel);
  /** @param {(number | null)[]} all @param {number} from @param {number} by */
  const to = (all, from, by) => {
    const there = all.filter((one) => one !== null);
    return there[Math.max(0, Math.min(there.length - 1, there.indexOf(from) + by))];
  };
  const [row, column] = now
    ? [to(panel.rows, now[0], down), to(panel.columns, now[1], right)]
    : [panel.rows[0], panel.columns[0]];
  look(state, panel, /** @type {number} */ (row), /** @type {number} */ (column));
  state.pinned.value = true;
}

/** What a panel is called, with its head where there are several. @param {Panel} panel */
export function called({ stage, head, turned }) {
  const heads = stage.shape.length > 2 && stage.shape[0] > 1 ? ` of head ${head}` : "";
  return `${stage.name}${turned ? "ᵀ" : ""}${heads}`;
}

/** The numbers, each on its colour. @param {{walk: Walk, panel: Panel, dark: boolean}} given */
function Numbers({ walk, panel, dark }) {
  const { stage, head, rows, columns, turned, write, wide, high } = panel;
  const name = (/** @type {0 | 1} */ axis, /** @type {number} */ at) =>
    label(walk, stage, axis, at) || String(at);
  const cell = (/** @type {number | null} */ row, /** @type {number | null} */ column) => {
    if (row === null || column === null) return html`<span role="cell" class="gap">…</span>`;
    const [i, j] = turned ? [column, row] : [row, column];
    const value = stage.at(head, i, j);
    const said = `${name(0, i)}, ${name(1, j)}: ${write(value)}`;
    return html`<span role="cell" class=${Number.isFinite(value) ? "" : "none"} aria-label=${said} style=${{ background: shade(panel, i, j, dark) }}>${inCell(panel, value)}</span>`;
  };
  return html`<div class=${`numbers ${letters(panel)}`} role="table" aria-label=${called(panel)} style=${`grid-template-columns:repeat(${columns.length},${wide}px);grid-auto-rows:${high}px`}>
    ${rows.map((row) => html`<div role="row">${columns.map((column) => cell(row, column))}</div>`)}</div>`;
}

/** The colour of a number; shares by their roots, as in the explorer; those that a mask hid have
 * the mask's. @param {Panel} panel @param {number} row @param {number} column @param {boolean} dark */
function shade({ stage, head, most }, row, column, dark) {
  const value = stage.at(head, row, column);
  if (!isShare(stage)) return colour(value, most, dark);
  const score = stage.sources[0]?.at(head, row, column) ?? 0;
  return colour(score === -Infinity ? score : Math.sqrt(value / most), 1, dark);
}

/** Colours alone, a pixel a number, stretched. @param {{panel: Panel, dark: boolean}} given */
function Painted({ panel, dark }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useLayoutEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const { rows, columns, turned } = panel;
    context.clearRect(0, 0, columns.length, rows.length);
    rows.forEach((row, y) => {
      columns.forEach((column, x) => {
        if (row === null || column === null) return;
        const [i, j] = turned ? [column, row] : [row, column];
        context.fillStyle = shade(panel, i, j, dark);
        context.fillRect(x, y, 1, 1);
      });
    });
  });
  return html`<canvas ref=${canvas} width=${panel.columns.length} height=${panel.rows.length} aria-hidden="true"></canvas>`;
}

/** The names of the columns; upright where they are wide enough. @param {{walk: Walk, group: Group, panel: Panel}} given */
function Columns({ walk, group, panel }) {
  const { columns, stage, turned, wide } = panel;
  const axis = turned ? 0 : 1;
  if (wide < NAMED + 2) return null;
  const named = stage.axes[axis] !== "width" && stage.axes[axis] !== "id";
  if (!named && wide < 24) return null;
  const turn = named && namesAbove(walk, group) > 0;
  const text = (/** @type {number | null} */ at) =>
    at === null ? "…" : readable(label(walk, stage, axis, at) || String(at));
  const largest = Math.max(LETTERS, Math.floor((wide - 4) / (longest(walk, panel) * BROAD)));
  const size = `font-size:min(${largest}px, calc(${LETTERS}px * var(--scale, 1)))`;
  return html`<div class=${`columns ${turn ? "turned" : ""} ${named ? "" : "places"}`} style=${named ? size : ""} aria-hidden="true">${columns.map(
    (at) =>
      html`<span style=${`width:${wide}px`} title=${at === null ? "" : text(at)}><bdi>${stage.axes[axis] === "id" ? "" : text(at)}</bdi></span>`,
  )}</div>`;
}

/** @param {{walk: Walk, panel: Panel}} given */
function Rows({ walk, panel }) {
  const { rows, stage, turned, high } = panel;
  const axis = turned ? 1 : 0;
  if (high < NAMED) return null;
  const named = stage.axes[axis] !== "width";
  const text = (/** @type {number | null} */ at) =>
    at === null ? "⋮" : readable(label(walk, stage, axis, at) || String(at));
  return html`<div class=${`rows ${named ? "" : "places"}`} aria-hidden="true">${rows.map(
    (at) =>
      html`<span style=${`height:${high}px`} title=${at === null ? "" : text(at)}><bdi>${text(at)}</bdi></span>`,
  )}</div>`;
}

/** What lights up, over the numbers; beside it a factor is dimmed. @param {Given} given */
function Lights({ state, walk, group, panel }) {
  const cell = state.cell.value;
  const lit = cell && light(walk, group, panel, cell);
  const { rows, columns, wide, high, turned, role } = panel;
  const whole = { top: 0, left: 0, width: columns.length * wide, height: rows.length * high };
  if (!lit) return null;
  const [row, column] = turned ? [lit.column, lit.row] : [lit.row, lit.column];
  const y = row === null ? null : rows.indexOf(row);
  const x = column === null ? null : columns.indexOf(column);
  if (y === -1 || x === -1) return null;
  const area = {
    top: y === null ? 0 : y * high,
    left: x === null ? 0 : x * wide,
    width: x === null ? whole.width : wide,
    height: y === null ? whole.height : high,
  };
  const style = (/** @type {Record<string, number>} */ box) =>
    Object.fromEntries(Object.entries(box).map(([name, size]) => [name, `${size}px`]));
  const dims = role === "made" || lit.kind === "cell" ? [] : around(area, whole);
  return html`${dims.map((box) => html`<i class="dim" style=${style(box)}></i>`)}<i class=${`lit ${lit.kind}`} style=${style(area)}></i>`;
}

/** The parts of a box around an area in it. @param {Record<string, number>} area @param {Record<string, number>} whole */
function around(area, whole) {
  const { top, left, width, height } = area;
  return [
    { top: 0, left: 0, width: whole.width, height: top },
    { top: top + height, left: 0, width: whole.width, height: whole.height - top - height },
    { top, left: 0, width: left, height },
    { top, left: left + width, width: whole.width - left - width, height },
  ].filter((box) => box.width > 0 && box.height > 0);
}
