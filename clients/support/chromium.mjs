// Headless Chromium, controlled by the DevTools protocol on a pipe: JSON messages, each ended by a zero byte.
//
// Without a library: the existing ones need a newer Node than Debian's, and the tests need only a few commands.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { within } from './waiting.mjs';

const FLAGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--disable-dev-shm-usage',
  '--disable-extensions',
  '--no-default-browser-check',
  '--remote-debugging-pipe',
];

/** Starts a browser. It is ended after the test. */
export async function startBrowser(test) {
  const profile = await mkdtemp(join(tmpdir(), 'forebay-chromium-'));
  const stdio = ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'];
  // In its own process group, so that its child processes are killed with it.
  const child = spawn('chromium', [...FLAGS, `--user-data-dir=${profile}`, 'about:blank'], { stdio, detached: true });
  const end = () => {
    try {
      process.kill(-child.pid, 'SIGKILL');
    } catch {
      // The process group has ended already.
    }
  };
  process.on('exit', end);
  test.after(async () => {
    process.off('exit', end);
    const ended = child.exitCode === null && child.signalCode === null ? once(child, 'exit') : undefined;
    end();
    await ended;
    await rm(profile, { recursive: true, force: true, maxRetries: 10 });
  });
  const failed = new Promise((_, reject) => {
    child.on('error', (error) => reject(new Error('chromium (a Debian package) is not installed', { cause: error })));
    child.on('exit', (code, signal) => reject(new Error(`chromium ended with ${code ?? signal}`)));
  });
  failed.catch(() => {});
  return new Browser(new Pipe(child.stdio[3], child.stdio[4], failed));
}

/** Connection that sends commands and receives responses and events. */
class Pipe {
  #out;
  #failed;
  #last = 0;
  #waiting = new Map();
  #listeners = new Map();

  constructor(out, from, failed) {
    this.#out = out;
    this.#failed = failed;
    let rest = '';
    out.on('error', () => {});
    from.setEncoding('utf8').on('data', (text) => {
      const parts = (rest + text).split('\0');
      rest = parts.pop();
      parts.forEach((part) => this.#receive(JSON.parse(part)));
    });
  }

  /** Sends a command and returns its result. */
  async call(method, params = {}, sessionId = undefined) {
    const id = ++this.#last;
    const responded = new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject, method }));
    this.#out.write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return within(`the browser's response to ${method}`, Promise.race([responded, this.#failed]));
  }

  /** Passes the events of a session to `listener`. */
  listen(sessionId, listener) {
    this.#listeners.set(sessionId, listener);
  }

  #receive(message) {
    if (message.id === undefined) {
      this.#listeners.get(message.sessionId)?.(message);
      return;
    }
    const { resolve, reject, method } = this.#waiting.get(message.id);
    this.#waiting.delete(message.id);
    if (message.error) reject(new Error(`${method}: ${message.error.message}`));
    else resolve(message.result);
  }
}

class Browser {
  #pipe;

  constructor(pipe) {
    this.#pipe = pipe;
  }

  /** Opens a page in a new context, which shares neither cache nor storage with other pages. */
  async open(url) {
    const { browserContextId } = await this.#pipe.call('Target.createBrowserContext');
    const { targetId } = await this.#pipe.call('Target.createTarget', { url: 'about:blank', browserContextId });
    const { sessionId } = await this.#pipe.call('Target.attachToTarget', { targetId, flatten: true });
    const page = new Page(this.#pipe, sessionId);
    await page.go(url);
    return page;
  }
}

class Page {
  #pipe;
  #session;
  #loaded = () => {};
  /** Console messages, exceptions and log entries, for the message of a failure. */
  messages = [];

  constructor(pipe, session) {
    this.#pipe = pipe;
    this.#session = session;
    pipe.listen(session, ({ method, params }) => {
      if (method === 'Page.loadEventFired') this.#loaded();
      if (method === 'Runtime.exceptionThrown') this.messages.push(params.exceptionDetails.exception?.description);
      if (method === 'Runtime.consoleAPICalled') this.messages.push(params.args.map((arg) => arg.value).join(' '));
      if (method === 'Log.entryAdded') this.messages.push(`${params.entry.text} ${params.entry.url ?? ''}`);
    });
  }

  /** Navigates to a URL and waits until the page has loaded. */
  async go(url) {
    for (const domain of ['Page', 'Runtime', 'Log']) await this.#call(`${domain}.enable`);
    const loaded = new Promise((resolve) => (this.#loaded = resolve));
    await this.#call('Page.navigate', { url });
    await within(`${url} is loaded`, loaded);
  }

  /** Calls a function, given as text, in the page and returns its result. Promises are awaited. */
  async run(body, ...args) {
    const expression = `(${body})(...${JSON.stringify(args)})`;
    const params = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = await this.#call('Runtime.evaluate', params);
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? inspect(exceptionDetails));
    return result.value;
  }

  #call(method, params) {
    return this.#pipe.call(method, params, this.#session);
  }
}
