// The client of the worker that computes weights (worker.js).
import { decompress } from "../wire.js";

/** Sends one question at a time, the newest question first, and drops aborted questions. */
export class WorkerClient {
  /** @param {ArrayBuffer} source the worker's script */
  constructor(source) {
    /** @type {{question: any, signal?: AbortSignal, resolve: (result: any) => void, reject: (error: Error) => void}[]} */
    this.waiting = [];
    // Chromium cannot start a module worker from a file, so the script is in a data URL
    const text = new TextDecoder().decode(source);
    this.worker = new Worker(`data:text/javascript,${encodeURIComponent(text)}`);
    /** @type {any} */
    this.current = null;
    /** Parts of the file that were sent to the worker. @type {Map<string, Promise<void>>} */
    this.sent = new Map();
    this.worker.onmessage = ({ data }) => this._answered(data);
    this.worker.onerror = (event) =>
      this._answered({ failed: event.message || "the worker did not start" });
  }

  /** Ask a question; send the parts of the file that it needs first. @param {any} question @param {AbortSignal} [signal] @returns {Promise<any>} */
  async ask(question, signal) {
    await Promise.all(Object.values(question.parts).map((name) => this._send(name)));
    return new Promise((resolve, reject) => {
      this.waiting.push({ question, signal, resolve, reject });
      this._next();
    });
  }

  /** Send a part of the file, once. @param {string} name */
  _send(name) {
    const sending =
      this.sent.get(name) ??
      decompress(document.getElementById(name)).then((bytes) =>
        this.worker.postMessage({ name, bytes }, [bytes]),
      );
    this.sent.set(name, sending);
    return sending;
  }

  _next() {
    while (!this.current && this.waiting.length) {
      const newest = /** @type {any} */ (this.waiting.pop());
      if (newest.signal?.aborted) newest.reject(newest.signal.reason);
      else {
        this.current = newest;
        this.worker.postMessage(newest.question);
      }
    }
  }

  /** @param {{result?: any, failed?: string}} answer */
  _answered({ result, failed }) {
    const { resolve, reject } = this.current ?? {};
    this.current = null;
    if (failed) reject?.(new Error(failed));
    else resolve?.(result);
    this._next();
  }
}
