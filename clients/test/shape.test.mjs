// ShapeStream and Shape of @electric-sql/client, by long-poll.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FetchError, Shape } from '@electric-sql/client';
import { becomes, eventually, follow, LIMIT, within, world } from '../support.mjs';

const { forebay, sql, table, transaction } = await world('shape');
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
  await follower.until('the stream has let go', () => !follower.stream.isConnected());
  assert.ok(
    follower.requests.every(({ query }) => !('live' in query)),
    'it asked for what is live',
  );
});

test('a change carries its key, its place, its transaction, and whether it is the last of it', LIMIT, async (t) => {
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
  assert.equal(new Set(changes.map(({ headers }) => headers.lsn)).size, 1, 'one commit has one place');
  const places = changes.map(({ headers }) => headers.op_position);
  assert.ok(places[0] < places[1] && places[1] < places[2], `they are in order: ${places}`);
  assert.equal(follower.stream.lastOffset, `${changes[2].headers.lsn}_${places[2]}`);
});

test('a live request follows the one before: its offset, its handle and its cursor', LIMIT, async (t) => {
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
  for (const [place, { query }] of requests.entries()) {
    if (place === 0) continue;
    const { headers } = requests[place - 1];
    assert.equal(query.handle, headers['electric-handle']);
    assert.equal(query.offset, headers['electric-offset']);
    if ('electric-cursor' in headers) assert.equal(query.cursor, headers['electric-cursor']);
  }
  const cursors = requests.map(({ headers }) => headers?.['electric-cursor']).filter(Boolean);
  assert.ok(cursors.length >= 3 && cursors.every((cursor) => /^\d+$/.test(cursor)), `cursors: ${cursors}`);
});

test('a where clause with parameters decides which rows there are, and which come and go', LIMIT, async (t) => {
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
    'what the clause lets through',
    [
      ['insert', { id: 3, owner: 'ann', size: 9 }],
      ['delete', { id: 1 }],
      ['insert', { id: 4, owner: 'ann', size: 4 }],
    ],
    1,
  );
});

test('parameters of a where clause may also be given by their numbers', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a & b = c'), (2, '100%'), (3, 'ü+')`);
  const params = { table: things, where: 'title IN ($1, $2)', params: { 1: 'a & b = c', 2: 'ü+' } };
  const follower = follow(t, { url, params });
  await follower.upToDate();
  assert.deepEqual(
    follower.rows.map(([, { id }]) => id),
    [1, 3],
  );
});

test('columns are those that were asked for, and a change of another is no change', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, "Mixed, Case" text, other text', `(1, 'm', 'o')`);
  const follower = follow(t, { url, params: { table: things, columns: ['id', 'Mixed, Case'] } });
  await follower.live();
  assert.deepEqual(follower.rows, [['insert', { id: 1, 'Mixed, Case': 'm' }]]);
  await sql(`UPDATE ${things} SET other = 'p'`);
  await sql(`UPDATE ${things} SET "Mixed, Case" = 'n'`);
  await follower.reads('the one update that concerns it', [['update', { id: 1, 'Mixed, Case': 'n' }]], 1);
});

test('an update carries what changed, and with replica=full the whole row and what it was', LIMIT, async (t) => {
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

test('a row whose primary key changes leaves under the old key and comes under the new', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a')`);
  const follower = follow(t, { url, params: { table: things } });
  await follower.live();
  await sql(`UPDATE ${things} SET id = 2`);
  await follower.reads(
    'both halves',
    [
      ['delete', { id: 1 }],
      ['insert', { id: 2, title: 'a' }],
    ],
    1,
  );
  const [, left, came] = follower.changes;
  assert.deepEqual([left.headers.key_change_to, came.headers.key_change_from], [came.key, left.key]);
});

test('a snapshot of several chunks arrives whole, each chunk asked for once', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, filler text');
  await sql(`INSERT INTO ${things} SELECT n, repeat(chr(96 + n), 1000000) FROM generate_series(1, 26) n`);
  const follower = follow(t, { url, params: { table: things } });
  await follower.upToDate();
  const found = follower.rows.map(([, { id, filler }]) => [id, filler.length, filler[0]]);
  found.sort(([one], [other]) => one - other);
  const wanted = Array.from({ length: 26 }, (_, n) => [n + 1, 1_000_000, String.fromCharCode(97 + n)]);
  assert.deepEqual(found, wanted);
  const offsets = follower.requests.filter(({ query }) => !('live' in query)).map(({ query }) => query.offset);
  assert.ok(offsets.length >= 3, `26 MB came in ${offsets.length} answers`);
  assert.equal(new Set(offsets).size, offsets.length, `some chunk was asked for twice: ${offsets}`);
});

test('tables of other schemas, and names that need quotes, can be followed', LIMIT, async (t) => {
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

test('partitions are one table, and a row that moves between them is followed', LIMIT, async (t) => {
  const things = await table('id int, place text, PRIMARY KEY (id, place)) PARTITION BY LIST (place');
  for (const place of ['a', 'b']) {
    await sql(`CREATE TABLE ${things}_${place} PARTITION OF ${things} FOR VALUES IN ('${place}')`);
  }
  await sql(`INSERT INTO ${things} VALUES (1, 'a')`);
  const { stream } = follow(t, { url, params: { table: things } });
  const shape = new Shape(stream);
  await within('the first rows', shape.rows);
  await sql(`UPDATE ${things} SET place = 'b'`);
  await becomes('the row in its new place', [{ id: 1, place: 'b' }], () => shape.currentRows);
});

test('a request that is wrong ends the stream, and says why', LIMIT, async (t) => {
  const follower = follow(t, { url, params: { table: 'no_such_table' } });
  const [error] = await eventually(
    'an error of the stream',
    () => follower.errors,
    ({ length }) => length > 0,
  );
  assert.ok(error instanceof FetchError);
  assert.equal(error.status, 400);
  assert.match(JSON.stringify(error.json), /no_such_table/);
  assert.equal(follower.requests.length, 1, 'it is not tried again');
});

test('onError can mend a request, and the stream goes on', LIMIT, async (t) => {
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

test('a refresh is answered at once, though the live request had long to wait', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY', '(1)');
  const follower = follow(t, { url, params: { table: things } });
  await follower.live();
  const begun = performance.now();
  await within('the refresh', follower.stream.forceDisconnectAndRefresh());
  assert.ok(performance.now() - begun < 10_000, 'it waited for the long-poll to end');
  await sql(`INSERT INTO ${things} VALUES (2)`);
  await follower.reads('what comes after', [['insert', { id: 2 }]], 1);
});
