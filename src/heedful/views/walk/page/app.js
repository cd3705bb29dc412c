// The page: a step at a time. What it shows stands in `state`.
import { follow, system } from "../../explorer/page/host.js";
import {
  html,
  render,
  useEffect,
  useLayoutEffect,
  useRef,
  useState,
} from "../../explorer/page/html.js";
import { readable } from "../../explorer/page/tokens.js";
import { Matrix } from "./matrix.js";
import { Answered } from "./next_tokens.js";
import { one } from "./number_format.js";
import { areHeads, arranged, isNarrow, margin } from "./sizes.js";
import { label, missing } from "./stages.js";
import { State } from "./state.js";
import { sum } from "./sums.js";

/** @import { Group, Panel } from "./scene.js" */
/** @import { Cell, Offered, Stage, Walk } from "./types.js" */
/** @import { Host } from "../../explorer/page/types.js" */

/**
 * Draw the page into an element.
 * @param {HTMLElement} element
 * @param {{walks: Offered[], start: number, text: string, memory: string}} about @param {Host} host
 */
export function mount(element, { walks, start, text, memory }, host) {
  const state = new State(walks, start, { text, memory });
  const here = () => `${state.which.value} ${state.step.value}`;
  if (host.address)
    follow(
      host.address,
      (text) => state.read(text),
      () => state.written(),
      here,
    );
  render(html`<${Page} state=${state} host=${host} />`, element);
}

/** @param {{state: State, host: Host}} given */
function Page({ state, host }) {
  const page = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => listen(state, host.keys ?? /** @type {HTMLElement} */ (page.current)), []);
  const dark = useDark(state.theme.value);
  const walk = state.walk.value;
  return html`<div class=${`page walk ${state.theme.value}`} ref=${page}>
    <${Top} state=${state} dark=${dark} />
    <${Steps} state=${state} />
    <main>
      <${Words} state=${state} walk=${walk} />
      <${Scene} state=${state} walk=${walk} dark=${dark} />
      <${Pane} state=${state} walk=${walk} />
    </main>
  </div>`;
}

/** Whether the page stands on dark ground. @param {string} theme */
function useDark(theme) {
  const [worn, setWorn] = useState(() => system().read());
  useEffect(() => system().follow(() => setWorn(system().read())), []);
  return (theme || worn) === "dark";
}

/** ← and → go a step; in a matrix they walk through its numbers. @param {State} state @param {EventTarget} target */
function listen(state, target) {
  const on = (/** @type {Event} */ given) => {
    const event = /** @type {KeyboardEvent} */ (given);
    const typing = /** @type {Element} */ (event.target).closest?.("input, select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
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
  target.addEventListener("keydown", on);
  return () => target.removeEventListener("keydown", on);
}

/** @param {{state: State, dark: boolean}} given */
function Top({ state, dark }) {
  const { offered, which } = state;
  const isTyped = offered[which.value].typed;
  const variants = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => inView(variants.current, '[aria-pressed="true"]'), [which.value]);
  const walk = state.walk.value;
  const { heads } = walk;
  return html`<header>
    <b class="logo">heedful</b>
    ${
      offered.length > 1
        ? html`<nav class="choice" aria-label="Variants" ref=${variants}>${offered.map(
            (one, i) =>
              html`<button type="button" aria-pressed=${i === which.value} onClick=${() => state.open(i)}>${one.label}</button>`,
          )}</nav>`
        : null
    }
    ${
      isTyped
        ? html`<${Typed} name="The sentence" text=${state.text.value} first=${state.first.text} told=${(/** @type {string} */ text) => (state.text.value = text)} />
          ${walk.memory.length ? html`<${Typed} name="The second text, which it looks at" text=${state.memory.value} first=${state.first.memory} told=${(/** @type {string} */ text) => (state.memory.value = text)} />` : null}`
        : html`<span class="grow"><bdi>${walk.title}</bdi></span>`
    }
    ${
      heads > 1
        ? html`<span class="choice" role="group" aria-label="Head"><span>head</span>${Array.from(
            { length: heads },
            (_, h) =>
              html`<button type="button" aria-label=${`head ${h}`} aria-pressed=${h === state.ofHead.value} onClick=${() => (state.head.value = h)}>${h}</button>`,
          )}</span>`
        : null
    }
    <button type="button" class="theme" aria-label=${dark ? "Light" : "Dark"} title=${dark ? "light" : "dark"} onClick=${() => (state.theme.value = dark ? "light" : "dark")}>◐</button>
  </header>`;
}

/** A text that is typed. @param {{name: string, text: string, first: string, told: (text: string) => void}} given */
function Typed({ name, text, first, told }) {
  const typed = (/** @type {InputEvent} */ event) =>
    told(/** @type {HTMLInputElement} */ (event.target).value);
  return html`<input class="sentence" type="text" dir="auto" aria-label=${name} title=${name} placeholder=${first} spellcheck="false" maxlength="10000" value=${text} onInput=${typed} />`;
}

/** Scroll a list to what is chosen in it. @param {HTMLElement | null} list @param {string} chosen */
function inView(list, chosen) {
  const [box, of] = [list, list?.querySelector(chosen)].map((one) => one?.getBoundingClientRect());
  if (!box || !of || !list) return;
  if (of.top < box.top || of.bottom > box.bottom)
    list.scrollTop += of.top - box.top - box.height / 3;
  if (of.left < box.left || of.right > box.right) list.scrollLeft += of.left - box.left - 20;
}

/** The list of all steps. @param {{state: State}} given */
function Steps({ state }) {
  const { steps } = state.walk.value;
  const now = state.step.value;
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => inView(list.current, '[aria-current="step"]'), [now]);
  return html`<nav class="steps" aria-label="Steps" ref=${list}><ol>${steps.map(
    (
      step,
      i,
    ) => html`${step.section && step.section !== steps[i - 1]?.section ? html`<li class="section" key=${`s${i}`}>${step.section}</li>` : null}
      <li key=${i}><button type="button" aria-current=${i === now ? "step" : undefined} onClick=${() => state.go(i)}><span class="n">${i + 1}</span><span><bdi>${step.brief ? step.stages.map((one) => one.name).join(", ") : step.name}</bdi></span></button></li>`,
  )}</ol></nav>`;
}

/** The title, the formula, the shapes, and what happens in a sentence. @param {{state: State, walk: Walk}} given */
function Words({ state, walk }) {
  const step = state.shown.value;
  const { stages } = step;
  const at = Math.min(state.step.value, walk.steps.length - 1);
  const go = (/** @type {number} */ by) => () => state.go(at + by);
  const unique = (/** @type {string[]} */ all) => [...new Set(all.filter(Boolean))];
  const formulas = unique(stages.map((stage) => stage.formula));
  const chains = unique(
    stages.map((stage) => stage.chain.map((shape) => `[${shape.join(", ")}]`).join(" → ")),
  );
  const shapes = unique(stages.map(shape));
  const first = at === 0;
  return html`<section class="words" aria-label="The step">
    <div class="title"><h1><bdi>${step.name}</bdi> <small>${shapes.join("; ")}</small></h1>
      <span class="turn"><button type="button" aria-label="The step before" disabled=${first} onClick=${go(-1)}>←</button>
      <span class="of">${at + 1} / ${walk.steps.length}</span>
      <button type="button" aria-label="The next step" disabled=${at === walk.steps.length - 1} onClick=${go(1)}>→</button></span></div>
    ${formulas.length ? html`<p class="formula">${formulas.map((text) => html`<span>${text}</span>`)}</p>` : null}
    ${chains.map((text) => html`<p class="chain">${text}</p>`)}
    <p>${step.brief ? null : unique(stages.map((stage) => stage.sentence)).join(" ")}</p>
    ${[walk.tokens, walk.memory].map(({ length }, i) => (walk.beyond[i] ? html`<p class="quiet">The first ${length} words${i ? " of the second text" : ""} are shown, ${walk.beyond[i].toLocaleString("en")} more are not.</p>` : null))}
    ${missing(stages).map((text) => html`<p class="quiet">${text}</p>`)}
    ${at === walk.steps.length - 1 && walk.missing ? html`<p>${walk.missing}</p>` : null}
    ${first ? html`<p class="quiet">${[walk.title, ...walk.notes].map((text) => `${text}${/[.!?]$/.test(text) ? "" : "."} `)}</p>` : null}
  </section>`;
}

/** `6 × 3`, before it the heads where there are several. @param {Stage} stage */
function shape(stage) {
  const all = stage.shape.map((n) => n.toLocaleString("en"));
  const heads = all.length > 2 && all[0] !== "1" ? `${all[0]} heads × ` : "";
  return heads + all.slice(-2).join(" × ");
}

/** Pixels that matrices may take; on a phone they may be longer than it. @param {HTMLElement} element */
function roomIn(element) {
  const { paddingLeft, paddingTop } = getComputedStyle(element);
  const wide = element.clientWidth - 2 * Number.parseFloat(paddingLeft);
  const high = element.clientHeight - 2 * Number.parseFloat(paddingTop);
  return { wide, high: wide < 560 ? 420 : Math.max(280, high) };
}

/** The matrices of the step. @param {{state: State, walk: Walk, dark: boolean}} given */
function Scene({ state, walk, dark }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [size, setSize] = useState({ wide: 0, high: 0 });
  useLayoutEffect(() => {
    const element = /** @type {HTMLElement} */ (box.current);
    const measure = () => setSize(roomIn(element));
    const watched = new ResizeObserver(measure);
    watched.observe(element);
    measure();
    return () => watched.disconnect();
  }, []);
  const here = `${state.which.value} ${state.step.value}`;
  useEffect(() => box.current?.scrollTo(0, 0), [here]);
  const step = state.shown.value;
  const { groups, scale } =
    size.wide && !step.answer
      ? arranged(walk, step, state.ofHead.value, size)
      : { groups: [], scale: 1 };
  const stacked = isNarrow(size);
  return html`<section class="scene" ref=${box} aria-label="The numbers" style=${`--scale:${scale}`}>
    ${step.answer ? html`<${Answered} walk=${walk} answer=${step.answer} />` : null}
    ${groups.map((group) => html`<${group.falk ? Falk : Beside} state=${state} walk=${walk} group=${group} scale=${scale} dark=${dark} brief=${step.brief} stacked=${stacked} />`)}
  </section>`;
}

/** @param {{state: State, walk: Walk, group: Group, scale: number, dark: boolean}} given */
function Falk({ state, walk, group, scale, dark }) {
  const { left, top, made } = group;
  const shared = { state, walk, group, dark };
  const edge = `padding-left:${margin(walk, left[0], scale)}px`;
  return html`<div class="falk" style=${edge}>
    ${top.map((panel, i) => html`<figure style=${`grid-row:1;grid-column:${i + 2};padding-left:${i ? margin(walk, panel, scale) : 0}px`}><${Caption} walk=${walk} panel=${panel} scale=${scale} /><${Matrix} ...${shared} panel=${panel} names=${{ rows: true, columns: true }} /></figure>`)}
    <figure class="low" style="grid-row:2;grid-column:1"><${Matrix} ...${shared} panel=${left[0]} names=${{ rows: true, columns: false }} /><${Caption} walk=${walk} panel=${left[0]} scale=${scale} /></figure>
    ${made.map((panel, i) => html`<figure class="low made" style=${`grid-row:2;grid-column:${i + 2};padding-left:${i ? margin(walk, top[i], scale) : 0}px`}><${Matrix} ...${shared} panel=${panel} names=${{ rows: false, columns: false }} /><${Caption} walk=${walk} panel=${panel} scale=${scale} /></figure>`)}
  </div>`;
}

/** What stands at a factor or a product. Longer than its matrix, it goes on to the left, or a line
 * deeper where there is no room. @param {{walk: Walk, panel: Panel, scale: number}} given */
function Caption({ walk, panel, scale }) {
  const text = captioned(panel);
  const over = text.length * 9 * scale - panel.wide * panel.columns.length;
  const how = over > margin(walk, panel, scale) ? "long deeper" : over > 0 ? "long" : "";
  return html`<figcaption class=${how}>${text}</figcaption>`;
}

/** @param {{state: State, walk: Walk, group: Group, scale: number, dark: boolean, brief: boolean, stacked: boolean}} given */
function Beside({ state, walk, group, scale, dark, brief, stacked }) {
  const panels = [...group.left, ...group.made];
  const shared = { state, walk, group, dark };
  const heads = areHeads(group);
  return html`<div class=${`beside ${stacked ? "stacked" : group.left.length ? "steady" : ""}`}>${panels.map(
    (panel, i) => {
      const rows = i === 0 || stacked || !group.left.length;
      return html`${i && group.left.length && !(heads && panel.role === "left") ? html`<span class="then" aria-hidden="true">${panel.role !== "made" ? "+" : stacked ? "↓" : "→"}</span>` : null}
      <figure class=${panel.role} style=${`padding-left:${rows ? margin(walk, panel, scale) : 0}px`}>
      <figcaption>${heads && panel.role === "left" ? `head ${panel.head}` : captioned(panel)}${brief ? html` <small>${panel.stage.sentence}</small>` : null}</figcaption>
      <${Matrix} ...${shared} panel=${panel} names=${{ rows, columns: true }} /></figure>`;
    },
  )}</div>`;
}

/** What stands at a matrix; which head it is of says the top of the page. @param {Panel} panel */
const captioned = ({ stage, turned }) => stage.name + (turned ? "ᵀ" : "");

/** What the colours mean. */
function Scale() {
  return html`<div class="scale" aria-hidden="true"><i></i><span>below 0</span><span>above</span></div>`;
}

/** The number that is looked at, and what makes it. @param {{state: State, walk: Walk}} given */
function Pane({ state, walk }) {
  const cell = state.cell.value;
  if (!cell) return null;
  const { stage, head, row, column } = cell;
  const line = sum(cell);
  const value = stage.at(head, row, column);
  const isId = stage.axes[1] === "id";
  const name = (/** @type {0 | 1} */ axis, /** @type {number} */ at) => {
    const text = label(walk, stage, axis, at);
    return text ? readable(text) : `${axis ? "number" : "row"} ${at}`;
  };
  const then = ["tokens", "memory"].includes(stage.axes[1]) ? " → " : ", ";
  const several = stage.shape.length > 2 && stage.shape[0] > 1;
  return html`<section class="pane" aria-label="This number" aria-live="polite" tabindex="0">
    <h2><span>${stage.name}${several ? ` of head ${head}` : ""}: <bdi>${name(0, row)}</bdi>${isId ? null : html`${then}<bdi>${name(1, column)}</bdi>`}
      ${state.pinned.value ? html`<span class="pin">kept; Esc lets it go</span>` : null}</span><${Scale} /></h2>
    <p class="sum">${line.length ? line.map(({ kind, text }) => html`<span class=${kind}>${text}</span>`) : html`<span class="total">${isId ? value : one(value)}</span>`}</p>
  </section>`;
}
