// Long timers that don't keep the process alive.
//
// At most once a minute, the client saves to localStorage which shapes are up to date. It never clears the timer, and
// starts it even without localStorage. The timer would delay the end of each test file by a minute.
const start = globalThis.setTimeout;

/**
 * Timers above this don't keep the process alive. The watchdog of a live request is such a timer too; its open socket
 * keeps the process alive.
 */
const LONG_MS = 30_000;

globalThis.setTimeout = (callback, ms, ...args) => {
  const timer = start(callback, ms, ...args);
  return ms > LONG_MS ? timer.unref() : timer;
};
