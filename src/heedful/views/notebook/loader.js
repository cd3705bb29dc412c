// What anywidget runs in a cell. The kernel is asked for the page's script, then for its numbers;
// while it does not answer, a line says so.

/** @typedef {{on: (name: string, does: (...given: any[]) => void) => void, off: (name: string, does: (...given: any[]) => void) => void, send: (message: any) => void, get: (name: string) => any, set: (name: string, value: any) => void, save_changes: () => void}} Model anywidget's */
/** @typedef {{resolve: (bytes: ArrayBuffer) => void, reject: (error: Error) => void, since: number}} Waiting */

const [LATE, LOST] = [3000, 20000]; // milliseconds without an answer
const BUSY = "The kernel is busy: this goes on when it answers.";
const SILENT =
  "The kernel has not answered for a while: it is busy, or was restarted; then run the cell again.";
const ENDED = "The kernel was restarted or has ended: run the cell again to look further.";

/** Questions to the kernel, and its answers. */
class Kernel {
  /** @param {Model} model @param {(line: string) => void} say what is to be said of the kernel */
  constructor(model, say) {
    this.model = model;
    this.name = Math.random().toString(36).slice(2); // two views of one output have one model
    this.made = 0;
    this.ended = false; // the kernel is gone
    this.isLeft = false; // the page is
    /** @type {Map<string, Waiting>} */
    this.waiting = new Map();
    this._heard = (/** @type {any} */ message, /** @type {DataView[]} */ buffers) =>
      this._answered(message, buffers);
    this._left = () => {
      this.ended = true;
      say(ENDED);
    };
    model.on("msg:custom", this._heard);
    model.on("comm_live_update", this._left);
    this.timer = setInterval(() => say(this._late()), 500);
    model.send({ page: this.name, open: true });
  }

  /** What is said of an answer that is late. */
  _late() {
    if (this.ended) return ENDED;
    const oldest = Math.min(...[...this.waiting.values()].map(({ since }) => since));
    const waited = Date.now() - oldest;
    return waited > LOST ? SILENT : waited > LATE ? BUSY : "";
  }

  /**
   * @param {string} question @param {Record<string, any>} [words] @param {AbortSignal} [signal]
   * @returns {Promise<ArrayBuffer>}
   */
  ask(question, words = {}, signal = undefined) {
    if (this.isLeft) return Promise.reject(new Error("This page was closed."));
    return new Promise((resolve, reject) => {
      const id = `${this.name} ${++this.made}`;
      this.waiting.set(id, { resolve, reject, since: Date.now() });
      signal?.addEventListener("abort", () => {
        if (!this.waiting.delete(id)) return;
        this.model.send({ leave: id });
        reject(signal.reason);
      });
      this.model.send({ ask: id, question, words });
    });
  }

  /** @param {{answer?: string, wrong?: string}} message @param {DataView[]} buffers */
  _answered({ answer = "", wrong }, buffers) {
    const one = this.waiting.get(answer);
    if (!one) return;
    this.waiting.delete(answer);
    for (const each of this.waiting.values()) each.since = Date.now(); // it is not silent
    if (wrong) one.reject(new Error(wrong));
    else {
      const { buffer, byteOffset, byteLength } = buffers[0];
      one.resolve(/** @type {ArrayBuffer} */ (buffer.slice(byteOffset, byteOffset + byteLength)));
    }
  }

  /** Ask nothing more: else the kernel would begin anew for a page that nobody sees. */
  end() {
    this.isLeft = true;
    clearInterval(this.timer);
    this.model.off("msg:custom", this._heard);
    this.model.off("comm_live_update", this._left);
    this.model.send({ page: this.name, open: false });
  }
}

const STYLE = `
:host { display: block; position: relative; font: 13px / 1.45 system-ui, sans-serif; }
.wait { box-sizing: border-box; height: 640px; margin: 4px 0; padding: 12px 16px; color: #808080;
  border: 1px solid rgb(128 128 128 / 35%); border-radius: 6px; }
.kernel { position: absolute; z-index: 9; left: 50%; top: 50px; transform: translateX(-50%);
  max-width: 90%; margin: 0; padding: 6px 14px; border-radius: 8px; color: #fff;
  background: #3a426d; }
.kernel:empty { display: none; }`;

/** A place of its own in a cell: style and ids do not reach out of it, nor into it. @param {HTMLElement} cell */
const placed = (cell) => {
  const box = document.createElement("div");
  cell.append(box);
  const root = box.attachShadow({ mode: "open" });
  root.innerHTML = `<style>${STYLE}</style><div class="wait">The kernel is asked for the page.</div><p class="kernel" role="status"></p>`;
  return root;
};

/** @param {{model: Model, el: HTMLElement}} given */
const show = async ({ model, el }) => {
  const root = placed(el);
  const [style, page, line] = /** @type {any} */ (root.querySelectorAll("style, div, p"));
  const kernel = new Kernel(model, (text) => {
    if (line.textContent !== text) line.textContent = text;
  });
  let end = () => {};
  let left = false;
  const shown = async () => {
    const packed = new Blob([await kernel.ask("page")]).stream();
    const text = await new Response(packed.pipeThrough(new DecompressionStream("deflate"))).text();
    const found = JSON.parse(text);
    const url = URL.createObjectURL(new Blob([found.script], { type: "text/javascript" }));
    const { show } = await import(url);
    URL.revokeObjectURL(url);
    style.after(Object.assign(document.createElement("style"), { textContent: found.style }));
    page.className = page.textContent = "";
    end = await show(page, kernel, model);
    if (left) end();
  };
  shown().catch((error) => {
    page.textContent = String(error.message ?? error);
  });
  return () => {
    left = true;
    kernel.end();
    end();
  };
};

export default { render: show };
