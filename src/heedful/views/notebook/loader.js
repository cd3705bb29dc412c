// The front end that anywidget runs in a cell. It requests the page's script and numbers from the
// kernel, and shows a message while the kernel does not answer.

/** @typedef {{on: (name: string, callback: (...args: any[]) => void) => void, off: (name: string, callback: (...args: any[]) => void) => void, send: (message: any) => void, get: (name: string) => any, set: (name: string, value: any) => void, save_changes: () => void}} Model anywidget's model */
/** @typedef {{resolve: (bytes: ArrayBuffer) => void, reject: (error: Error) => void, since: number}} Waiting */

const [LATE, LOST] = [3000, 20000]; // milliseconds without an answer until each message
const BUSY = "The kernel is busy. The page continues when the kernel answers.";
const SILENT =
  "The kernel has not answered for a while. It is busy or was restarted. If it was restarted, run the cell again.";
const ENDED = "The kernel was restarted or has ended: run the cell again to continue.";

/** Sends questions to the kernel and returns promises of its answers. */
class Kernel {
  /** @param {Model} model @param {(line: string) => void} report shows a message, or hides it for "" */
  constructor(model, report) {
    this.model = model;
    this.name = Math.random().toString(36).slice(2); // two views of the same output share the model
    this.count = 0;
    this.ended = false; // the kernel has ended
    this.isClosed = false; // the page is closed
    /** @type {Map<string, Waiting>} */
    this.waiting = new Map();
    this._onEnd = () => {
      this.ended = true;
      report(ENDED);
    };
    model.on("msg:custom", this._receive);
    model.on("comm_live_update", this._onEnd);
    this.timer = setInterval(() => report(this._status()), 500);
    model.send({ page: this.name, open: true });
  }

  /** The message for an answer that is late, else "". */
  _status() {
    if (this.ended) return ENDED;
    const oldest = Math.min(...[...this.waiting.values()].map(({ since }) => since));
    const elapsed = Date.now() - oldest;
    return elapsed > LOST ? SILENT : elapsed > LATE ? BUSY : "";
  }

  /** @param {string} question @param {Record<string, any>} [words] @param {AbortSignal} [signal] @returns {Promise<ArrayBuffer>} */
  ask(question, words = {}, signal = undefined) {
    if (this.isClosed) return Promise.reject(new Error("This page was closed."));
    return new Promise((resolve, reject) => {
      const id = `${this.name} ${++this.count}`;
      this.waiting.set(id, { resolve, reject, since: Date.now() });
      signal?.addEventListener("abort", () => {
        if (!this.waiting.delete(id)) return;
        this.model.send({ leave: id });
        reject(signal.reason);
      });
      this.model.send({ ask: id, question, words });
    });
  }

  _receive = (/** @type {any} */ { answer = "", wrong }, /** @type {DataView[]} */ buffers) => {
    const request = this.waiting.get(answer);
    if (!request) return;
    this.waiting.delete(answer);
    for (const other of this.waiting.values()) other.since = Date.now(); // the kernel is alive
    if (wrong) request.reject(new Error(wrong));
    else {
      const { buffer, byteOffset, byteLength } = buffers[0];
      const bytes = buffer.slice(byteOffset, byteOffset + byteLength);
      request.resolve(/** @type {ArrayBuffer} */ (bytes));
    }
  };

  /** Close the page and reject later questions, because a question would restart the kernel's thread. */
  end() {
    this.isClosed = true;
    clearInterval(this.timer);
    this.model.off("msg:custom", this._receive);
    this.model.off("comm_live_update", this._onEnd);
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

/** Add a shadow root, which isolates styles and ids, to a cell. @param {HTMLElement} cell */
const addRoot = (cell) => {
  const box = document.createElement("div");
  cell.append(box);
  const root = box.attachShadow({ mode: "open" });
  root.innerHTML = `<style>${STYLE}</style><div class="wait">Loading the page from the kernel.</div><p class="kernel" role="status"></p>`;
  return root;
};

/** @param {{model: Model, el: HTMLElement}} props */
const show = async ({ model, el }) => {
  const root = addRoot(el);
  const [style, page, line] = /** @type {any} */ (root.querySelectorAll("style, div, p"));
  const kernel = new Kernel(model, (text) => {
    if (line.textContent !== text) line.textContent = text;
  });
  let end = () => {};
  let isClosed = false;
  const load = async () => {
    const packed = new Blob([await kernel.ask("page")]).stream();
    const text = await new Response(packed.pipeThrough(new DecompressionStream("deflate"))).text();
    const bundle = JSON.parse(text);
    const url = URL.createObjectURL(new Blob([bundle.script], { type: "text/javascript" }));
    const { show } = await import(url);
    URL.revokeObjectURL(url);
    style.after(Object.assign(document.createElement("style"), { textContent: bundle.style }));
    page.className = page.textContent = "";
    end = await show(page, kernel, model);
    if (isClosed) end();
  };
  load().catch((error) => {
    page.textContent = String(error.message ?? error);
  });
  return () => {
    isClosed = true;
    kernel.end();
    end();
  };
};

export default { render: show };
