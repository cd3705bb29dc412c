// The end of the colour scale: one for all maps on the page, so that their colours can be compared.

import { signal } from "../html.js";
import { round } from "./colours.js";

const STILL = 140; // milliseconds without a move after which the scale may change
const FEW = 24; // blocks of a map up to which the largest weight of all is the end of the scale
const SHARE = 0.9; // of more blocks, this share is not beyond it: one corner leaves the rest its colours

export class Scale {
  constructor() {
    this.highest = signal(1);
    this.isCut = signal(false); // whether there are weights beyond the end
    /** @type {Map<object, number[]>} the largest weights of blocks of each map in view */
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
   * A map tells its largest weights. Returns the milliseconds after which it should tell again.
   * @param {object} whose @param {number[]} largest of each block; none where nothing is there yet
   */
  tell(whose, largest) {
    if (!largest.length) return 0;
    this.seen.set(whose, largest);
    const wait = this.fresh ? 0 : STILL - (performance.now() - this.moved);
    if (wait > 0) return wait;
    this.fresh = false;
    const most = Math.max(...[...this.seen.values()].map((one) => Math.max(...one)));
    this.highest.value = round(Math.max(...[...this.seen.values()].map(end)));
    this.isCut.value = most > this.highest.value * 1.0001;
    return 0;
  }

  /** @param {object} whose a map that has been closed */
  leave(whose) {
    this.seen.delete(whose);
  }
}

/** Where the scale of one map ends. @param {number[]} largest */
function end(largest) {
  if (largest.length <= FEW) return Math.max(...largest);
  return largest.toSorted((a, b) => a - b)[Math.floor(SHARE * (largest.length - 1))];
}
