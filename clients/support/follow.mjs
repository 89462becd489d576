// A stream of the published client, and all that it said.
import { isChangeMessage, ShapeStream } from '@electric-sql/client';
import { becomes, eventually } from './patience.mjs';
import { recorder } from './recorder.mjs';

/** A back-off for servers that come back soon. */
export const QUICK = { initialDelay: 20, maxDelay: 200, multiplier: 1.5 };

/** Follows a shape until the test is done, or `leave` is called. Options are the client's, and the recorder's. */
export function follow(test, { before, rewrite, ...options }) {
  const leaving = new AbortController();
  const { requests, fetchClient } = recorder({ before, rewrite });
  const stream = new ShapeStream({ fetchClient, signal: leaving.signal, backoffOptions: QUICK, ...options });
  const follower = new Follower(stream, requests, () => leaving.abort());
  test.after(() => leaving.abort());
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

  /** Messages about rows. */
  get changes() {
    return this.messages.filter(isChangeMessage);
  }

  /** What happened to which row, such as `['insert', {id: 1}]`. */
  get rows() {
    return this.changes.map(({ headers, value }) => [headers.operation, value]);
  }

  /** The control messages, by their names. */
  get controls() {
    return this.messages.map(({ headers }) => headers.control).filter(Boolean);
  }

  /** Waits until the client has all that there was. */
  async upToDate(times = 1) {
    const count = () => this.controls.filter((control) => control === 'up-to-date').length;
    await this.until(`the stream says up-to-date for the ${times}. time`, () => count() >= times);
  }

  /** Waits until a live request is open, or was answered. */
  async live() {
    await this.until('the stream asks for what is live', () => this.requests.some(({ query }) => 'live' in query));
  }

  /** Waits until it holds; an error of the stream ends the waiting. */
  async until(what, ask, holds) {
    return eventually(what, this.#unlessLost(what, ask), holds);
  }

  /** Waits until the rows, since the `from`-th change, are these. */
  async reads(what, wanted, from = 0, ms = undefined) {
    await becomes(
      what,
      wanted,
      this.#unlessLost(what, () => this.rows.slice(from)),
      ms,
    );
  }

  #unlessLost(what, ask) {
    return () => {
      const [cause] = this.errors;
      if (cause) throw new Error(`the stream ended before this: ${what}; ${cause.message}`, { cause });
      return ask();
    };
  }
}
