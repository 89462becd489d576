// Numbers that only look random: the same for the same seed.

/** Mulberry32, which is small and good enough to choose what a test does next. */
export class Random {
  #state;

  constructor(seed) {
    this.#state = seed >>> 0;
  }

  /** From 0 to below `bound`. */
  below(bound) {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) % bound;
  }

  /** One of them. */
  of(choices) {
    return choices[this.below(choices.length)];
  }
}
