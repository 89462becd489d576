// Restarts of the program, by SIGTERM and by SIGKILL: clients continue from their offset and fetch nothing twice.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { follow, LIMIT, startTestServer } from '../support.mjs';

const { forebay, sql, table } = await startTestServer('restart');
const url = forebay.shapes;

const ENDS = [
  { name: 'a stop', end: () => forebay.stop() },
  { name: 'a kill', end: () => forebay.kill() },
];

/** Fails if the client had to refetch. */
function assertContinued(follower, message = 'the client had to refetch') {
  assert.ok(
    follower.requests.every(({ status }) => status !== 409),
    message,
  );
  assert.ok(!follower.controls.includes('must-refetch'), message);
  assert.deepEqual(follower.errors, []);
}

for (const { name, end } of ENDS) {
  test(`a client that disconnected before ${name} resumes by offset and handle`, LIMIT, async (t) => {
    const things = await table('id int PRIMARY KEY', '(1)');
    const params = { table: things };
    const first = follow(t, { url, params });
    await first.live();
    await sql(`INSERT INTO ${things} VALUES (2)`);
    await first.reads('both rows', [
      ['insert', { id: 1 }],
      ['insert', { id: 2 }],
    ]);
    first.leave();
    const { lastOffset: offset, shapeHandle: handle } = first.stream;

    await end();
    await sql(`INSERT INTO ${things} VALUES (3); DELETE FROM ${things} WHERE id = 1`);
    await forebay.start();

    const next = follow(t, { url, params, offset, handle });
    await next.reads('the missed changes', [
      ['insert', { id: 3 }],
      ['delete', { id: 1 }],
    ]);
    await next.live();
    await sql(`INSERT INTO ${things} VALUES (4)`);
    await next.reads('the next change', [['insert', { id: 4 }]], 2);
    assertContinued(next);
    assert.ok(
      next.requests.every(({ query }) => query.offset !== '-1'),
      'the client fetched the snapshot again',
    );
    assert.equal(next.stream.shapeHandle, handle);
  });

  for (const liveSse of [false, true]) {
    test(`a stream that is open at ${name} continues automatically, liveSse: ${liveSse}`, LIMIT, async (t) => {
      const things = await table('id int PRIMARY KEY, title text', `(1, 'a')`);
      const follower = follow(t, { url, params: { table: things }, liveSse });
      await follower.live();
      await sql(`INSERT INTO ${things} VALUES (2, 'b'), (3, 'c')`);
      await follower.until('the rows before the end', () => follower.changes.length === 3);
      const { shapeHandle } = follower.stream;

      await end();
      await sql(`UPDATE ${things} SET title = 'd' WHERE id = 2`);
      await forebay.start();
      await follower.reads('the change during the outage, once', [['update', { id: 2, title: 'd' }]], 3);
      await sql(`DELETE FROM ${things} WHERE id = 3`);
      await follower.reads(
        'the change after the restart',
        [
          ['update', { id: 2, title: 'd' }],
          ['delete', { id: 3 }],
        ],
        3,
      );
      assertContinued(follower);
      assert.equal(follower.stream.shapeHandle, shapeHandle);
      assert.equal(follower.requests.filter(({ query }) => query.offset === '-1').length, 1);
    });
  }
}

test('a shape without clients at a kill is up to date after the restart', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY', '(1)');
  const first = follow(t, { url, params: { table: things } });
  await first.live();
  first.leave();
  await sql(`INSERT INTO ${things} VALUES (2)`);
  await forebay.kill();
  await forebay.start();
  const next = follow(t, { url, params: { table: things } });
  await next.reads('both rows', [
    ['insert', { id: 1 }],
    ['insert', { id: 2 }],
  ]);
  assert.equal(next.stream.shapeHandle, first.stream.shapeHandle, 'the shape is the same');
});
