// All that a test imports.
import './support/timers.mjs';
export { world } from './support/world.mjs';
export { startForebay } from './support/forebay.mjs';
export { makeDatabase } from './support/postgres.mjs';
export { recorder } from './support/recorder.mjs';
export { follow, QUICK } from './support/follow.mjs';
export { startProxy } from './support/proxy.mjs';
export { startBrowser } from './support/chromium.mjs';
export { serve } from './support/serve.mjs';
export { Ledger } from './support/ledger.mjs';
export { Random } from './support/random.mjs';
export { becomes, eventually, within, LIMIT, PATIENCE_MS } from './support/patience.mjs';
