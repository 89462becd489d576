// All types of Postgres: the text that a client gets equals the text of Postgres, byte for byte.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { COLUMNS, IMPOSSIBLE, OWN_TYPES } from '../support/types.mjs';
import { follow, LIMIT, startTestServer } from '../support.mjs';

const { forebay, sql, text, table } = await startTestServer('types');
const url = forebay.shapes;

const TYPES = Object.keys(COLUMNS);
const names = TYPES.map((_, place) => `c${place}`);
const ROWS = Math.max(...TYPES.map((type) => COLUMNS[type].length)) + 1; // the last row has only nulls

await sql(OWN_TYPES);

/** Removes the schema from a response, so that the client doesn't parse values. */
const raw = (response) => {
  const headers = new Headers(response.headers);
  if (headers.has('electric-schema')) headers.set('electric-schema', '{}');
  return new Response(response.body, { status: response.status, headers });
};

async function allTypes() {
  return table(`id int PRIMARY KEY, ${TYPES.map((type, place) => `c${place} ${type}`).join(', ')}`);
}

/** Inserts all rows of values, with ids from `from`. */
async function insert(things, from) {
  for (let row = 0; row < ROWS; row += 1) {
    const values = TYPES.map((type) => COLUMNS[type][row] ?? null);
    const places = TYPES.map((type, place) => `$${place + 1}::${type}`);
    await sql(`INSERT INTO ${things} VALUES (${from + row}, ${places})`, values);
  }
}

/** Fails, naming the type, if a value differs from the text of Postgres. */
async function assertSame(things, rows, where) {
  const stored = await text(`SELECT * FROM ${things} WHERE ${where} ORDER BY id`);
  const byId = new Map(rows.map((row) => [row.id, row]));
  assert.equal(byId.size, stored.length);
  const wrong = [];
  for (const wanted of stored) {
    const found = byId.get(wanted.id);
    names.forEach((name, place) => {
      if (found[name] !== wanted[name]) wrong.push({ type: TYPES[place], found: found[name], wanted: wanted[name] });
    });
  }
  assert.deepEqual(wrong, []);
}

test('every built-in type is tested', LIMIT, async () => {
  const rows =
    await sql(`SELECT typname FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typcategory <> 'A'
    AND typtype IN ('b', 'r', 'm') ORDER BY 1`);
  const things = await allTypes();
  const held = await sql(
    `SELECT typname FROM pg_attribute JOIN pg_type t ON t.oid = atttypid WHERE attrelid = $1::regclass`,
    [things],
  );
  const tried = new Set(held.map(({ typname }) => typname));
  const left = rows.map(({ typname }) => typname).filter((type) => !tried.has(type) && !(type in IMPOSSIBLE));
  assert.deepEqual(left, []);
});

for (const liveSse of [false, true]) {
  test(
    `each value has the text of Postgres, in the snapshot and in the log, liveSse: ${liveSse}`,
    LIMIT,
    async (t) => {
      const things = await allTypes();
      await insert(things, 1);
      const follower = follow(t, { url, params: { table: things }, rewrite: raw, liveSse });
      await follower.live();
      await insert(things, 1001);
      await follower.until('all rows', () => follower.changes.length === 2 * ROWS);
      const rows = follower.changes.map(({ value }) => value);
      await assertSame(things, rows.slice(0, ROWS), 'id <= 1000');
      await assertSame(things, rows.slice(ROWS), 'id > 1000');
    },
  );
}

test('updates to and from NULL carry each value and its old value', LIMIT, async (t) => {
  const things = await allTypes();
  const firsts = TYPES.map((type) => COLUMNS[type][0] ?? null);
  await sql(`INSERT INTO ${things} (id) VALUES (1)`);
  const follower = follow(t, { url, params: { table: things, replica: 'full' }, rewrite: raw });
  await follower.live();
  const sets = TYPES.map((type, place) => `c${place} = $${place + 1}::${type}`);
  await sql(`UPDATE ${things} SET ${sets}`, firsts);
  await follower.until('the update', () => follower.changes.length === 2);
  await assertSame(things, [follower.changes[1].value], 'true');
  const [stored] = await text(`SELECT * FROM ${things}`);

  await sql(`UPDATE ${things} SET ${names.map((name) => `${name} = NULL`)}`);
  await follower.until('the update to NULL', () => follower.changes.length === 3);
  await assertSame(things, [follower.changes[2].value], 'true');
  const were = names.filter((name) => stored[name] !== null).map((name) => [name, stored[name]]);
  assert.deepEqual({ ...follower.changes[2].old_value }, Object.fromEntries(were));
});

test('values of a subset have the text of Postgres', LIMIT, async (t) => {
  const things = await allTypes();
  await insert(things, 1);
  const { stream } = follow(t, { url, params: { table: things }, log: 'changes_only', rewrite: raw });
  const { data } = await stream.fetchSnapshot({ where: 'id > 0' });
  await assertSame(
    things,
    data.map(({ value }) => value),
    'true',
  );
});
