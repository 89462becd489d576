// The program `forebay serve` as a child process. Ports and storage folder stay the same across restarts.
//
// Invariant: no process outlives the test run that started it, unless the run is killed.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { eventually, within } from './waiting.mjs';
import { freePort } from './port.mjs';

/** Drain timeout in milliseconds. Short, because clients reconnect and tests shouldn't wait. */
const DRAIN_MS = 1_000;

/** Number of log lines kept for the message of a failure. */
const LOG_LINES = 200;

/** Variables of all settings that the tests use. The program refuses unknown names. */
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

/** Starts `forebay serve` for a database and waits until it is active. `FOREBAY_BIN` is the path of the program. */
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
  #options;
  #child;
  #log = [];
  #killOnExit = () => this.#child?.kill('SIGKILL');

  constructor(options) {
    this.#options = options;
    this.url = `http://127.0.0.1:${options.port}`;
    /** URL for the shapes of clients. */
    this.shapes = `${this.url}/v1/shape`;
    process.on('exit', this.#killOnExit);
  }

  /** The last lines of its output. */
  get log() {
    return this.#log.join('\n');
  }

  /** Starts the process and waits until `/v1/health` returns 200. */
  async start() {
    const { program, args, settings } = this.#options;
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
    let spawnError;
    child.on('error', (error) => (spawnError = error));
    const active = async () => {
      if (spawnError) throw new Error(`${program} can't be run: ${spawnError.message}`);
      if (hasEnded(child)) throw new Error(`forebay ended with ${child.exitCode ?? child.signalCode}:\n${this.log}`);
      const answer = await fetch(`${this.url}/v1/health`).catch((error) => error);
      return answer.status === 200 || `${answer.status ?? answer.cause ?? answer}; its log:\n${this.log}`;
    };
    await eventually('GET /v1/health returns 200', active, (answer) => answer === true);
  }

  #keep = (text) => {
    this.#log.push(...text.trimEnd().split('\n'));
    this.#log.splice(0, this.#log.length - LOG_LINES);
  };

  /** Ends the process with SIGTERM and waits for its exit. */
  async stop() {
    await this.#signalAndWait('SIGTERM');
  }

  /** Kills the process without any chance to clean up. */
  async kill() {
    await this.#signalAndWait('SIGKILL');
  }

  async restart() {
    await this.stop();
    await this.start();
  }

  async #signalAndWait(signal) {
    const child = this.#child;
    if (!child || hasEnded(child) || child.pid === undefined) return;
    const exited = once(child, 'exit');
    child.kill(signal);
    await within(`forebay ends after ${signal}`, exited);
  }

  /** Kills the process and removes its storage. */
  async end() {
    await this.kill();
    process.off('exit', this.#killOnExit);
    await rm(this.#options.storage, { recursive: true, force: true });
  }
}

function hasEnded(child) {
  return child.exitCode !== null || child.signalCode !== null;
}
