// The end of the colour scale: one for all maps on the page, so that their colours can be compared.
import { round } from "./colours.js";
import { signal } from "./html.js";

const STILL = 140; // milliseconds without a move after which the scale may change

export class Scale {
  constructor() {
    this.highest = signal(1);
    /** @type {Map<object, number>} the largest weight of each map in view */
    this.seen = new Map();
    this.moved = 0; // when the view moved last
    this.fresh = true;
  }

  /** The view moves: colours stay as they are meanwhile. */
  move() {
    this.moved = performance.now();
  }

  /** What is shown is another: its colours begin anew. */
  renew() {
    this.fresh = true;
  }

  /**
   * A map tells its largest weight. Returns the milliseconds after which it should ask again.
   * @param {object} whose @param {number} largest 0 where nothing is there yet
   */
  tell(whose, largest) {
    if (!largest) return 0;
    this.seen.set(whose, largest);
    const wait = this.fresh ? 0 : STILL - (performance.now() - this.moved);
    if (wait > 0) return wait;
    this.fresh = false;
    this.highest.value = round(Math.max(...this.seen.values()));
    return 0;
  }

  /** @param {object} whose a map that has been closed */
  leave(whose) {
    this.seen.delete(whose);
  }
}
