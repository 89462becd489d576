// Clients that are told to wait, wait, and come back.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { SETTING } from '../support/forebay.mjs';
import { follow, LIMIT, makeDatabase, PATIENCE_MS, startForebay, startProxy, world } from '../support.mjs';

const { forebay, sql, table } = await world('backoff');

/** The gaps between refusals, and to the first request that passed, in milliseconds. */
function gaps({ requests }) {
  const refused = requests.filter(({ status }) => status >= 429);
  const last = requests.indexOf(refused.at(-1));
  const times = [...refused, requests[last + 1]];
  return times.slice(1).map(({ begun }, place) => begun - times[place].answered);
}

for (const status of [503, 429]) {
  test(`a first request that gets ${status} is made again, no sooner than it says`, LIMIT, async (t) => {
    const things = await table('id int PRIMARY KEY', '(1)');
    const proxy = await startProxy(t, forebay.url);
    proxy.refuse(2, {
      status,
      headers: { 'retry-after': '1', 'content-type': 'application/json' },
      body: '{"error":"busy"}',
    });
    const follower = follow(t, { url: proxy.shapes, params: { table: things } });
    await follower.reads('the row', [['insert', { id: 1 }]]);
    assert.deepEqual(
      proxy.refused.map((refusal) => refusal.status),
      [status, status],
    );
    assert.ok(
      gaps(follower).every((gap) => gap >= 990),
      `it waited ${gaps(follower)} ms`,
    );
  });

  for (const liveSse of [false, true]) {
    test(`a live request that gets ${status} loses nothing, liveSse: ${liveSse}`, LIMIT, async (t) => {
      const things = await table('id int PRIMARY KEY');
      const proxy = await startProxy(t, forebay.url);
      let refused = false;
      const before = ({ query }) => {
        if (refused || !('live' in query)) return;
        refused = true;
        proxy.refuse(3, { status });
      };
      const follower = follow(t, { url: proxy.shapes, params: { table: things }, liveSse, before });
      await follower.until('three refusals', () => proxy.refused.length === 3);
      await sql(`INSERT INTO ${things} VALUES (1)`);
      await follower.reads('the row', [['insert', { id: 1 }]]);
      assert.deepEqual(follower.requests.filter(({ query }) => query.offset === '-1').length, 1, 'it started over');
    });
  }
}

test('a stream beyond the limit is refused with a time to wait, and comes in when another leaves', LIMIT, async (t) => {
  const { full, sql, table } = await smallWorld(t);
  const things = await table('id int PRIMARY KEY');
  await comeAndGo(t, full.shapes, things);
  const inside = follow(t, { url: full.shapes, params: { table: things }, liveSse: true });
  await inside.until('the first is in', () =>
    inside.requests.some(({ query, status }) => 'live' in query && status === 200),
  );

  const waits = follow(t, { url: full.shapes, params: { table: things }, liveSse: true });
  const refusal = await waits.until('a refusal', () => waits.requests.find(({ status }) => status === 503));
  assert.match(refusal.headers['retry-after'], /^\d+$/);
  assert.ok('live' in refusal.query, 'only streams are counted');
  await sql(`INSERT INTO ${things} VALUES (1)`);
  await inside.reads('the one inside goes on', [['insert', { id: 1 }]]);

  inside.leave();
  const patience = 1_000 * Number(refusal.headers['retry-after']) + PATIENCE_MS;
  await waits.reads('the other has come in, and got what it missed', [['insert', { id: 1 }]], 0, patience);
  await sql(`INSERT INTO ${things} VALUES (2)`);
  await waits.reads('and what comes now', [['insert', { id: 2 }]], 1);
  assert.deepEqual(waits.errors, []);
});

/** Streams that come and go, until the program has counted some: it tells how long to wait by how fast they do. */
async function comeAndGo(t, url, things) {
  const first = follow(t, { url, params: { table: things }, subscribe: false });
  await first.upToDate();
  const { lastOffset: offset, shapeHandle: handle } = first.stream;
  const query = new URLSearchParams({ table: things, offset, handle, log: 'full', live: 'true', live_sse: 'true' });
  for (const begun = performance.now(); performance.now() - begun < 3_000;) {
    const leaving = new AbortController();
    await fetch(`${url}?${query}`, { signal: leaving.signal });
    leaving.abort();
  }
}

/** A program that admits one stream, before a database of its own. */
async function smallWorld(t) {
  const database = await makeDatabase('full');
  let full;
  t.after(async () => {
    await full?.end();
    await database.end();
  });
  full = await startForebay({ database, env: { [SETTING.totalStreams]: '1' } });
  return { full, sql: database.sql, table: database.table };
}
