// Temporary database on the server of the tests.
//
// Invariant: when `end` returns, neither the database nor any of its replication slots exists.
// Enforced by: the name is random, and all slots of the database are dropped.
import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { eventually, within } from './waiting.mjs';

/** Output settings of the server. Tests compare its values with those of Postgres under the same settings. */
const DISPLAY = {
  bytea_output: 'hex',
  DateStyle: 'ISO, DMY',
  TimeZone: 'UTC',
  extra_float_digits: '1',
  IntervalStyle: 'iso_8601',
};

/**
 * Creates an empty database. `FOREBAY_TEST_DATABASE_URL` is the URL of a Postgres with wal_level=logical, with a
 * superuser. With `FOREBAY_TEST_ICU_LOCALE`, the database sorts text by that locale instead of by bytes.
 */
export async function makeDatabase(purpose) {
  const server = process.env.FOREBAY_TEST_DATABASE_URL;
  if (!server) throw new Error('FOREBAY_TEST_DATABASE_URL is not set: the URL of a Postgres with wal_level=logical');
  const name = `clients_${purpose}_${randomBytes(4).toString('hex')}`;
  await once(server, async (client) => {
    const { rows } = await client.query('SHOW wal_level');
    if (rows[0].wal_level !== 'logical') throw new Error(`wal_level is ${rows[0].wal_level}, and must be logical`);
    const locale = process.env.FOREBAY_TEST_ICU_LOCALE;
    const icu = `TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE '${locale}' LC_COLLATE 'C' LC_CTYPE 'C'`;
    await client.query(`CREATE DATABASE ${name} ${locale ? icu : ''}`);
  });
  const url = new URL(server);
  url.pathname = `/${name}`;
  return new Database(server, url.href, name);
}

class Database {
  #server;
  #pool;
  #tables = 0;

  constructor(server, url, name) {
    this.#server = server;
    this.url = url;
    this.name = name;
    this.#pool = new pg.Pool({ connectionString: url, max: 4 });
    // Idle connections fail when the database is dropped, which is expected.
    this.#pool.on('error', () => {});
  }

  /** Returns the rows of one statement, or of the last of several. */
  sql = async (text, values) => {
    const result = await within(`the result of ${text}`, this.#pool.query(text, values));
    return (Array.isArray(result) ? result.at(-1) : result).rows;
  };

  /** Returns the rows, with each value as the text of its type's output function. */
  text = async (query) => {
    const types = { getTypeParser: () => (value) => value };
    const set = Object.entries(DISPLAY).map(([name, value]) => `SET LOCAL ${name} = '${value}'`);
    return this.transaction(async (run) => {
      await run(set.join('; '));
      return run({ text: query, types });
    });
  };

  /** Runs `body` in one transaction and returns its result. */
  transaction = async (body) => {
    const client = await within('a connection to Postgres', this.#pool.connect());
    const run = async (query, values) =>
      (await within(`the result of ${query.text ?? query}`, client.query(query, values))).rows;
    let broken = true;
    try {
      await run('BEGIN');
      const outcome = await body(run);
      await run('COMMIT');
      broken = false;
      return outcome;
    } finally {
      client.release(broken);
    }
  };

  /** Creates a table with a new name and returns the name. */
  table = async (columns, rows = '') => {
    const name = `things_${++this.#tables}`;
    await this.sql(`CREATE TABLE ${name} (${columns}); ${rows && `INSERT INTO ${name} VALUES ${rows}`}`);
    return name;
  };

  /** Drops the replication slots and the database. */
  async end() {
    await this.#pool.end();
    await once(this.#server, async (client) => {
      const slots = async () => {
        const terminate = `SELECT slot_name, pg_terminate_backend(active_pid) FROM pg_replication_slots
          WHERE database = $1 AND active_pid IS NOT NULL`;
        await client.query(terminate, [this.name]);
        const drop = `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
          WHERE database = $1 AND active_pid IS NULL`;
        await client.query(drop, [this.name]);
        const left = await client.query('SELECT slot_name FROM pg_replication_slots WHERE database = $1', [this.name]);
        return left.rowCount === 0;
      };
      await eventually(`the slots of ${this.name} are dropped`, slots);
      await client.query(`DROP DATABASE IF EXISTS ${this.name} WITH (FORCE)`);
    });
  }
}

/** Runs `body` with one connection. */
async function once(url, body) {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => {});
  await within('a connection to the Postgres of the tests', client.connect());
  try {
    return await body(client);
  } finally {
    await client.end();
  }
}
