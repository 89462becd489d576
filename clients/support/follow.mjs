// Stream of the published client, with all its messages, requests and errors.
import { isChangeMessage, ShapeStream } from '@electric-sql/client';
import { becomes, eventually } from './waiting.mjs';
import { recorder } from './recorder.mjs';

/** Short back-off, for servers that return soon. */
export const QUICK = { initialDelay: 20, maxDelay: 200, multiplier: 1.5 };

/** Follows a shape until the test ends or `leave` is called. Takes the options of the client and of `recorder`. */
export function follow(test, { before, rewrite, ...options }) {
  const abort = new AbortController();
  const { requests, fetchClient } = recorder({ before, rewrite });
  const stream = new ShapeStream({ fetchClient, signal: abort.signal, backoffOptions: QUICK, ...options });
  const follower = new Follower(stream, requests, () => abort.abort());
  test.after(() => abort.abort());
  return follower;
}

class Follower {
  messages = [];
  batches = [];
  errors = [];

  constructor(stream, requests, leave) {
    this.stream = stream;
    this.requests = requests;
    this.leave = leave;
    const keep = (batch) => {
      this.batches.push(batch);
      this.messages.push(...batch);
    };
    stream.subscribe(keep, (error) => this.errors.push(error));
  }

  /** The change messages. */
  get changes() {
    return this.messages.filter(isChangeMessage);
  }

  /** The changes as pairs of operation and value, such as `['insert', {id: 1}]`. */
  get rows() {
    return this.changes.map(({ headers, value }) => [headers.operation, value]);
  }

  /** The names of the control messages. */
  get controls() {
    return this.messages.map(({ headers }) => headers.control).filter(Boolean);
  }

  /** Waits for the given number of up-to-date messages. */
  async upToDate(times = 1) {
    const count = () => this.controls.filter((control) => control === 'up-to-date').length;
    await this.until(`up-to-date message ${times}`, () => count() >= times);
  }

  /** Waits until the client has sent a live request. */
  async live() {
    await this.until('a live request', () => this.requests.some(({ query }) => 'live' in query));
  }

  /** Waits like `eventually`. Fails if the stream fails. */
  async until(what, read, holds) {
    return eventually(what, this.#failIfStreamFailed(what, read), holds);
  }

  /** Waits until the changes from index `from` are `wanted`. */
  async reads(what, wanted, from = 0, ms = undefined) {
    await becomes(
      what,
      wanted,
      this.#failIfStreamFailed(what, () => this.rows.slice(from)),
      ms,
    );
  }

  #failIfStreamFailed(what, read) {
    return () => {
      const [cause] = this.errors;
      if (cause) throw new Error(`the stream ended before this: ${what}; ${cause.message}`, { cause });
      return read();
    };
  }
}
