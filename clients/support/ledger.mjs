// A reader that takes the log by its word.
//
// Invariant of a log: an insert is of a row that isn't there, an update or a delete of one that is. A change that is
// told twice, or not at all, breaks it sooner or later; a `Shape` would not notice.
import { isChangeMessage } from '@electric-sql/client';

/** Keeps the rows of a stream, and what was wrong with its messages. */
export class Ledger {
  #rows = new Map();
  faults = [];

  constructor(stream) {
    stream.subscribe((messages) => messages.forEach((message) => this.#take(message)));
  }

  /** The rows, by their ids. */
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
