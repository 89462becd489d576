// Pseudo-random numbers: the same for the same seed.

/** Mulberry32: small, and sufficient to select the steps of a test. */
export class Random {
  #state;

  constructor(seed) {
    this.#state = seed >>> 0;
  }

  /** Returns an integer from 0 to `bound` - 1. */
  below(bound) {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) % bound;
  }

  /** Returns one of the choices. */
  of(choices) {
    return choices[this.below(choices.length)];
  }
}
