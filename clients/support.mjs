// Everything that the tests import.
import './support/timers.mjs';
export { startTestServer } from './support/test-server.mjs';
export { startForebay } from './support/forebay.mjs';
export { makeDatabase } from './support/postgres.mjs';
export { recorder } from './support/recorder.mjs';
export { follow, QUICK } from './support/follow.mjs';
export { startProxy } from './support/proxy.mjs';
export { startBrowser } from './support/chromium.mjs';
export { serve } from './support/serve.mjs';
export { LogVerifier } from './support/log-verifier.mjs';
export { Random } from './support/random.mjs';
export { becomes, eventually, within, LIMIT, MAX_WAIT_MS } from './support/waiting.mjs';
