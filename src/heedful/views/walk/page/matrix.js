// A matrix: coloured cells, with numbers if they fit, labels along two sides, and highlights. A
// number is selected by mouse, touch or arrow keys.
import { html, useLayoutEffect, useRef } from "../../explorer/page/html.js";
import { readable } from "../../explorer/page/tokens.js";
import { colour } from "./colours.js";
import { BROAD, FONT, labelHeight, longest } from "./sizes.js";
import { label } from "./stages.js";
import { fits, fontClass, highlight, inCell, isShare } from "./step_layout.js";

/** @import { State } from "./state.js" */
/** @import { Group, Panel } from "./step_layout.js" */
/** @import { Stage, Walk } from "./types.js" */

/** @typedef {{state: State, walk: Walk, group: Group, panel: Panel, names: {rows: boolean, columns: boolean}, dark: boolean}} Props */

const LABELLED = 11; // minimum row height or column width for a label, in pixels

/** @param {Props} props */
export function Matrix(props) {
  const { state, walk, group, panel, names, dark } = props;
  const { rows, columns, wide, high } = panel;
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const selectAt = (/** @type {PointerEvent} */ event) => {
    const body = /** @type {HTMLElement} */ (box.current).getBoundingClientRect();
    const row = rows[Math.floor(((event.clientY - body.top) / body.height) * rows.length)];
    const column = columns[Math.floor(((event.clientX - body.left) / body.width) * columns.length)];
    if (typeof row === "number" && typeof column === "number") select(state, panel, row, column);
  };
  const onMove = (/** @type {PointerEvent} */ event) => {
    if (event.pointerType === "mouse" && !state.pinned.value) selectAt(event);
  };
  const onClick = (/** @type {PointerEvent} */ event) => {
    const previous = String(selected(state, panel));
    selectAt(event);
    const isSame = previous === String(selected(state, panel));
    state.pinned.value = !(state.pinned.value && isSame);
  };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const move = MOVES[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    moveSelection(state, panel, move);
    event.preventDefault();
    event.stopPropagation();
  };
  const above = labelHeight(walk, group);
  const size = `width:${columns.length * wide}px;height:${rows.length * high}px;--above:${above}px`;
  return html`<div class="matrix" style=${size}>
    ${names.columns ? html`<${Columns} walk=${walk} group=${group} panel=${panel} />` : null}
    ${names.rows ? html`<${Rows} walk=${walk} panel=${panel} />` : null}
    <div class="body" ref=${box} tabindex="0" role="group" aria-roledescription="matrix"
      aria-label=${`${fullName(panel)}, ${rows.length} by ${columns.length}. The arrow keys move between its numbers.`}
      onPointerMove=${onMove} onClick=${onClick} onKeyDown=${onKey}>
      ${fits(panel) ? html`<${Numbers} walk=${walk} panel=${panel} dark=${dark} />` : html`<${Painted} panel=${panel} dark=${dark} />`}
      <${Highlight} ...${props} />
    </div>
  </div>`;
}

/** @type {Record<string, [number, number]>} */
const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Select a number by its drawn row and column. @param {State} state @param {Panel} panel @param {number} row @param {number} column */
function select(state, panel, row, column) {
  const [stageRow, stageColumn] = panel.turned ? [column, row] : [row, column];
  state.point(panel.stage, stageRow, stageColumn, panel.head);
}

/** The drawn row and column of the selected number, if it is in this panel. @param {State} state @param {Panel} panel */
function selected(state, panel) {
  const cell = state.cell.value;
  if (cell?.stage !== panel.stage) return null;
  return panel.turned ? [cell.column, cell.row] : [cell.row, cell.column];
}

/** Select the neighbouring number; gaps are skipped. @param {State} state @param {Panel} panel @param {[number, number]} move */
function moveSelection(state, panel, [down, right]) {
  const current = selected(state, panel);
  /** @param {(number | null)[]} all @param {number} from @param {number} step */
  const neighbour = (all, from, step) => {
    const drawn = all.filter((index) => index !== null);
    return drawn[Math.max(0, Math.min(drawn.length - 1, drawn.indexOf(from) + step))];
  };
  const [row, column] = current
    ? [neighbour(panel.rows, current[0], down), neighbour(panel.columns, current[1], right)]
    : [panel.rows[0], panel.columns[0]];
  select(state, panel, /** @type {number} */ (row), /** @type {number} */ (column));
  state.pinned.value = true;
}

/** The name of a panel, with its head if there are several. @param {{stage: Stage, head: number, turned?: boolean}} panel */
export function fullName({ stage, head, turned }) {
  const heads = stage.shape.length > 2 && stage.shape[0] > 1 ? ` of head ${head}` : "";
  return `${stage.name}${turned ? "ᵀ" : ""}${heads}`;
}

/** The numbers on coloured cells. @param {{walk: Walk, panel: Panel, dark: boolean}} props */
function Numbers({ walk, panel, dark }) {
  const { stage, head, rows, columns, turned, write, wide, high } = panel;
  const name = (/** @type {0 | 1} */ axis, /** @type {number} */ index) =>
    label(walk, stage, axis, index) || String(index);
  const cell = (/** @type {number | null} */ row, /** @type {number | null} */ column) => {
    if (row === null || column === null) return html`<span role="cell" class="gap">…</span>`;
    const [i, j] = turned ? [column, row] : [row, column];
    const value = stage.at(head, i, j);
    const text = `${name(0, i)}, ${name(1, j)}: ${write(value)}`;
    return html`<span role="cell" class=${Number.isFinite(value) ? "" : "none"} aria-label=${text} style=${{ background: shade(panel, i, j, dark) }}>${inCell(panel, value)}</span>`;
  };
  return html`<div class=${`numbers ${fontClass(panel)}`} role="table" aria-label=${fullName(panel)} style=${`grid-template-columns:repeat(${columns.length},${wide}px);grid-auto-rows:${high}px`}>
    ${rows.map((row) => html`<div role="row">${columns.map((column) => cell(row, column))}</div>`)}</div>`;
}

/** The colour of a number. A share has the colour of its square root, as in the explorer; a masked
 * share has the colour of the mask. @param {Panel} panel @param {number} row @param {number} column @param {boolean} dark */
function shade({ stage, head, largest }, row, column, dark) {
  const value = stage.at(head, row, column);
  if (!isShare(stage)) return colour(value, largest, dark);
  const score = stage.sources[0]?.at(head, row, column) ?? 0;
  return colour(score === -Infinity ? score : Math.sqrt(value / largest), 1, dark);
}

/** Coloured cells without numbers: a stretched canvas of one pixel per number. @param {{panel: Panel, dark: boolean}} props */
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

/** A function that returns the label of a row or column. @param {Walk} walk @param {Stage} stage @param {0 | 1} axis @param {string} gap the label of omitted ones */
const labelling = (walk, stage, axis, gap) => (/** @type {number | null} */ index) =>
  index === null ? gap : readable(label(walk, stage, axis, index) || String(index));

/** The column labels; rotated if the columns are too narrow. @param {{walk: Walk, group: Group, panel: Panel}} props */
function Columns({ walk, group, panel }) {
  const { columns, stage, turned, wide } = panel;
  const axis = turned ? 0 : 1;
  if (wide < LABELLED + 2) return null;
  const hasTokens = stage.axes[axis] !== "width" && stage.axes[axis] !== "id";
  if (!hasTokens && wide < 24) return null;
  const isRotated = hasTokens && labelHeight(walk, group) > 0;
  const text = labelling(walk, stage, axis, "…");
  const largestFont = Math.max(FONT, Math.floor((wide - 4) / (longest(walk, panel) * BROAD)));
  const size = `font-size:min(${largestFont}px, calc(${FONT}px * var(--scale, 1)))`;
  return html`<div class=${`columns ${isRotated ? "turned" : ""} ${hasTokens ? "" : "places"}`} style=${hasTokens ? size : ""} aria-hidden="true">${columns.map(
    (index) =>
      html`<span style=${`width:${wide}px`} title=${index === null ? "" : text(index)}><bdi>${stage.axes[axis] === "id" ? "" : text(index)}</bdi></span>`,
  )}</div>`;
}

/** The row labels. @param {{walk: Walk, panel: Panel}} props */
function Rows({ walk, panel }) {
  const { rows, stage, turned, high } = panel;
  const axis = turned ? 1 : 0;
  if (high < LABELLED) return null;
  const hasTokens = stage.axes[axis] !== "width";
  const text = labelling(walk, stage, axis, "⋮");
  return html`<div class=${`rows ${hasTokens ? "" : "places"}`} aria-hidden="true">${rows.map(
    (index) =>
      html`<span style=${`height:${high}px`} title=${index === null ? "" : text(index)}><bdi>${text(index)}</bdi></span>`,
  )}</div>`;
}

/** The highlight over the numbers; the rest of an input is dimmed. @param {Props} props */
function Highlight({ state, walk, group, panel }) {
  const cell = state.cell.value;
  const lit = cell && highlight(walk, group, panel, cell);
  const { rows, columns, wide, high, turned, role } = panel;
  if (!lit) return null;
  const [row, column] = turned ? [lit.column, lit.row] : [lit.row, lit.column];
  const [y, height] = row === null ? [0, rows.length * high] : [rows.indexOf(row) * high, high];
  const [x, width] =
    column === null ? [0, columns.length * wide] : [columns.indexOf(column) * wide, wide];
  if (y < 0 || x < 0) return null;
  const style = `top:${y}px;left:${x}px;width:${width}px;height:${height}px`;
  const dims = role !== "result" && lit.kind !== "cell";
  return html`${dims ? html`<div class="dim"><i style=${style}></i></div>` : null}<i class=${`lit ${lit.kind}`} style=${style}></i>`;
}
