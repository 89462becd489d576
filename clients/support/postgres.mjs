// A database of one's own, on the server that the tests are given.
//
// Invariant: when `end` returns, neither the database nor a replication slot in it is left.
// Kept by: the name is random, and slots are found by it, whoever made them.
import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { eventually, within } from './patience.mjs';

/** How values are shown on the wire. What the server sends is compared with what Postgres says under these. */
const DISPLAY = {
  bytea_output: 'hex',
  DateStyle: 'ISO, DMY',
  TimeZone: 'UTC',
  extra_float_digits: '1',
  IntervalStyle: 'iso_8601',
};

/**
 * Makes an empty database. `FOREBAY_TEST_DATABASE_URL` is a superuser's, of a Postgres with
 * wal_level=logical. With `FOREBAY_TEST_ICU_LOCALE` it orders texts by the rules of that locale, and
 * not by their bytes.
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
    // A connection that is idle when the database goes is nobody's loss.
    this.#pool.on('error', () => {});
  }

  /** The rows of one statement, or of the last of several. */
  sql = async (text, values) => {
    const result = await within(`the answer to ${text}`, this.#pool.query(text, values));
    return (Array.isArray(result) ? result.at(-1) : result).rows;
  };

  /** The rows as text, each value as its type's output function spells it. */
  text = async (query) => {
    const types = { getTypeParser: () => (value) => value };
    const set = Object.entries(DISPLAY).map(([name, value]) => `SET LOCAL ${name} = '${value}'`);
    return this.transaction(async (run) => {
      await run(set.join('; '));
      return run({ text: query, types });
    });
  };

  /** What `body` gives; all that it runs is one transaction. */
  transaction = async (body) => {
    const client = await within('a connection to Postgres', this.#pool.connect());
    const run = async (query, values) =>
      (await within(`the answer to ${query.text ?? query}`, client.query(query, values))).rows;
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

  /** Makes a table that no other test of this file has, and gives its name. */
  table = async (columns, rows = '') => {
    const name = `things_${++this.#tables}`;
    await this.sql(`CREATE TABLE ${name} (${columns}); ${rows && `INSERT INTO ${name} VALUES ${rows}`}`);
    return name;
  };

  async end() {
    await this.#pool.end();
    await once(this.#server, async (client) => {
      const slots = async () => {
        const dropped = `SELECT slot_name, pg_terminate_backend(active_pid) FROM pg_replication_slots
          WHERE database = $1 AND active_pid IS NOT NULL`;
        await client.query(dropped, [this.name]);
        const idle = `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
          WHERE database = $1 AND active_pid IS NULL`;
        await client.query(idle, [this.name]);
        const left = await client.query('SELECT slot_name FROM pg_replication_slots WHERE database = $1', [this.name]);
        return left.rowCount === 0;
      };
      await eventually(`the slots of ${this.name} are dropped`, slots);
      await client.query(`DROP DATABASE IF EXISTS ${this.name} WITH (FORCE)`);
    });
  }
}

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
