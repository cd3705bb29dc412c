// The page of a walk: it shows one step at a time. `state` holds the walk and the current step.
import { follow, systemTheme } from "../../explorer/page/host.js";
import {
  html,
  render,
  useEffect,
  useLayoutEffect,
  useRef,
  useState,
} from "../../explorer/page/html.js";
import { readable } from "../../explorer/page/tokens.js";
import { fullName, Matrix } from "./matrix.js";
import { NextTokens } from "./next_tokens.js";
import { formatNumber } from "./number_format.js";
import { Plane } from "./plane.js";
import { arrange, isNarrow, isOneStage, margin } from "./sizes.js";
import { hasPairs, label, omissions } from "./stages.js";
import { State } from "./state.js";
import { calculationParts } from "./sums.js";

/** @import { Group, Panel } from "./step_layout.js" */
/** @import { Cell, PageWalk, Stage, Walk } from "./types.js" */
/** @import { Host } from "../../explorer/page/types.js" */

/** Render the page into an element. @param {HTMLElement} element @param {{walks: PageWalk[], start: number, text: string, memory: string}} about @param {Host} host */
export function mount(element, { walks, start, text, memory }, host) {
  const state = new State(walks, start, { text, memory });
  const historyEntry = () => `${state.walkIndex.value} ${state.step.value}`;
  if (host.address)
    follow(
      host.address,
      (text) => state.read(text),
      () => state.address(),
      historyEntry,
    );
  element.replaceChildren(); // removes the text of a page that has not started
  render(html`<${Page} state=${state} host=${host} />`, element);
}

/** @param {{state: State, host: Host}} props */
function Page({ state, host }) {
  const page = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => listen(state, host.keys ?? /** @type {HTMLElement} */ (page.current)), []);
  const dark = useDark(state.theme.value);
  const walk = state.walk.value;
  return html`<div class=${`page walk ${state.theme.value}`} ref=${page}>
    <${Header} state=${state} dark=${dark} />
    <${Steps} state=${state} />
    <main>
      <${Description} state=${state} walk=${walk} />
      <${Scene} state=${state} walk=${walk} dark=${dark} />
      <${NumberPane} state=${state} walk=${walk} />
    </main>
  </div>`;
}

/** Whether the page is dark, by the chosen theme or, if none is chosen, by the system's theme. @param {string} theme */
function useDark(theme) {
  const [browserTheme, setBrowserTheme] = useState(() => systemTheme().read());
  useEffect(() => systemTheme().follow(() => setBrowserTheme(systemTheme().read())), []);
  return (theme || browserTheme) === "dark";
}

/** Change the step with ← and →. Inside a matrix, these keys select numbers instead. @param {State} state @param {EventTarget} target */
function listen(state, target) {
  const onKey = (/** @type {Event} */ raw) => {
    const event = /** @type {KeyboardEvent} */ (raw);
    const isTyping = /** @type {Element} */ (event.target).closest?.("input, select, textarea");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = state.walk.value.steps.length - 1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -1, PageDown: 1, Home: -last, End: last };
    if (event.key === "Escape") {
      state.pinned.value = false;
      const focused = document.activeElement;
      if (focused instanceof HTMLElement && focused.closest(".matrix")) focused.blur();
    } else if (event.key in steps) {
      state.go(state.step.value + steps[/** @type {keyof typeof steps} */ (event.key)]);
      event.preventDefault();
    }
  };
  target.addEventListener("keydown", onKey);
  return () => target.removeEventListener("keydown", onKey);
}

/** @param {{state: State, dark: boolean}} props */
function Header({ state, dark }) {
  const { walks, walkIndex } = state;
  const isTyped = walks[walkIndex.value].typed;
  const variants = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => scrollIntoList(variants.current, '[aria-pressed="true"]'), [walkIndex.value]);
  const walk = state.walk.value;
  const { heads } = walk;
  return html`<header>
    <b class="logo">heedful</b>
    ${
      walks.length > 1
        ? html`<nav class="choice" aria-label="Variants" ref=${variants}>${walks.map(
            ({ label }, i) =>
              html`<button type="button" aria-pressed=${i === walkIndex.value} onClick=${() => state.open(i)}>${label}</button>`,
          )}</nav>`
        : null
    }
    ${
      isTyped
        ? html`<${TextBox} name="The sentence" text=${state.text.value} initial=${state.initial.text} onText=${(/** @type {string} */ text) => state.type("text", text)} />
          ${walk.memory.length ? html`<${TextBox} name="The second text: its tokens are the keys" text=${state.memory.value} initial=${state.initial.memory} onText=${(/** @type {string} */ text) => state.type("memory", text)} />` : null}`
        : html`<span class="grow"><bdi>${walk.title}</bdi></span>`
    }
    ${
      heads > 1
        ? html`<span class="choice" role="group" aria-label="Head"><span>head</span>${Array.from(
            { length: heads },
            (_, h) =>
              html`<button type="button" aria-label=${`head ${h}`} aria-pressed=${h === state.currentHead.value} onClick=${() => (state.head.value = h)}>${h}</button>`,
          )}</span>`
        : null
    }
    <button type="button" class="theme" aria-label=${dark ? "Light" : "Dark"} title=${dark ? "light" : "dark"} onClick=${() => (state.theme.value = dark ? "light" : "dark")}>◐</button>
  </header>`;
}

/** A text box; while it is empty, the initial text is used. @param {{name: string, text: string, initial: string, onText: (text: string) => void}} props */
function TextBox({ name, text, initial, onText }) {
  const onInput = (/** @type {InputEvent} */ event) =>
    onText(/** @type {HTMLInputElement} */ (event.target).value);
  return html`<input class="sentence" type="text" dir="auto" aria-label=${name} title=${name} placeholder=${initial} spellcheck="false" maxlength="10000" value=${text} onInput=${onInput} />`;
}

/** Scroll a list to its selected item. @param {HTMLElement | null} list @param {string} selector */
function scrollIntoList(list, selector) {
  const [box, item] = [list, list?.querySelector(selector)].map((e) => e?.getBoundingClientRect());
  if (!box || !item || !list) return;
  if (item.top < box.top || item.bottom > box.bottom)
    list.scrollTop += item.top - box.top - box.height / 3;
  if (item.left < box.left || item.right > box.right) list.scrollLeft += item.left - box.left - 20;
}

/** The list of all steps. @param {{state: State}} props */
function Steps({ state }) {
  const { steps } = state.walk.value;
  const now = state.step.value;
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => scrollIntoList(list.current, '[aria-current="step"]'), [now]);
  return html`<nav class="steps" aria-label="Steps" ref=${list}><ol>${steps.map(
    (
      step,
      i,
    ) => html`${step.section && step.section !== steps[i - 1]?.section ? html`<li class="section" key=${`s${i}`}>${step.section}</li>` : null}
      <li key=${i}><button type="button" aria-current=${i === now ? "step" : undefined} onClick=${() => state.go(i)}><span class="n">${i + 1}</span><span><bdi>${step.brief ? step.stages.map(({ name }) => name).join(", ") : step.name}</bdi></span></button></li>`,
  )}</ol></nav>`;
}

/** The step in words: title, formulas, shapes and sentence. @param {{state: State, walk: Walk}} props */
function Description({ state, walk }) {
  const step = state.currentStep.value;
  const { stages } = step;
  const index = Math.min(state.step.value, walk.steps.length - 1);
  const go = (/** @type {number} */ change) => () => state.go(index + change);
  const unique = (/** @type {string[]} */ all) => [...new Set(all.filter(Boolean))];
  const formulas = unique(stages.map((stage) => stage.formula));
  const chains = unique(
    stages.map((stage) => stage.chain.map((shape) => `[${shape.join(", ")}]`).join(" → ")),
  );
  const shapes = unique(stages.map(shape));
  const isFirst = index === 0;
  const isLast = index === walk.steps.length - 1;
  return html`<section class="words" aria-label="The step">
    <div class="title"><h1><bdi>${step.name}</bdi> <small>${shapes.join("; ")}</small></h1>
      <span class="turn"><button type="button" aria-label="Previous step" disabled=${isFirst} onClick=${go(-1)}>←</button>
      <span class="of">${index + 1} / ${walk.steps.length}</span>
      <button type="button" aria-label="Next step" disabled=${isLast} onClick=${go(1)}>→</button></span></div>
    ${formulas.length ? html`<p class="formula">${formulas.map((text) => html`<span>${text}</span>`)}</p>` : null}
    ${chains.map((text) => html`<p class="chain">${text}</p>`)}
    <p>${step.brief ? null : unique(stages.map((stage) => stage.sentence)).join(" ")}</p>
    ${unique([...walk.cut, ...omissions(stages)]).map((text) => html`<p class="quiet">${text}</p>`)}
    ${isLast && walk.missing ? html`<p>${walk.missing}</p>` : null}
    ${isFirst ? html`<p class="quiet">${[walk.title, ...walk.notes].map((text) => html`${withCode(text)}${/[.!?]$/.test(text) ? " " : ". "}`)}</p>` : null}
  </section>`;
}

/** A text whose parts between backticks are code. @param {string} text */
const withCode = (text) =>
  text.split("`").map((part, i) => (i % 2 ? html`<code>${part}</code>` : part));

/** The shape as text: `6 × 3`, or `2 heads × 6 × 3`. @param {Stage} stage */
function shape(stage) {
  const all = stage.shape.map((n) => n.toLocaleString("en"));
  const heads = all.length > 2 && all[0] !== "1" ? `${all[0]} heads × ` : "";
  return heads + all.slice(-2).join(" × ");
}

/** The space for the matrices in pixels; on a phone, they may extend below the screen. @param {HTMLElement} element */
function roomIn(element) {
  const { paddingLeft, paddingTop } = getComputedStyle(element);
  const wide = element.clientWidth - 2 * Number.parseFloat(paddingLeft);
  const high = element.clientHeight - 2 * Number.parseFloat(paddingTop);
  return { wide, high: wide < 560 ? 420 : Math.max(280, high) };
}

/** The matrices of the step. @param {{state: State, walk: Walk, dark: boolean}} props */
function Scene({ state, walk, dark }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [size, setSize] = useState({ wide: 0, high: 0 });
  useLayoutEffect(() => {
    const element = /** @type {HTMLElement} */ (box.current);
    const observer = new ResizeObserver(() => setSize(roomIn(element)));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const position = `${state.walkIndex.value} ${state.step.value}`;
  useEffect(() => box.current?.scrollTo(0, 0), [position]);
  const step = state.currentStep.value;
  const { groups, scale } =
    size.wide && !step.answer
      ? arrange(walk, step, state.currentHead.value, size)
      : { groups: [], scale: 1 };
  const stacked = isNarrow(size);
  return html`<section class="scene" ref=${box} aria-label="The numbers" style=${`--scale:${scale}`}>
    ${step.answer ? html`<${NextTokens} state=${state} walk=${walk} answer=${step.answer} />` : null}
    ${step.plane ? html`<${Plane} state=${state} walk=${walk} stage=${step.plane} />` : null}
    ${groups.map((group) => html`<${group.isProduct ? Product : SideBySide} state=${state} walk=${walk} group=${group} scale=${scale} dark=${dark} brief=${step.brief} stacked=${stacked} />`)}
  </section>`;
}

/** @param {{state: State, walk: Walk, group: Group, scale: number, dark: boolean}} props */
function Product({ state, walk, group, scale, dark }) {
  const { left, top, results } = group;
  const shared = { state, walk, group, dark };
  const edge = `padding-left:${margin(walk, left[0], scale)}px`;
  return html`<div class="falk" style=${edge}>
    ${top.map((panel, i) => html`<figure style=${`grid-row:1;grid-column:${i + 2};padding-left:${i ? margin(walk, panel, scale) : 0}px`}><${Caption} walk=${walk} panel=${panel} scale=${scale} /><${Matrix} ...${shared} panel=${panel} names=${{ rows: true, columns: true }} /></figure>`)}
    <figure class="low" style="grid-row:2;grid-column:1"><${Matrix} ...${shared} panel=${left[0]} names=${{ rows: true, columns: false }} /><${Caption} walk=${walk} panel=${left[0]} scale=${scale} /></figure>
    ${results.map((panel, i) => html`<figure class="low result" style=${`grid-row:2;grid-column:${i + 2};padding-left:${i ? margin(walk, top[i], scale) : 0}px`}><${Matrix} ...${shared} panel=${panel} names=${{ rows: false, columns: false }} /><${Caption} walk=${walk} panel=${panel} scale=${scale} /></figure>`)}
  </div>`;
}

/** The caption of a factor or a product. A caption longer than its matrix extends to the left; if the
 * room there is too small, the caption moves down a line. @param {{walk: Walk, panel: Panel, scale: number}} props */
function Caption({ walk, panel, scale }) {
  const text = caption(panel);
  const excess = text.length * 9 * scale - panel.wide * panel.columns.length;
  const kind = excess > margin(walk, panel, scale) ? "long deeper" : excess > 0 ? "long" : "";
  return html`<figcaption class=${kind}>${text}</figcaption>`;
}

/** @param {{state: State, walk: Walk, group: Group, scale: number, dark: boolean, brief: boolean, stacked: boolean}} props */
function SideBySide({ state, walk, group, scale, dark, brief, stacked }) {
  const panels = [...group.left, ...group.results];
  const shared = { state, walk, group, dark };
  const heads = isOneStage(group);
  return html`<div class=${`beside ${stacked ? "stacked" : group.left.length ? "steady" : ""}`}>${panels.map(
    (panel, i) => {
      const rows = i === 0 || stacked || !group.left.length;
      return html`${i && group.left.length && !(heads && panel.role === "left") ? html`<span class="then" aria-hidden="true">${panel.role !== "result" ? "+" : stacked ? "↓" : "→"}</span>` : null}
      <figure class=${panel.role} style=${`padding-left:${rows ? margin(walk, panel, scale) : 0}px`}>
      <figcaption>${heads && panel.role === "left" ? `head ${panel.head}` : caption(panel)}${brief ? html` <small>${panel.stage.sentence}</small>` : null}</figcaption>
      <${Matrix} ...${shared} panel=${panel} names=${{ rows, columns: true }} /></figure>`;
    },
  )}</div>`;
}

/** The caption of a matrix, without its head, which the header shows. @param {Panel} panel */
const caption = ({ stage, turned }) => stage.name + (turned ? "ᵀ" : "");

/** The selected number, and how it is computed. @param {{state: State, walk: Walk}} props */
function NumberPane({ state, walk }) {
  const cell = state.cell.value;
  if (!cell) return null;
  const { stage, head, row, column } = cell;
  const parts = calculationParts(cell);
  const value = stage.at(head, row, column);
  const isId = stage.axes[1] === "id";
  const name = (/** @type {0 | 1} */ axis, /** @type {number} */ index) => {
    const text = label(walk, stage, axis, index);
    return text ? readable(text) : `${axis ? "number" : "row"} ${index}`;
  };
  const separator = hasPairs(stage) ? " → " : ", ";
  return html`<section class="pane" aria-label="This number" aria-live="polite" tabindex="0">
    <h2><span>${fullName({ stage, head })}: <bdi>${name(0, row)}</bdi>${isId ? null : html`${separator}<bdi>${name(1, column)}</bdi>`}
      ${state.pinned.value ? html`<span class="pin">pinned; press Esc to release</span>` : null}</span><div class="scale" aria-hidden="true"><i></i><span>below 0</span><span>above 0</span></div></h2>
    <p class="sum">${parts.length ? parts.map(({ kind, text }) => html`<span class=${kind}>${text}</span>`) : html`<span class="total">${isId ? value : formatNumber(value)}</span>`}</p>
  </section>`;
}
