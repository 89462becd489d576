// Waiting for what must come, and for as long as no honest machine needs.
//
// Invariant: no wait is without an end, and one that ends in vain says what it waited for.
import assert from 'node:assert/strict';
import { clearTimeout, setTimeout } from 'node:timers';
import { setTimeout as pause } from 'node:timers/promises';
import { inspect, isDeepStrictEqual } from 'node:util';

/** When a test stops to believe in it. Well beyond every deadline of a client or the server. */
export const PATIENCE_MS = 60_000;

/** Options of a test: what ends one that hangs outside of the waits below. */
export const LIMIT = { timeout: 4 * PATIENCE_MS };

/** What the promise gives; an error that names it if that takes too long. */
export async function within(what, promise, ms = PATIENCE_MS) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${ms} ms: ${what}`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Asks until the answer is true of `holds`, and gives it: for what gives no sign when it happens. */
export async function eventually(what, ask, holds = Boolean, ms = PATIENCE_MS) {
  const begun = performance.now();
  for (;;) {
    const found = await ask();
    if (holds(found)) return found;
    if (performance.now() - begun > ms) throw new Error(`not within ${ms} ms: ${what}; still ${inspect(found)}`);
    await pause(10);
  }
}

/** Asks until the answer is `wanted`; what it was at last is shown beside it. */
export async function becomes(what, wanted, ask, ms = PATIENCE_MS) {
  let found;
  const same = async () => isDeepStrictEqual((found = await ask()), wanted);
  try {
    await eventually(what, same, Boolean, ms);
  } catch (error) {
    assert.deepEqual(found, wanted, `not within ${ms} ms: ${what}`);
    throw error;
  }
}
