// How the client parses values into JavaScript, by the schema of the server.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createColumnMapper, snakeCamelMapper } from '@electric-sql/client';
import { follow, LIMIT, startTestServer } from '../support.mjs';

const { forebay, sql, table } = await startTestServer('values');
const url = forebay.shapes;

/** Inserts a row before and after the snapshot. Fails unless both parse to the same values, and returns them. */
async function fromSnapshotAndLog(t, things, row, options = {}) {
  await sql(`INSERT INTO ${things} VALUES (1, ${row})`);
  const follower = follow(t, { url, params: { table: things }, ...options });
  await follower.live();
  await sql(`INSERT INTO ${things} VALUES (2, ${row})`);
  await follower.until('the second row', () => follower.changes.length >= 2);
  const [{ id: first, ...stored }, { id: second, ...live }] = follower.changes.map(({ value }) => value);
  assert.deepEqual([first, second], [1, 2]);
  assert.deepEqual(live, stored, 'the log and the snapshot have different values');
  return stored;
}

test('numbers, booleans and JSON are parsed', LIMIT, async (t) => {
  const things =
    await table(`id int PRIMARY KEY, small int2, whole int4, big int8, single float4, double float8, exact numeric,
    truth bool, lie bool, plain json, packed jsonb, nothing int8`);
  const row = `-3, 2147483647, 9007199254740993, 1.5, 'NaN', 12345678901234567890.5, true, false, '{"a": [1, null]}', '[{"b": "c"}]', NULL`;
  assert.deepEqual(await fromSnapshotAndLog(t, things, row), {
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

test('arrays of any depth are parsed, with nulls', LIMIT, async (t) => {
  const things = await table(
    'id int PRIMARY KEY, numbers int8[], grid int[][], words text[], truths bool[], none int[], documents jsonb[]',
  );
  const row = `'{1,NULL,3}', '{{1,2},{3,4}}', ARRAY['a,b', 'c"d', 'e\\f', '{g}', '', 'NULL', NULL], '{t,f}', '{}', ARRAY['{"a": 1}'::jsonb]`;
  assert.deepEqual(await fromSnapshotAndLog(t, things, row), {
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

test('a custom parser gets the text and the metadata of the column', LIMIT, async (t) => {
  const things =
    await table(`id int PRIMARY KEY, seen timestamptz(3), price numeric(10,2) NOT NULL, name varchar(20), code char(4), many int8[],
    kept bit(3), lasts interval day to second`);
  const columnInfo = {};
  const note = (type) => (text, column) => {
    columnInfo[type] = column;
    return `${type}:${text}`;
  };
  const parser = {
    timestamptz: (text) => new Date(text),
    int8: (text) => Number(text) + 0.5,
    ...Object.fromEntries(['numeric', 'varchar', 'bpchar', 'bit', 'interval'].map((type) => [type, note(type)])),
  };
  const row = `'2024-02-29 12:00:00.123+02', 9.5, 'n', 'c', '{1,2}', '101', '3 days 04:05:06'`;
  assert.deepEqual(await fromSnapshotAndLog(t, things, row, { parser }), {
    seen: new Date('2024-02-29T10:00:00.123Z'),
    price: 'numeric:9.50',
    name: 'varchar:n',
    code: 'bpchar:c   ',
    many: [1.5, 2.5],
    kept: 'bit:101',
    lasts: 'interval:P3DT4H5M6S',
  });
  const infoByType = Object.fromEntries(Object.values(columnInfo).map(({ type, ...rest }) => [type, rest]));
  assert.deepEqual(infoByType, {
    numeric: { precision: 10, scale: 2, not_null: true },
    varchar: { max_length: 20 },
    bpchar: { length: 4 },
    bit: { length: 3 },
    interval: { fields: 'DAY TO SECOND' },
  });
});

test('a transformer is applied to whole rows, partial rows and old values', LIMIT, async (t) => {
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

test('a column mapper applies to rows, columns and the where clause', LIMIT, async (t) => {
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

test('a column mapper is applied before the transformer', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, real_name text', `(1, 'ann')`);
  const columnMapper = createColumnMapper({ real_name: 'name' });
  const transformer = (row) => ({ ...row, name: `<${row.name}>` });
  const follower = follow(t, { url, params: { table: things }, columnMapper, transformer });
  await follower.reads('the row', [['insert', { id: 1, name: '<ann>' }]]);
});

test('columns can have the names of protocol fields', LIMIT, async (t) => {
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

test('a large value that an update does not change is kept', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, size int, large text');
  // Stored out of line: the WAL of Postgres doesn't repeat it.
  await sql(`INSERT INTO ${things} SELECT 1, 1, string_agg(md5(n::text), '') FROM generate_series(1, 4000) n`);
  const [{ large }] = await sql(`SELECT large FROM ${things}`);
  const lean = follow(t, { url, params: { table: things } });
  const full = follow(t, { url, params: { table: things, replica: 'full' } });
  await Promise.all([lean.live(), full.live()]);
  await sql(`UPDATE ${things} SET size = 2`);
  await lean.reads('the changed columns', [['update', { id: 1, size: 2 }]], 1);
  await full.reads('the whole row', [['update', { id: 1, size: 2, large }]], 1);
});
