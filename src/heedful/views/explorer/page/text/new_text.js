// A dialog to type a new text, record the model on it, and open the recording.
import { setTitles } from "../heads/scores.js";
import { html, useRef, useState } from "../html.js";

/** @import { State } from "../state.js" */
/** @import { About, Source } from "../types.js" */

/** A button that opens the dialog, if there is a model. @param {{state: State, source: Source}} props */
export function NewText({ state, source }) {
  const { model } = state.about;
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const record = source.record;
  if (!model || !record) return null;
  const labels = model.pairs ? ["text", "second text of a pair (optional)"] : ["text"];
  const send = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.currentTarget);
    const texts = [...form.querySelectorAll("textarea")].map((area) => area.value);
    if (!texts[0].trim()) return setError("Type a text first.");
    setError("");
    setBusy(true);
    try {
      const nonEmpty = texts.filter((text, n) => n === 0 || text.trim());
      open(state, await record.call(source, nonEmpty));
      box.current?.close();
    } catch (error) {
      setError(error instanceof Error ? error.message : String(error));
    }
    setBusy(false);
  };
  const keys = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey))
      /** @type {HTMLTextAreaElement} */ (event.target).form?.requestSubmit();
  };
  const typed = state.about.recordings[state.path.value[0]].typed ?? [];
  return html`<button type="button" onClick=${() => box.current?.showModal()}>New text</button>
    <dialog class="recording" ref=${box} aria-label="A new text">
      <form onSubmit=${send} aria-busy=${busy}><h2>A new text for <bdi>${model.name}</bdi></h2>
        ${labels.map((label, n) => html`<label>${label}<textarea rows=${n ? 2 : 4} dir="auto" onKeyDown=${keys} disabled=${busy} defaultValue=${typed[n] ?? ""}></textarea></label>`)}
        <p class="wrong" role="alert">${error}</p>
        <div class="bar"><span class="quiet" role="status">${busy ? "Running the model …" : "ctrl + Enter records it"}</span><span>
          <button type="button" onClick=${() => box.current?.close()}>cancel</button> <button disabled=${busy}>record</button></span></div></form></dialog>`;
}

/** Show the latest recording, with the same call, head and cell if the recording has them. @param {State} state @param {About} about */
function open(state, about) {
  Object.assign(state.about, about); // in place, because other modules hold the same object
  setTitles(state.about);
  const previous = { call: state.path.peek()[2], head: state.head.peek() };
  const [cell, pinned] = [state.cell.peek(), state.pinned.peek()];
  const last = about.recordings.length - (about.model?.predicts.length ?? 1); // that of the first model
  state.open(last, 0);
  state.show(Math.min(previous.call, state.calls.peek().length - 1), previous.head);
  if (cell) state.selectCell(state.clamp(cell), pinned);
}
