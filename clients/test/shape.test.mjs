// ShapeStream and Shape of @electric-sql/client, with long polling.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FetchError, Shape } from '@electric-sql/client';
import { becomes, eventually, follow, LIMIT, within, startTestServer } from '../support.mjs';

const { forebay, sql, table, transaction } = await startTestServer('shape');
const url = forebay.shapes;

test('a shape has the rows of its table, and follows inserts, updates and deletes', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'one'), (2, 'two')`);
  const { stream } = follow(t, { url, params: { table: things } });
  const shape = new Shape(stream);
  const rows = () => [...shape.currentRows].sort((one, other) => one.id - other.id);
  await within('the first rows', shape.rows);
  assert.deepEqual(rows(), [
    { id: 1, title: 'one' },
    { id: 2, title: 'two' },
  ]);
  assert.equal(shape.isLoading(), false);

  await sql(`INSERT INTO ${things} VALUES (3, 'three')`);
  await becomes(
    'the insert',
    [
      { id: 1, title: 'one' },
      { id: 2, title: 'two' },
      { id: 3, title: 'three' },
    ],
    rows,
  );
  await sql(`UPDATE ${things} SET title = NULL WHERE id = 2`);
  await becomes(
    'the update',
    [
      { id: 1, title: 'one' },
      { id: 2, title: null },
      { id: 3, title: 'three' },
    ],
    rows,
  );
  await sql(`DELETE FROM ${things} WHERE id < 3`);
  await becomes('the delete', [{ id: 3, title: 'three' }], rows);
  assert.equal(shape.error, false);
});

test('an empty table is an empty shape, and its first row arrives', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY');
  const follower = follow(t, { url, params: { table: things } });
  await follower.upToDate();
  assert.deepEqual(follower.rows, []);
  await sql(`INSERT INTO ${things} VALUES (7)`);
  await follower.reads('the first row', [['insert', { id: 7 }]]);
});

test('without a subscription a stream ends when it is up to date', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY', '(1), (2)');
  const follower = follow(t, { url, params: { table: things }, subscribe: false });
  await follower.upToDate();
  assert.deepEqual(follower.rows, [
    ['insert', { id: 1 }],
    ['insert', { id: 2 }],
  ]);
  await follower.until('the stream is disconnected', () => !follower.stream.isConnected());
  assert.ok(
    follower.requests.every(({ query }) => !('live' in query)),
    'the client sent a live request',
  );
});

test('a change carries its key, position and transaction, and the last one is marked', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  const follower = follow(t, { url, params: { table: things } });
  await follower.live();
  const xid = await transaction(async (run) => {
    await run(`INSERT INTO ${things} VALUES (1, 'a'), (2, 'b')`);
    await run(`UPDATE ${things} SET title = 'c' WHERE id = 1`);
    const [{ xid }] = await run('SELECT pg_current_xact_id()::xid::text AS xid');
    return Number(xid);
  });
  await follower.until('three changes', () => follower.changes.length >= 3);

  const { changes } = follower;
  assert.deepEqual(
    changes.map(({ key }) => key),
    ['1', '2', '1'].map((id) => `"public"."${things}"/"${id}"`),
  );
  assert.deepEqual(
    changes.map(({ headers }) => headers.relation),
    Array(3).fill(['public', things]),
  );
  assert.deepEqual(
    changes.map(({ headers }) => headers.txids),
    Array(3).fill([xid]),
  );
  assert.deepEqual(
    changes.map(({ headers }) => headers.last ?? false),
    [false, false, true],
  );
  assert.equal(new Set(changes.map(({ headers }) => headers.lsn)).size, 1, 'all changes of a commit have one LSN');
  const positions = changes.map(({ headers }) => headers.op_position);
  assert.ok(positions[0] < positions[1] && positions[1] < positions[2], `positions are not in order: ${positions}`);
  assert.equal(follower.stream.lastOffset, `${changes[2].headers.lsn}_${positions[2]}`);
});

test('a live request continues with the offset, handle and cursor of the previous response', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY');
  const follower = follow(t, { url, params: { table: things } });
  await follower.live();
  for (const id of [1, 2, 3]) {
    await sql(`INSERT INTO ${things} VALUES ($1)`, [id]);
    await follower.until(`row ${id}`, () => follower.changes.length === id);
  }
  await follower.until('a fourth live request', () => follower.requests.filter(({ query }) => query.live).length >= 4);
  const { requests } = follower;
  assert.deepEqual([requests[0].query.offset, requests[0].headers['electric-offset']], ['-1', '0_0']);
  for (const [index, { query }] of requests.entries()) {
    if (index === 0) continue;
    const { headers } = requests[index - 1];
    assert.equal(query.handle, headers['electric-handle']);
    assert.equal(query.offset, headers['electric-offset']);
    if ('electric-cursor' in headers) assert.equal(query.cursor, headers['electric-cursor']);
  }
  const cursors = requests.map(({ headers }) => headers?.['electric-cursor']).filter(Boolean);
  assert.ok(cursors.length >= 3 && cursors.every((cursor) => /^\d+$/.test(cursor)), `cursors: ${cursors}`);
});

test('a where clause with parameters selects rows, also those that enter and leave later', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, owner text, size int', `(1, 'ann', 5), (2, 'bob', 5), (3, 'ann', 1)`);
  const params = { table: things, where: 'owner = $1 AND size > $2', params: ['ann', '3'] };
  const follower = follow(t, { url, params });
  await follower.live();
  assert.deepEqual(follower.rows, [['insert', { id: 1, owner: 'ann', size: 5 }]]);

  await sql(`UPDATE ${things} SET size = 9 WHERE id = 3`);
  await sql(`UPDATE ${things} SET size = 8 WHERE id = 2`);
  await sql(`UPDATE ${things} SET owner = 'bob' WHERE id = 1`);
  await sql(`INSERT INTO ${things} VALUES (4, 'ann', 4)`);
  await follower.reads(
    'the changes that match the clause',
    [
      ['insert', { id: 3, owner: 'ann', size: 9 }],
      ['delete', { id: 1 }],
      ['insert', { id: 4, owner: 'ann', size: 4 }],
    ],
    1,
  );
});

test('parameters of a where clause can be an object keyed by number', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a & b = c'), (2, '100%'), (3, 'ü+')`);
  const params = { table: things, where: 'title IN ($1, $2)', params: { 1: 'a & b = c', 2: 'ü+' } };
  const follower = follow(t, { url, params });
  await follower.upToDate();
  assert.deepEqual(
    follower.rows.map(([, { id }]) => id),
    [1, 3],
  );
});

test('only the selected columns are sent, and changes of other columns are not', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, "Mixed, Case" text, other text', `(1, 'm', 'o')`);
  const follower = follow(t, { url, params: { table: things, columns: ['id', 'Mixed, Case'] } });
  await follower.live();
  assert.deepEqual(follower.rows, [['insert', { id: 1, 'Mixed, Case': 'm' }]]);
  await sql(`UPDATE ${things} SET other = 'p'`);
  await sql(`UPDATE ${things} SET "Mixed, Case" = 'n'`);
  await follower.reads('the update of a selected column', [['update', { id: 1, 'Mixed, Case': 'n' }]], 1);
});

test('an update carries changed columns, with replica=full also whole rows and old values', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text, size int', `(1, 'a', 1), (2, 'b', 2)`);
  const lean = follow(t, { url, params: { table: things } });
  const full = follow(t, { url, params: { table: things, replica: 'full' } });
  await Promise.all([lean.live(), full.live()]);
  await sql(`UPDATE ${things} SET size = 10 WHERE id = 1`);
  await sql(`DELETE FROM ${things} WHERE id = 2`);

  await lean.reads(
    'the changed columns',
    [
      ['update', { id: 1, size: 10 }],
      ['delete', { id: 2 }],
    ],
    2,
  );
  await full.reads(
    'the whole rows',
    [
      ['update', { id: 1, title: 'a', size: 10 }],
      ['delete', { id: 2, title: 'b', size: 2 }],
    ],
    2,
  );
  assert.deepEqual(full.changes[2].old_value, { size: 1 });
  assert.equal(lean.changes[2].old_value, undefined);
});

test('a change of the primary key is a delete of the old key and an insert of the new', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a')`);
  const follower = follow(t, { url, params: { table: things } });
  await follower.live();
  await sql(`UPDATE ${things} SET id = 2`);
  await follower.reads(
    'the delete and the insert',
    [
      ['delete', { id: 1 }],
      ['insert', { id: 2, title: 'a' }],
    ],
    1,
  );
  const [, deleted, inserted] = follower.changes;
  assert.deepEqual([deleted.headers.key_change_to, inserted.headers.key_change_from], [inserted.key, deleted.key]);
});

test('a snapshot of several chunks is complete, and each chunk is requested once', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, filler text');
  await sql(`INSERT INTO ${things} SELECT n, repeat(chr(96 + n), 1000000) FROM generate_series(1, 26) n`);
  const follower = follow(t, { url, params: { table: things } });
  await follower.upToDate();
  const found = follower.rows.map(([, { id, filler }]) => [id, filler.length, filler[0]]);
  found.sort(([one], [other]) => one - other);
  const wanted = Array.from({ length: 26 }, (_, n) => [n + 1, 1_000_000, String.fromCharCode(97 + n)]);
  assert.deepEqual(found, wanted);
  const offsets = follower.requests.filter(({ query }) => !('live' in query)).map(({ query }) => query.offset);
  assert.ok(offsets.length >= 3, `26 MB in ${offsets.length} responses`);
  assert.equal(new Set(offsets).size, offsets.length, `a chunk was requested twice: ${offsets}`);
});

test('tables of other schemas and with quoted names can be followed', LIMIT, async (t) => {
  const odd = '"Odd.One"."a/b ""c"';
  await sql(`CREATE SCHEMA "Odd.One"; CREATE TABLE ${odd} (id text PRIMARY KEY); INSERT INTO ${odd} VALUES ('x/y')`);
  const follower = follow(t, { url, params: { table: odd } });
  await follower.live();
  await sql(`INSERT INTO ${odd} VALUES ('z')`);
  await follower.reads('both rows', [
    ['insert', { id: 'x/y' }],
    ['insert', { id: 'z' }],
  ]);
});

test('a partitioned table is one shape, and a row that moves between partitions is followed', LIMIT, async (t) => {
  const things = await table('id int, place text, PRIMARY KEY (id, place)) PARTITION BY LIST (place');
  for (const place of ['a', 'b']) {
    await sql(`CREATE TABLE ${things}_${place} PARTITION OF ${things} FOR VALUES IN ('${place}')`);
  }
  await sql(`INSERT INTO ${things} VALUES (1, 'a')`);
  const { stream } = follow(t, { url, params: { table: things } });
  const shape = new Shape(stream);
  await within('the first rows', shape.rows);
  await sql(`UPDATE ${things} SET place = 'b'`);
  await becomes('the row in its new partition', [{ id: 1, place: 'b' }], () => shape.currentRows);
});

test('an invalid request ends the stream with the reason', LIMIT, async (t) => {
  const follower = follow(t, { url, params: { table: 'no_such_table' } });
  const [error] = await eventually(
    'an error of the stream',
    () => follower.errors,
    ({ length }) => length > 0,
  );
  assert.ok(error instanceof FetchError);
  assert.equal(error.status, 400);
  assert.match(JSON.stringify(error.json), /no_such_table/);
  assert.equal(follower.requests.length, 1, 'the client retried');
});

test('onError can correct a request, and the stream continues', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY', '(1), (2)');
  const statuses = [];
  const onError = (error) => {
    statuses.push(error.status);
    return { params: { where: 'id = 2' } };
  };
  const follower = follow(t, { url, params: { table: things, where: 'id = = 2' }, onError });
  await follower.upToDate();
  assert.deepEqual(statuses, [400]);
  assert.deepEqual(follower.rows, [['insert', { id: 2 }]]);
});

test('a refresh gets a response at once, without waiting for the live request', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY', '(1)');
  const follower = follow(t, { url, params: { table: things } });
  await follower.live();
  const startedAt = performance.now();
  await within('the refresh', follower.stream.forceDisconnectAndRefresh());
  assert.ok(performance.now() - startedAt < 10_000, 'the refresh waited for the end of the long poll');
  await sql(`INSERT INTO ${things} VALUES (2)`);
  await follower.reads('the next change', [['insert', { id: 2 }]], 1);
});
