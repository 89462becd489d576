// Reader that verifies the log of a shape.
//
// Invariant of a log: each insert adds a row that doesn't exist; each update and delete changes a row that exists. A
// repeated or missing change violates it. The `Shape` of the client doesn't detect this.
import { isChangeMessage } from '@electric-sql/client';

/** Holds the rows of a stream, and in `faults` the messages that broke the invariant. */
export class LogVerifier {
  #rows = new Map();
  faults = [];

  constructor(stream) {
    stream.subscribe((messages) => messages.forEach((message) => this.#take(message)));
  }

  /** The rows, ordered by id. */
  get rows() {
    return [...this.#rows.values()].sort((one, other) => one.id - other.id);
  }

  #take(message) {
    if (message.headers.control === 'must-refetch') this.#rows.clear();
    if (!isChangeMessage(message)) return;
    const { key, value, headers } = message;
    if (this.#rows.has(key) === (headers.operation === 'insert')) this.faults.push(message);
    if (headers.operation === 'delete') this.#rows.delete(key);
    else this.#rows.set(key, { ...this.#rows.get(key), ...value });
  }
}
