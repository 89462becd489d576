// Waits with deadlines.
//
// Invariant: every wait has a deadline, and an expired wait fails with the name of what it waited for.
import assert from 'node:assert/strict';
import { clearTimeout, setTimeout } from 'node:timers';
import { setTimeout as pause } from 'node:timers/promises';
import { inspect, isDeepStrictEqual } from 'node:util';

/** Longest wait, in milliseconds. Longer than every deadline of a client or the server. */
export const MAX_WAIT_MS = 60_000;

/** Options of a test: ends a test that hangs outside of the waits below. */
export const LIMIT = { timeout: 4 * MAX_WAIT_MS };

/** Awaits a promise. Fails after `ms`, naming `what`. */
export async function within(what, promise, ms = MAX_WAIT_MS) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${ms} ms: ${what}`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Polls `read` until `holds` is true for its value, and returns the value. Fails after `ms`. */
export async function eventually(what, read, holds = Boolean, ms = MAX_WAIT_MS) {
  const started = performance.now();
  for (;;) {
    const found = await read();
    if (holds(found)) return found;
    if (performance.now() - started > ms) throw new Error(`not within ${ms} ms: ${what}; still ${inspect(found)}`);
    await pause(10);
  }
}

/** Polls `read` until its value equals `wanted`. Fails after `ms`, showing the last value. */
export async function becomes(what, wanted, read, ms = MAX_WAIT_MS) {
  let found;
  const same = async () => isDeepStrictEqual((found = await read()), wanted);
  try {
    await eventually(what, same, Boolean, ms);
  } catch (error) {
    assert.deepEqual(found, wanted, `not within ${ms} ms: ${what}`);
    throw error;
  }
}
