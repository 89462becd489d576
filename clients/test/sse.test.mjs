// ShapeStream of @electric-sql/client, by server-sent events.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { becomes, follow, LIMIT, world } from '../support.mjs';

const { forebay, sql, table, transaction } = await world('sse');
const url = forebay.shapes;

/** Waits until an event stream is open; the first is the 1st. */
async function streaming(follower, times = 1) {
  const open = () =>
    streams(follower).filter(({ headers }) => headers?.['content-type']?.startsWith('text/event-stream'));
  await follower.until(`event stream ${times} is open`, () => open().length >= times);
}

function streams({ requests }) {
  return requests.filter(({ query }) => query.live_sse === 'true');
}

test('one event stream carries change after change', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'one')`);
  const follower = follow(t, { url, params: { table: things }, liveSse: true });
  await streaming(follower);
  assert.deepEqual(follower.rows, [['insert', { id: 1, title: 'one' }]]);

  await sql(`INSERT INTO ${things} VALUES (2, 'two')`);
  await follower.reads('the insert', [['insert', { id: 2, title: 'two' }]], 1);
  await sql(`UPDATE ${things} SET title = 'line' || chr(10) || 'end' WHERE id = 2`);
  await follower.reads('the update', [['update', { id: 2, title: 'line\nend' }]], 2);
  await sql(`DELETE FROM ${things} WHERE id = 1`);
  await follower.reads('the delete', [['delete', { id: 1 }]], 3);

  const live = follower.requests.filter(({ query }) => 'live' in query);
  assert.equal(live.length, 1, 'one stream was enough');
  assert.equal(live[0].query.live_sse, 'true');
});

test('the older name of the option means the same', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY');
  const follower = follow(t, { url, params: { table: things }, experimentalLiveSse: true });
  await streaming(follower);
  await sql(`INSERT INTO ${things} VALUES (1)`);
  await follower.reads('the row', [['insert', { id: 1 }]]);
});

test('a transaction arrives in one piece', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  const follower = follow(t, { url, params: { table: things }, liveSse: true });
  await streaming(follower);
  const begun = follower.batches.length;
  await transaction(async (run) => {
    for (let id = 1; id <= 100; id += 1) await run(`INSERT INTO ${things} VALUES ($1, 'x')`, [id]);
    await run(`UPDATE ${things} SET title = 'y' WHERE id > 50`);
  });
  await follower.until('all of it', () => follower.changes.length >= 150);
  const sizes = follower.batches.slice(begun).map((batch) => batch.filter(({ key }) => key).length);
  assert.deepEqual(sizes.filter(Boolean), [150]);
  assert.equal(follower.changes.at(-1).headers.last, true);
});

test('a stream that was left after a transaction resumes after all of it', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY');
  const params = { table: things };
  const first = follow(t, { url, params, liveSse: true });
  await streaming(first);
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
    await next.reads(`only what came later, liveSse: ${liveSse}`, [['insert', { id: 4 }]]);
    assert.deepEqual(
      next.requests.filter(({ status }) => status !== 200 && status !== undefined),
      [],
    );
  }
});

test('where clauses, columns and replica=full hold in an event stream, too', LIMIT, async (t) => {
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
  await streaming(follower);
  await sql(`UPDATE ${things} SET size = 6 WHERE id = 1`);
  await sql(`UPDATE ${things} SET hidden = 'i' WHERE id = 1`);
  await sql(`UPDATE ${things} SET title = 'c' WHERE id = 1`);
  await sql(`UPDATE ${things} SET size = 0 WHERE id = 2`);
  await follower.reads('what passes', [
    ['insert', { id: 2, title: 'b', size: 9 }],
    ['insert', { id: 1, title: 'a', size: 6 }],
    ['update', { id: 1, title: 'c', size: 6 }],
    ['delete', { id: 2, title: 'b', size: 9 }],
  ]);
  assert.deepEqual(follower.changes[2].old_value, { title: 'a' });
});

test('many streams of one shape get each change', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY');
  const crowd = Array.from({ length: 20 }, () => follow(t, { url, params: { table: things }, liveSse: true }));
  await Promise.all(crowd.map((follower) => streaming(follower)));
  const wanted = [];
  for (let id = 1; id <= 20; id += 1) {
    await sql(`INSERT INTO ${things} VALUES ($1)`, [id]);
    wanted.push(['insert', { id }]);
  }
  await Promise.all(crowd.map((follower) => follower.reads('all rows', wanted)));
  assert.equal(new Set(crowd.map(({ stream }) => stream.shapeHandle)).size, 1, 'they share the shape');
});

test('a subset can be asked for while an event stream is open', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a'), (2, 'b')`);
  const follower = follow(t, { url, params: { table: things }, log: 'changes_only', liveSse: true });
  await streaming(follower);
  await follower.stream.requestSnapshot({ where: 'id = $1', params: { 1: '2' } });
  assert.deepEqual(follower.rows, [['insert', { id: 2, title: 'b' }]]);
  await streaming(follower, 2);
  await sql(`UPDATE ${things} SET title = 'c' WHERE id = 2`);
  await becomes('the change after it', [['update', { id: 2, title: 'c' }]], () => follower.rows.slice(1));
});
