// ShapeStream of @electric-sql/client, with server-sent events.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { becomes, follow, LIMIT, startTestServer } from '../support.mjs';

const { forebay, sql, table, transaction } = await startTestServer('sse');
const url = forebay.shapes;

/** Waits until the client has opened `times` event streams. */
async function waitForStream(follower, times = 1) {
  const open = () =>
    streamRequests(follower).filter(({ headers }) => headers?.['content-type']?.startsWith('text/event-stream'));
  await follower.until(`event stream ${times} is open`, () => open().length >= times);
}

function streamRequests({ requests }) {
  return requests.filter(({ query }) => query.live_sse === 'true');
}

test('one event stream carries all changes', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'one')`);
  const follower = follow(t, { url, params: { table: things }, liveSse: true });
  await waitForStream(follower);
  assert.deepEqual(follower.rows, [['insert', { id: 1, title: 'one' }]]);

  await sql(`INSERT INTO ${things} VALUES (2, 'two')`);
  await follower.reads('the insert', [['insert', { id: 2, title: 'two' }]], 1);
  await sql(`UPDATE ${things} SET title = 'line' || chr(10) || 'end' WHERE id = 2`);
  await follower.reads('the update', [['update', { id: 2, title: 'line\nend' }]], 2);
  await sql(`DELETE FROM ${things} WHERE id = 1`);
  await follower.reads('the delete', [['delete', { id: 1 }]], 3);

  const live = follower.requests.filter(({ query }) => 'live' in query);
  assert.equal(live.length, 1, 'more than one live request');
  assert.equal(live[0].query.live_sse, 'true');
});

test('the old name of the option has the same effect', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY');
  const follower = follow(t, { url, params: { table: things }, experimentalLiveSse: true });
  await waitForStream(follower);
  await sql(`INSERT INTO ${things} VALUES (1)`);
  await follower.reads('the row', [['insert', { id: 1 }]]);
});

test('a transaction arrives in one batch', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  const follower = follow(t, { url, params: { table: things }, liveSse: true });
  await waitForStream(follower);
  const firstBatch = follower.batches.length;
  await transaction(async (run) => {
    for (let id = 1; id <= 100; id += 1) await run(`INSERT INTO ${things} VALUES ($1, 'x')`, [id]);
    await run(`UPDATE ${things} SET title = 'y' WHERE id > 50`);
  });
  await follower.until('all changes', () => follower.changes.length >= 150);
  const sizes = follower.batches.slice(firstBatch).map((batch) => batch.filter(({ key }) => key).length);
  assert.deepEqual(sizes.filter(Boolean), [150]);
  assert.equal(follower.changes.at(-1).headers.last, true);
});

test('a stream that was closed after a transaction resumes after the whole transaction', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY');
  const params = { table: things };
  const first = follow(t, { url, params, liveSse: true });
  await waitForStream(first);
  await sql(`INSERT INTO ${things} VALUES (1), (2), (3)`);
  await first.reads(
    'the transaction',
    [1, 2, 3].map((id) => ['insert', { id }]),
  );
  first.leave();
  const { lastOffset: offset, shapeHandle: handle } = first.stream;

  await sql(`INSERT INTO ${things} VALUES (4)`);
  for (const liveSse of [false, true]) {
    const next = follow(t, { url, params, offset, handle, liveSse });
    await next.upToDate();
    await next.reads(`only later changes, liveSse: ${liveSse}`, [['insert', { id: 4 }]]);
    assert.deepEqual(
      next.requests.filter(({ status }) => status !== 200 && status !== undefined),
      [],
    );
  }
});

test('where clauses, columns and replica=full apply to event streams', LIMIT, async (t) => {
  const things = await table(
    'id int PRIMARY KEY, title text, size int, hidden text',
    `(1, 'a', 1, 'h'), (2, 'b', 9, 'h')`,
  );
  const params = {
    table: things,
    where: 'size > $1',
    params: ['5'],
    columns: ['id', 'title', 'size'],
    replica: 'full',
  };
  const follower = follow(t, { url, params, liveSse: true });
  await waitForStream(follower);
  await sql(`UPDATE ${things} SET size = 6 WHERE id = 1`);
  await sql(`UPDATE ${things} SET hidden = 'i' WHERE id = 1`);
  await sql(`UPDATE ${things} SET title = 'c' WHERE id = 1`);
  await sql(`UPDATE ${things} SET size = 0 WHERE id = 2`);
  await follower.reads('the matching changes', [
    ['insert', { id: 2, title: 'b', size: 9 }],
    ['insert', { id: 1, title: 'a', size: 6 }],
    ['update', { id: 1, title: 'c', size: 6 }],
    ['delete', { id: 2, title: 'b', size: 9 }],
  ]);
  assert.deepEqual(follower.changes[2].old_value, { title: 'a' });
});

test('all streams of one shape get each change', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY');
  const followers = Array.from({ length: 20 }, () => follow(t, { url, params: { table: things }, liveSse: true }));
  await Promise.all(followers.map((follower) => waitForStream(follower)));
  const wanted = [];
  for (let id = 1; id <= 20; id += 1) {
    await sql(`INSERT INTO ${things} VALUES ($1)`, [id]);
    wanted.push(['insert', { id }]);
  }
  await Promise.all(followers.map((follower) => follower.reads('all rows', wanted)));
  assert.equal(new Set(followers.map(({ stream }) => stream.shapeHandle)).size, 1, 'the streams have different shapes');
});

test('a subset can be requested while an event stream is open', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a'), (2, 'b')`);
  const follower = follow(t, { url, params: { table: things }, log: 'changes_only', liveSse: true });
  await waitForStream(follower);
  await follower.stream.requestSnapshot({ where: 'id = $1', params: { 1: '2' } });
  assert.deepEqual(follower.rows, [['insert', { id: 2, title: 'b' }]]);
  await waitForStream(follower, 2);
  await sql(`UPDATE ${things} SET title = 'c' WHERE id = 2`);
  await becomes('the change after the subset', [['update', { id: 2, title: 'c' }]], () => follower.rows.slice(1));
});
