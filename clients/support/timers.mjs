// A timer that must not keep a process alive.
//
// The client notes for localStorage which shapes are up to date, at most once a minute, by a timer that nothing clears;
// also where there is no localStorage. A file of tests would end a minute late.
const start = globalThis.setTimeout;

/** No timer of the client that matters is longer, but a live request's watchdog, which has a socket beside it. */
const LONG_MS = 30_000;

globalThis.setTimeout = (callback, ms, ...args) => {
  const timer = start(callback, ms, ...args);
  return ms > LONG_MS ? timer.unref() : timer;
};
