// The program, as a process of its own, on ports and in a folder that stay the same when it starts again.
//
// Invariant: no process outlives the tests that started it, unless they are killed themselves.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { eventually, within } from './patience.mjs';
import { freePort } from './port.mjs';

/** How long open streams may go on when it is asked to end: clients come back anyway, and no test need wait. */
const DRAIN_MS = 1_000;

/** How much of its log is kept, for the message of a failure. */
const LOG_LINES = 200;

/** Every setting that the tests make, by what it is for. The program refuses names that it doesn't know. */
export const SETTING = {
  database: 'DATABASE_URL',
  listen: 'FOREBAY_SERVE_LISTEN',
  admin: 'FOREBAY_ADMIN_LISTEN',
  storage: 'FOREBAY_STORAGE_DIR',
  slot: 'FOREBAY_DATABASE_SLOT',
  allowDeletion: 'FOREBAY_SERVE_ALLOW_DELETE',
  drain: 'FOREBAY_SERVE_DRAIN_TIMEOUT_MS',
  totalStreams: 'FOREBAY_ADMISSION_TOTAL',
  sseTimeout: 'FOREBAY_SERVE_SSE_TIMEOUT_MS',
};

/** Starts `forebay serve` for a database, and waits until it is active. `FOREBAY_BIN` is the program. */
export async function startForebay({ database, env = {}, args = [] }) {
  const program = process.env.FOREBAY_BIN;
  if (!program) throw new Error('FOREBAY_BIN is not set: the path of the forebay program');
  const storage = await mkdtemp(join(tmpdir(), 'forebay-clients-'));
  const port = await freePort();
  const settings = {
    [SETTING.database]: database.url,
    [SETTING.listen]: `127.0.0.1:${port}`,
    [SETTING.admin]: `127.0.0.1:${await freePort()}`,
    [SETTING.storage]: storage,
    [SETTING.slot]: database.name,
    [SETTING.drain]: `${DRAIN_MS}`,
    ...env,
  };
  const forebay = new Forebay({ program, args: ['serve', ...args], settings, port, storage });
  try {
    await forebay.start();
  } catch (error) {
    await forebay.end();
    throw error;
  }
  return forebay;
}

class Forebay {
  #how;
  #child;
  #log = [];
  #killOnExit = () => this.#child?.kill('SIGKILL');

  constructor(how) {
    this.#how = how;
    this.url = `http://127.0.0.1:${how.port}`;
    /** Where clients ask. */
    this.shapes = `${this.url}/v1/shape`;
    process.on('exit', this.#killOnExit);
  }

  /** The last lines that it wrote. */
  get log() {
    return this.#log.join('\n');
  }

  async start() {
    const { program, args, settings } = this.#how;
    const own = Object.entries(process.env).filter(
      ([name]) => !name.startsWith('FOREBAY_') && name !== SETTING.database,
    );
    const child = spawn(program, args, {
      env: { ...Object.fromEntries(own), ...settings },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#child = child;
    child.stdout.setEncoding('utf8').on('data', this.#keep);
    child.stderr.setEncoding('utf8').on('data', this.#keep);
    let lost;
    child.on('error', (error) => (lost = error));
    const active = async () => {
      if (lost) throw new Error(`${program} can't be run: ${lost.message}`);
      if (hasEnded(child)) throw new Error(`forebay ended with ${child.exitCode ?? child.signalCode}:\n${this.log}`);
      const answer = await fetch(`${this.url}/v1/health`).catch((error) => error);
      return answer.status === 200 || `${answer.status ?? answer.cause ?? answer}; its log:\n${this.log}`;
    };
    await eventually('GET /v1/health says 200', active, (answer) => answer === true);
  }

  #keep = (text) => {
    this.#log.push(...text.trimEnd().split('\n'));
    this.#log.splice(0, this.#log.length - LOG_LINES);
  };

  /** Asks it to end, and waits until it has. */
  async stop() {
    await this.#leave('SIGTERM');
  }

  /** Ends it as a power cut would: it gets to do nothing more. */
  async kill() {
    await this.#leave('SIGKILL');
  }

  async restart() {
    await this.stop();
    await this.start();
  }

  async #leave(signal) {
    const child = this.#child;
    if (!child || hasEnded(child) || child.pid === undefined) return;
    const left = once(child, 'exit');
    child.kill(signal);
    await within(`forebay ends after ${signal}`, left);
  }

  /** Ends it at once and forgets what it stored. */
  async end() {
    await this.kill();
    process.off('exit', this.#killOnExit);
    await rm(this.#how.storage, { recursive: true, force: true });
  }
}

function hasEnded(child) {
  return child.exitCode !== null || child.signalCode !== null;
}
