// How the client turns values into JavaScript's, by the schema that the server tells.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createColumnMapper, snakeCamelMapper } from '@electric-sql/client';
import { follow, LIMIT, world } from '../support.mjs';

const { forebay, sql, table } = await world('values');
const url = forebay.shapes;

/** A row of the snapshot and the same one of the log, under another key: they must read the same. */
async function bothWays(t, things, row, options = {}) {
  await sql(`INSERT INTO ${things} VALUES (1, ${row})`);
  const follower = follow(t, { url, params: { table: things }, ...options });
  await follower.live();
  await sql(`INSERT INTO ${things} VALUES (2, ${row})`);
  await follower.until('the second row', () => follower.changes.length >= 2);
  const [{ id: first, ...stored }, { id: second, ...live }] = follower.changes.map(({ value }) => value);
  assert.deepEqual([first, second], [1, 2]);
  assert.deepEqual(live, stored, 'the log spells it as the snapshot does');
  return stored;
}

test('numbers, truth values and documents are values of JavaScript', LIMIT, async (t) => {
  const things =
    await table(`id int PRIMARY KEY, small int2, whole int4, big int8, single float4, double float8, exact numeric,
    truth bool, lie bool, plain json, packed jsonb, nothing int8`);
  const row = `-3, 2147483647, 9007199254740993, 1.5, 'NaN', 12345678901234567890.5, true, false, '{"a": [1, null]}', '[{"b": "c"}]', NULL`;
  assert.deepEqual(await bothWays(t, things, row), {
    small: -3,
    whole: 2147483647,
    big: 9007199254740993n,
    single: 1.5,
    double: NaN,
    exact: '12345678901234567890.5',
    truth: true,
    lie: false,
    plain: { a: [1, null] },
    packed: [{ b: 'c' }],
    nothing: null,
  });
});

test('arrays are arrays, of any depth, with their nulls', LIMIT, async (t) => {
  const things = await table(
    'id int PRIMARY KEY, numbers int8[], grid int[][], words text[], truths bool[], none int[], documents jsonb[]',
  );
  const row = `'{1,NULL,3}', '{{1,2},{3,4}}', ARRAY['a,b', 'c"d', 'e\\f', '{g}', '', 'NULL', NULL], '{t,f}', '{}', ARRAY['{"a": 1}'::jsonb]`;
  assert.deepEqual(await bothWays(t, things, row), {
    numbers: [1n, null, 3n],
    grid: [
      [1, 2],
      [3, 4],
    ],
    words: ['a,b', 'c"d', 'e\\f', '{g}', '', 'NULL', null],
    truths: [true, false],
    none: [],
    documents: [{ a: 1 }],
  });
});

test('a parser of one’s own gets the text, and what is known of the column', LIMIT, async (t) => {
  const things =
    await table(`id int PRIMARY KEY, seen timestamptz(3), price numeric(10,2) NOT NULL, name varchar(20), code char(4), many int8[],
    kept bit(3), lasts interval day to second`);
  const known = {};
  const note = (type) => (text, column) => {
    known[type] = column;
    return `${type}:${text}`;
  };
  const parser = {
    timestamptz: (text) => new Date(text),
    int8: (text) => Number(text) + 0.5,
    ...Object.fromEntries(['numeric', 'varchar', 'bpchar', 'bit', 'interval'].map((type) => [type, note(type)])),
  };
  const row = `'2024-02-29 12:00:00.123+02', 9.5, 'n', 'c', '{1,2}', '101', '3 days 04:05:06'`;
  assert.deepEqual(await bothWays(t, things, row, { parser }), {
    seen: new Date('2024-02-29T10:00:00.123Z'),
    price: 'numeric:9.50',
    name: 'varchar:n',
    code: 'bpchar:c   ',
    many: [1.5, 2.5],
    kept: 'bit:101',
    lasts: 'interval:P3DT4H5M6S',
  });
  const facts = Object.fromEntries(Object.entries(known).map(([type, { type: named, ...rest }]) => [named, rest]));
  assert.deepEqual(facts, {
    numeric: { precision: 10, scale: 2, not_null: true },
    varchar: { max_length: 20 },
    bpchar: { length: 4 },
    bit: { length: 3 },
    interval: { fields: 'DAY TO SECOND' },
  });
});

test('a transformer sees each row, whole or in part, also what it was', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text, size int', `(1, 'a', 1)`);
  const transformer = (row) => ('title' in row ? { ...row, title: row.title.toUpperCase() } : row);
  const follower = follow(t, { url, params: { table: things, replica: 'full' }, transformer });
  await follower.live();
  await sql(`UPDATE ${things} SET title = 'b'`);
  await follower.reads('both', [
    ['insert', { id: 1, title: 'A', size: 1 }],
    ['update', { id: 1, title: 'B', size: 1 }],
  ]);
  assert.deepEqual(follower.changes[1].old_value, { title: 'A' });
});

test('a mapper of names works both ways: rows, columns and the where clause', LIMIT, async (t) => {
  const things = await table(
    'thing_id int PRIMARY KEY, owner_name text, unit_size int',
    `(1, 'ann', 5), (2, 'bob', 5)`,
  );
  const params = { table: things, where: 'ownerName = $1', params: ['ann'], columns: ['thingId', 'ownerName'] };
  const follower = follow(t, { url, params, columnMapper: snakeCamelMapper() });
  await follower.live();
  await sql(`UPDATE ${things} SET owner_name = 'ann' WHERE thing_id = 2`);
  await follower.reads('both', [
    ['insert', { thingId: 1, ownerName: 'ann' }],
    ['insert', { thingId: 2, ownerName: 'ann' }],
  ]);
});

test('a mapper and a transformer work one after the other', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, real_name text', `(1, 'ann')`);
  const columnMapper = createColumnMapper({ real_name: 'name' });
  const transformer = (row) => ({ ...row, name: `<${row.name}>` });
  const follower = follow(t, { url, params: { table: things }, columnMapper, transformer });
  await follower.reads('the row', [['insert', { id: 1, name: '<ann>' }]]);
});

test('columns may be called what the protocol calls its own fields', LIMIT, async (t) => {
  const things = await table('key int PRIMARY KEY, value text, headers text, old_value text', `(1, 'v', 'h', 'o')`);
  const follower = follow(t, { url, params: { table: things, replica: 'full' } });
  await follower.live();
  await sql(`UPDATE ${things} SET value = NULL`);
  await follower.reads('both', [
    ['insert', { key: 1, value: 'v', headers: 'h', old_value: 'o' }],
    ['update', { key: 1, value: null, headers: 'h', old_value: 'o' }],
  ]);
  assert.deepEqual(follower.changes[1].old_value, { value: 'v' });
});

test('a large value that an update leaves alone stays what it was', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, size int, large text');
  // Stored out of line: the log of Postgres doesn't repeat it.
  await sql(`INSERT INTO ${things} SELECT 1, 1, string_agg(md5(n::text), '') FROM generate_series(1, 4000) n`);
  const [{ large }] = await sql(`SELECT large FROM ${things}`);
  const lean = follow(t, { url, params: { table: things } });
  const full = follow(t, { url, params: { table: things, replica: 'full' } });
  await Promise.all([lean.live(), full.live()]);
  await sql(`UPDATE ${things} SET size = 2`);
  await lean.reads('what changed', [['update', { id: 1, size: 2 }]], 1);
  await full.reads('the whole row', [['update', { id: 1, size: 2, large }]], 1);
});
