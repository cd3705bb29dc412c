// What the page shows now, as signals; what of it stands in the address can be shared.
import { batch, computed, effect, signal } from "./html.js";

export class State {
  /** @param {any} about what the source tells of its recordings */
  constructor(about) {
    this.about = about;
    this.at = signal([0, 0, 0]); // recording, text, call
    this.head = signal(0); // the model's number
    this.view = signal({ x: 0, y: 0, scale: 0 }); // left key, upper query, pixels a cell; 0: all
    this.cell = signal(/** @type {{query: number, key: number} | null} */ (null));
    this.pinned = signal(false);
    this.reduce = signal("max");
    this.colours = signal("sqrt");
    this.sink = signal(true);
    this.tab = signal("map");
    this.theme = signal("");
    this.call = computed(() => {
      const [recording, text, call] = this.at.value;
      return about.recordings[recording].texts[text].calls[call];
    });
    this.calls = computed(() => {
      const [recording, text] = this.at.value;
      return about.recordings[recording].texts[text].calls;
    });
    this.where = computed(() => this.at.value.join("."));
    /** A second map beside the first, panned together: where it is from, and its head. */
    this.second = signal(/** @type {{at: number[], head: number} | null} */ (null));
    this.sides = [this, this._side()];
  }

  /** The second map as the first one is asked: call, where, head. */
  _side() {
    return {
      head: computed(() => this.second.value?.head ?? 0),
      where: computed(() => this.second.value?.at.join(".") ?? ""),
      call: computed(() => {
        const [recording, text, call] = this.second.value?.at ?? this.at.value;
        return this.about.recordings[recording].texts[text].calls[call];
      }),
    };
  }

  /** Show a call and a head. @param {number} call @param {number} head */
  show(call, head) {
    batch(() => {
      const [recording, text] = this.at.value;
      const before = this.call.value.shape;
      this.at.value = [recording, text, call];
      const heads = this.call.value.heads;
      this.head.value = heads.includes(head) ? head : heads[0];
      if (String(before.slice(1)) !== String(this.call.value.shape.slice(1))) {
        this.view.value = { x: 0, y: 0, scale: 0 };
        this.cell.value = null;
      }
    });
  }

  /** Another text or recording. @param {number} recording @param {number} text */
  open(recording, text) {
    batch(() => {
      const calls = this.about.recordings[recording].texts[text].calls;
      this.at.value = [recording, text, Math.min(this.at.value[2], calls.length - 1)];
      this.view.value = { x: 0, y: 0, scale: 0 };
      this.cell.value = null;
      if (!this.call.value.heads.includes(this.head.value))
        this.head.value = this.call.value.heads[0];
    });
  }

  /** Keep the address and this the same. */
  follow() {
    this._read();
    addEventListener("hashchange", () => this._read());
    let waiting = 0;
    effect(() => {
      const written = "#" + this._written();
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        if (location.hash !== written) history.replaceState(null, "", written);
      }, 200);
    });
  }

  _written() {
    const { x, y, scale } = this.view.value;
    const cell = this.cell.value;
    const about = { call: this.where.value, head: String(this.head.value) };
    if (scale) about.view = [x, y, scale].map((n) => +n.toPrecision(6)).join(",");
    if (cell) about.cell = `${cell.query},${cell.key}`;
    if (this.pinned.value) about.pinned = "1";
    if (this.reduce.value !== "max") about.reduce = this.reduce.value;
    if (this.colours.value !== "sqrt") about.colours = this.colours.value;
    if (!this.sink.value) about.sink = "0";
    if (this.tab.value !== "map") about.tab = this.tab.value;
    const second = this.second.value;
    if (second) about.beside = `${second.at.join(".")}.${second.head}`;
    if (this.theme.value) about.theme = this.theme.value;
    return new URLSearchParams(about).toString();
  }

  _read() {
    const given = new URLSearchParams(location.hash.slice(1));
    const numbers = (name, separator) => (given.get(name) ?? "").split(separator).map(Number);
    batch(() => {
      const at = numbers("call", ".");
      if (at.length === 3 && this._has(at)) this.at.value = at;
      const head = Number(given.get("head") ?? NaN);
      this.head.value = this.call.value.heads.includes(head) ? head : this.call.value.heads[0];
      const beside = numbers("beside", ".");
      this.second.value =
        beside.length === 4 && this._has(beside)
          ? { at: beside.slice(0, 3), head: beside[3] }
          : null;
      const [x, y, scale] = numbers("view", ",");
      if (scale > 0 && Number.isFinite(x + y)) this.view.value = { x, y, scale };
      const [query, key] = numbers("cell", ",");
      const [, N, M] = this.call.value.shape;
      if (given.has("cell") && query < N && key < M && query >= 0 && key >= 0)
        this.cell.value = { query, key };
      this.pinned.value = given.get("pinned") === "1";
      if (given.get("reduce") === "mean") this.reduce.value = "mean";
      if (["linear", "log"].includes(given.get("colours") ?? ""))
        this.colours.value = given.get("colours") ?? "sqrt";
      this.sink.value = given.get("sink") !== "0";
      if (["text", "heads"].includes(given.get("tab") ?? ""))
        this.tab.value = given.get("tab") ?? "map";
      if (["dark", "light"].includes(given.get("theme") ?? ""))
        this.theme.value = given.get("theme") ?? "";
    });
  }

  _has([recording, text, call]) {
    return Boolean(this.about.recordings[recording]?.texts[text]?.calls[call]);
  }
}
