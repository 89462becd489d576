// All types of Postgres survive the trip: what a client gets is, byte for byte, what Postgres itself says.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { COLUMNS, IMPOSSIBLE, OWN_TYPES } from '../support/types.mjs';
import { follow, LIMIT, world } from '../support.mjs';

const { forebay, sql, text, table } = await world('types');
const url = forebay.shapes;

const TYPES = Object.keys(COLUMNS);
const names = TYPES.map((_, place) => `c${place}`);
const ROWS = Math.max(...TYPES.map((type) => COLUMNS[type].length)) + 1; // the last one has only nulls

await sql(OWN_TYPES);

/** Without a schema, the client leaves values as they came. */
const raw = (response) => {
  const headers = new Headers(response.headers);
  if (headers.has('electric-schema')) headers.set('electric-schema', '{}');
  return new Response(response.body, { status: response.status, headers });
};

async function allTypes() {
  return table(`id int PRIMARY KEY, ${TYPES.map((type, place) => `c${place} ${type}`).join(', ')}`);
}

/** Inserts each row of values, with ids from here. */
async function insert(things, from) {
  for (let row = 0; row < ROWS; row += 1) {
    const values = TYPES.map((type) => COLUMNS[type][row] ?? null);
    const places = TYPES.map((type, place) => `$${place + 1}::${type}`);
    await sql(`INSERT INTO ${things} VALUES (${from + row}, ${places})`, values);
  }
}

/** Compares each value, and says which type went wrong. */
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

test('every built-in type is among them', LIMIT, async () => {
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
    `each value is Postgres' own text, from the snapshot and from the log, liveSse: ${liveSse}`,
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

test('an update to and from NULL carries each value, and what it was', LIMIT, async (t) => {
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
  await follower.until('the way back', () => follower.changes.length === 3);
  await assertSame(things, [follower.changes[2].value], 'true');
  const were = names.filter((name) => stored[name] !== null).map((name) => [name, stored[name]]);
  assert.deepEqual({ ...follower.changes[2].old_value }, Object.fromEntries(were));
});

test('a subset spells values in the same way', LIMIT, async (t) => {
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
