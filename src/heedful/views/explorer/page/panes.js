// The dividers between the parts of a wide page: drag or move by keys; their buttons collapse a part.
import { html, useEffect, useRef } from "./html.js";

/** @import { State } from "./state.js" */
/** @typedef {"heads" | "text" | "weight"} Pane */

/** @type {Pane[]} */
export const PANES = ["heads", "text", "weight"];
const [STEP, SMALLEST, MAP] = [24, 120, 350]; // pixels: of an arrow key, of a part, that remain for the map

/** The sizes of the parts, for the style sheets. @param {State} state */
export const paneStyle = (state) =>
  PANES.map((pane) => [pane, state.panes.value[pane]])
    .filter(([, size]) => size !== undefined)
    .map(([pane, size]) => `--${pane}-size:${size}px`)
    .join(";");

/** Classes of the parts that have a size, or are collapsed. @param {State} state */
export const paneClasses = (state) =>
  PANES.map((pane) => {
    const size = state.panes.value[pane];
    return size === undefined ? "" : `${size ? "sized" : "shut"}-${pane}`;
  }).join(" ");

/** The divider at the inner edge of a part. Its element covers the part. @param {{state: State, pane: Pane}} props */
export function Divider({ state, pane }) {
  const cover = useRef(/** @type {HTMLElement | null} */ (null));
  const handle = useRef(/** @type {HTMLElement | null} */ (null));
  const isShut = state.panes.value[pane] === 0;
  const resize = (/** @type {number | undefined} */ size) => {
    const { [pane]: _, ...others } = state.panes.value;
    state.panes.value = size === undefined ? others : { ...others, [pane]: Math.round(size) };
  };
  const measured = () => {
    const [area, { width, height }] = [cover, handle].map(({ current }) =>
      /** @type {HTMLElement} */ (current).getBoundingClientRect(),
    );
    return { area, isFlat: width > height, size: width > height ? area.height : area.width };
  };
  const resizeTo = (/** @type {number} */ wanted) => {
    const { isFlat, size } = measured();
    const map = cover.current?.closest(".page")?.querySelector('[data-part="map"]');
    const room = isFlat ? map?.clientHeight : map?.clientWidth;
    const most = size + (room ?? 0) - MAP;
    resize(wanted < SMALLEST / 2 ? 0 : Math.max(SMALLEST, Math.min(wanted, most)));
  };
  const drag = (/** @type {PointerEvent} */ event) => {
    if (!handle.current?.hasPointerCapture(event.pointerId)) return;
    const { area, isFlat } = measured();
    if (isFlat) resizeTo(area.bottom - event.clientY);
    else resizeTo(pane === "heads" ? event.clientX - area.left : area.right - event.clientX);
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const grow = pane === "heads" ? "ArrowRight" : "ArrowLeft";
    const shrink = pane === "heads" ? "ArrowLeft" : "ArrowRight";
    const step = { [grow]: STEP, ArrowUp: STEP, [shrink]: -STEP, ArrowDown: -STEP }[event.key];
    if (!step) return;
    resizeTo(measured().size + step);
    event.preventDefault();
    event.stopPropagation();
  };
  useEffect(() => {
    const { isFlat, size } = measured();
    handle.current?.setAttribute("aria-valuenow", String(Math.round(size)));
    handle.current?.setAttribute("aria-orientation", isFlat ? "horizontal" : "vertical");
  });
  return html`<div ref=${cover} class=${`divider divider-${pane}`}>
    <div ref=${handle} class="handle" role="separator" tabindex="0" aria-valuemin="0" aria-valuemax="2000" aria-label=${`Size of the part: ${pane}`} onKeyDown=${onKeyDown} onDblClick=${() => resize(undefined)}
      onPointerDown=${(/** @type {PointerEvent} */ e) => handle.current?.setPointerCapture(e.pointerId)} onPointerMove=${drag}></div>
    <button type="button" aria-label=${`${isShut ? "Show" : "Collapse"} the part: ${pane}`} aria-expanded=${!isShut} title=${isShut ? `show ${pane}` : `collapse ${pane}`} onClick=${() => resize(isShut ? undefined : 0)}></button></div>`;
}
