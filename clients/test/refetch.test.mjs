// When a shape can't continue, clients get a 409, refetch it, and end with the rows of the table.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Shape } from '@electric-sql/client';
import { SETTING } from '../support/forebay.mjs';
import { becomes, follow, LIMIT, within, startTestServer } from '../support.mjs';

const { forebay, sql, table } = await startTestServer('refetch', { env: { [SETTING.allowDeletion]: 'true' } });
const url = forebay.shapes;

const MODES = [
  { name: 'long-poll', options: {} },
  { name: 'an event stream', options: { liveSse: true } },
];

async function remove(query) {
  const answer = await fetch(`${url}?${new URLSearchParams(query)}`, { method: 'DELETE' });
  assert.equal(answer.status, 202);
  assert.equal(await answer.text(), '');
}

/** Fails unless the client got one 409 and refetched the shape under a new handle. */
function assertRefetched(follower, oldHandle) {
  const { requests, stream } = follower;
  const refused = requests.findIndex(({ status }) => status === 409);
  assert.ok(refused > 0, `no 409: ${requests.map(({ status }) => status)}`);
  const { query } = requests[refused + 1];
  assert.equal(query.offset, '-1');
  assert.equal(query.expired_handle, oldHandle);
  assert.equal(follower.controls.filter((control) => control === 'must-refetch').length, 1);
  assert.notEqual(stream.shapeHandle, oldHandle);
  assert.deepEqual(follower.errors, []);
}

for (const { name, options } of MODES) {
  test(`a shape that is deleted during ${name} is refetched`, LIMIT, async (t) => {
    const things = await table('id int PRIMARY KEY', '(1)');
    const follower = follow(t, { url, params: { table: things }, ...options });
    const shape = new Shape(follower.stream);
    await follower.live();
    const { shapeHandle } = follower.stream;
    await remove({ table: things });
    await follower.until('must-refetch', () => follower.controls.includes('must-refetch'));
    await follower.upToDate(2);
    await sql(`INSERT INTO ${things} VALUES (2)`);
    await becomes('both rows', [{ id: 1 }, { id: 2 }], () => shape.currentRows);
    assertRefetched(follower, shapeHandle);
  });

  test(`TRUNCATE during ${name} empties the shape, and later changes arrive`, LIMIT, async (t) => {
    const things = await table('id int PRIMARY KEY', '(1), (2)');
    const follower = follow(t, { url, params: { table: things, where: 'id > 0' }, ...options });
    const shape = new Shape(follower.stream);
    await follower.live();
    const { shapeHandle } = follower.stream;
    await sql(`TRUNCATE ${things}`);
    await becomes('no rows', [], () => shape.currentRows);
    await follower.upToDate(2);
    await sql(`INSERT INTO ${things} VALUES (3)`);
    await becomes('the row after the TRUNCATE', [{ id: 3 }], () => shape.currentRows);
    assertRefetched(follower, shapeHandle);
  });

  test(`a column that is added during ${name} arrives with its values`, LIMIT, async (t) => {
    const things = await table('id int PRIMARY KEY', '(1)');
    const follower = follow(t, { url, params: { table: things }, ...options });
    const shape = new Shape(follower.stream);
    await follower.live();
    const { shapeHandle } = follower.stream;
    await sql(`ALTER TABLE ${things} ADD COLUMN size int8 DEFAULT 7; INSERT INTO ${things} VALUES (2, 8)`);
    await becomes(
      'rows with the new column',
      [
        { id: 1, size: 7n },
        { id: 2, size: 8n },
      ],
      () => shape.currentRows,
    );
    assertRefetched(follower, shapeHandle);
  });
}

test('a column whose type changes is parsed by its new type', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, size int', '(1, 5)');
  const { stream } = follow(t, { url, params: { table: things } });
  const shape = new Shape(stream);
  assert.deepEqual(await within('the first rows', shape.rows), [{ id: 1, size: 5 }]);
  await sql(`ALTER TABLE ${things} ALTER COLUMN size TYPE text; INSERT INTO ${things} VALUES (2, 'six')`);
  await becomes(
    'text',
    [
      { id: 1, size: '5' },
      { id: 2, size: 'six' },
    ],
    () => shape.currentRows,
  );
});

test('after a table is dropped and recreated, clients refetch it', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY', '(1)');
  const first = follow(t, { url, params: { table: things } });
  await first.live();
  const { lastOffset: offset, shapeHandle: handle } = first.stream;
  first.leave();
  await sql(
    `DROP TABLE ${things}; CREATE TABLE ${things} (id int PRIMARY KEY, title text); INSERT INTO ${things} VALUES (9, 'new')`,
  );

  const next = follow(t, { url, params: { table: things }, offset, handle });
  await next.reads('the new rows', [['insert', { id: 9, title: 'new' }]]);
  // The server detects the new table at its next catalog check, so earlier requests may succeed.
  const refetch = next.requests.findIndex(({ status }) => status === 409);
  assert.equal(next.requests[refetch + 1].query.offset, '-1');
});

test('an unknown handle, or the handle of another shape, leads to a 409 and the right shape', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY', '(1), (2)');
  const other = follow(t, { url, params: { table: things, where: 'id = 1' } });
  await other.upToDate();
  for (const handle of ['12345-1700000000000000', other.stream.shapeHandle]) {
    const follower = follow(t, { url, params: { table: things }, offset: other.stream.lastOffset, handle });
    await follower.reads('all rows', [
      ['insert', { id: 1 }],
      ['insert', { id: 2 }],
    ]);
    assert.equal(follower.requests[0].status, 409);
    assert.notEqual(follower.stream.shapeHandle, handle);
  }
});

test('a shape is deleted by its handle, and other shapes stay', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY', '(1)');
  const deleted = follow(t, { url, params: { table: things } });
  const kept = follow(t, { url, params: { table: things, where: 'id > 0' } });
  await Promise.all([deleted.live(), kept.live()]);
  await remove({ handle: deleted.stream.shapeHandle });
  await deleted.until('must-refetch', () => deleted.controls.includes('must-refetch'));
  await sql(`INSERT INTO ${things} VALUES (2)`);
  await kept.reads('the change', [
    ['insert', { id: 1 }],
    ['insert', { id: 2 }],
  ]);
  assert.ok(!kept.controls.includes('must-refetch'));
});

test('a subset request with the handle of a deleted shape succeeds, and its row is followed', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a')`);
  let removed = false;
  const before = async ({ query }) => {
    if (removed || !('subset__where' in query)) return;
    removed = true;
    await remove({ table: things });
  };
  const follower = follow(t, { url, params: { table: things }, log: 'changes_only', before });
  await follower.live();
  await sql(`INSERT INTO ${things} VALUES (2, 'x')`);
  await follower.reads('a change', [['insert', { id: 2, title: 'x' }]]);
  // The client continues with the new handle and its old offset, which is beyond the log of the new shape.
  await within('the subset', follower.stream.requestSnapshot({ where: 'id = 1' }));
  await sql(`UPDATE ${things} SET title = 'b' WHERE id = 1`);
  await follower.reads(
    'the subset and the change',
    [
      ['insert', { id: 1, title: 'a' }],
      ['update', { id: 1, title: 'b' }],
    ],
    1,
  );
  assert.deepEqual(follower.errors, []);
});
