// Questions to the worker that computes weights from query and key (worker.js).
import { inflated } from "../wire.js";

/** Questions one at a time, the newest first; what nobody waits for is not begun. */
export class Computing {
  /** @param {ArrayBuffer} source of the worker */
  constructor(source) {
    /** @type {{question: any, signal?: AbortSignal, resolve: (found: any) => void, reject: (error: Error) => void}[]} */
    this.waiting = [];
    // from a file Chromium starts no worker of modules: this one is a script, in its own address
    const text = new TextDecoder().decode(source);
    this.worker = new Worker(`data:text/javascript,${encodeURIComponent(text)}`);
    /** @type {any} */
    this.now = null;
    /** Parts of the file that are on their way to the worker, or there. @type {Map<string, Promise<void>>} */
    this.brought = new Map();
    this.worker.onmessage = ({ data }) => this._answered(data);
    this.worker.onerror = (event) =>
      this._answered({ failed: event.message || "the worker did not start" });
  }

  /** Ask, with the parts of the file that the question needs. @param {any} question @param {AbortSignal} [signal] @returns {Promise<any>} */
  async ask(question, signal) {
    await Promise.all(Object.values(question.parts).map((name) => this._bring(name)));
    return new Promise((resolve, reject) => {
      this.waiting.push({ question, signal, resolve, reject });
      this._next();
    });
  }

  /** Bring a part of the file, once. @param {string} name */
  _bring(name) {
    const brought =
      this.brought.get(name) ??
      inflated(document.getElementById(name)).then((bytes) =>
        this.worker.postMessage({ name, bytes }, [bytes]),
      );
    this.brought.set(name, brought);
    return brought;
  }

  _next() {
    while (!this.now && this.waiting.length) {
      const newest = /** @type {any} */ (this.waiting.pop());
      if (newest.signal?.aborted)
        newest.reject(new DOMException("not wanted any more", "AbortError"));
      else {
        this.now = newest;
        this.worker.postMessage(newest.question);
      }
    }
  }

  /** @param {{found?: any, failed?: string}} answer */
  _answered({ found, failed }) {
    const { resolve, reject } = this.now ?? {};
    if (!resolve) return;
    this.now = null;
    if (failed) reject(new Error(failed));
    else resolve(found);
    this._next();
  }
}
