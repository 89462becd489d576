// Refused clients wait for the time of `retry-after` and retry.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { SETTING } from '../support/forebay.mjs';
import { follow, LIMIT, makeDatabase, MAX_WAIT_MS, startForebay, startProxy, startTestServer } from '../support.mjs';

const { forebay, sql, table } = await startTestServer('backoff');

/** Returns the times between the refusals, and up to the first accepted request, in milliseconds. */
function gaps({ requests }) {
  const refused = requests.filter(({ status }) => status >= 429);
  const last = requests.indexOf(refused.at(-1));
  const times = [...refused, requests[last + 1]];
  return times.slice(1).map(({ startedAt }, index) => startedAt - times[index].respondedAt);
}

for (const status of [503, 429]) {
  test(`a first request that gets ${status} is retried, not before retry-after`, LIMIT, async (t) => {
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
      `the client waited ${gaps(follower)} ms`,
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
      const first = follower.requests.filter(({ query }) => query.offset === '-1');
      assert.deepEqual(first.length, 1, 'the client refetched the shape');
    });
  }
}

test('a stream beyond the limit is refused with retry-after, and admitted when another ends', LIMIT, async (t) => {
  const { full, sql, table } = await startServerForOneStream(t);
  const things = await table('id int PRIMARY KEY');
  await openAndCloseStreams(t, full.shapes, things);
  const admitted = follow(t, { url: full.shapes, params: { table: things }, liveSse: true });
  await admitted.until('the first stream is admitted', () =>
    admitted.requests.some(({ query, status }) => 'live' in query && status === 200),
  );

  const waiting = follow(t, { url: full.shapes, params: { table: things }, liveSse: true });
  const refusal = await waiting.until('a refusal', () => waiting.requests.find(({ status }) => status === 503));
  assert.match(refusal.headers['retry-after'], /^\d+$/);
  assert.ok('live' in refusal.query, 'a plain request was refused');
  await sql(`INSERT INTO ${things} VALUES (1)`);
  await admitted.reads('the admitted stream continues', [['insert', { id: 1 }]]);

  admitted.leave();
  const maxWait = 1_000 * Number(refusal.headers['retry-after']) + MAX_WAIT_MS;
  await waiting.reads('the waiting stream is admitted and gets the missed change', [['insert', { id: 1 }]], 0, maxWait);
  await sql(`INSERT INTO ${things} VALUES (2)`);
  await waiting.reads('the next change', [['insert', { id: 2 }]], 1);
  assert.deepEqual(waiting.errors, []);
});

/** Opens and closes streams for three seconds, because the program derives retry-after from the rate of their ends. */
async function openAndCloseStreams(t, url, things) {
  const first = follow(t, { url, params: { table: things }, subscribe: false });
  await first.upToDate();
  const { lastOffset: offset, shapeHandle: handle } = first.stream;
  const query = new URLSearchParams({ table: things, offset, handle, log: 'full', live: 'true', live_sse: 'true' });
  for (const startedAt = performance.now(); performance.now() - startedAt < 3_000;) {
    const abort = new AbortController();
    await fetch(`${url}?${query}`, { signal: abort.signal });
    abort.abort();
  }
}

/** Starts a program that admits one stream, with a new database. */
async function startServerForOneStream(t) {
  const database = await makeDatabase('full');
  let full;
  t.after(async () => {
    await full?.end();
    await database.end();
  });
  full = await startForebay({ database, env: { [SETTING.totalStreams]: '1' } });
  return { full, sql: database.sql, table: database.table };
}
