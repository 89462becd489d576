// ShapeStream of @electric-sql/client, by server-sent events, when a stream ends before the client has all that there was.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { SETTING } from '../support/forebay.mjs';
import { follow, LIMIT, startProxy, world } from '../support.mjs';

/** Longer than a stream that the client takes for a short one, after three of which it polls. */
const SSE_TIMEOUT_MS = 1_200;

const { forebay, sql, table } = await world('catchup', { env: { [SETTING.sseTimeout]: `${SSE_TIMEOUT_MS}` } });

/** Follows a table, and holds the first event stream back until so many rows of 10 KB are there, ten in a transaction. */
async function behind(t, rows, options) {
  const things = await table('id int PRIMARY KEY, note text');
  let release;
  const written = new Promise((resolve) => (release = resolve));
  const before = ({ query }) => ('live_sse' in query ? written : undefined);
  const follower = follow(t, { url: forebay.shapes, params: { table: things }, liveSse: true, before, ...options });
  await follower.live();
  await sql(`DO $$ BEGIN FOR n IN 0..${rows / 10 - 1} LOOP
    INSERT INTO ${things} SELECT 10 * n + i, repeat('x', 10000) FROM generate_series(1, 10) i; COMMIT;
  END LOOP; END $$`);
  const other = follow(t, { url: forebay.shapes, params: { table: things } });
  await other.until('all rows are served', () => other.changes.length >= rows);
  release();
  return follower;
}

function streams({ requests }) {
  return requests.filter(({ query }) => 'live_sse' in query);
}

async function hasAll(follower, rows) {
  await follower.until('all rows', () => follower.changes.length >= rows);
  const ids = follower.changes.map(({ value }) => value.id);
  assert.deepEqual(
    ids,
    Array.from({ length: rows }, (_, index) => index + 1),
  );
  const sizes = follower.batches.map((batch) => batch.filter(({ key }) => key).length);
  assert.ok(
    sizes.every((size) => size % 10 === 0),
    `whole transactions: ${sizes}`,
  );
}

/** The same answer, read at no more than 10 MB a second. */
function slowed(response) {
  if (!response.headers.get('content-type')?.startsWith('text/event-stream')) return response;
  const reader = response.body.getReader();
  const body = new ReadableStream({
    async pull(controller) {
      const { done, value } = await reader.read();
      if (done) return controller.close();
      await pause(value.length / 10_000);
      controller.enqueue(value);
    },
    cancel: (reason) => reader.cancel(reason),
  });
  return new Response(body, { status: response.status, headers: response.headers });
}

test('a client that is still catching up when the time of its stream is over gets everything', LIMIT, async (t) => {
  // 40 MB: far more than is read in the time of a stream, and than sockets hold.
  const rows = 4_000;
  const follower = await behind(t, rows, { rewrite: slowed });
  await hasAll(follower, rows);
  assert.ok(streams(follower).length > 1, 'one stream was not enough');
});

test('a client whose streams are cut while it catches up gets everything', LIMIT, async (t) => {
  const rows = 300;
  const proxy = await startProxy(t, forebay.url);
  proxy.cut(2, 500_000);
  const follower = await behind(t, rows, { url: proxy.shapes });
  await hasAll(follower, rows);
  const [first, second] = streams(follower);
  assert.equal(first.headers['electric-offset'], first.query.offset, 'the head says what the client has');
  const upToDates = follower.messages.filter(({ headers }) => headers.control === 'up-to-date');
  const acknowledged = upToDates.map(({ headers }) => `${headers.global_last_seen_lsn}_0`);
  assert.ok([first.query.offset, ...acknowledged].includes(second.query.offset), 'it goes on from an up-to-date');
});

test('a stream is silent until there is something to tell', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY', '(1)');
  const follower = follow(t, { url: forebay.shapes, params: { table: things }, liveSse: true });
  await follower.until('two streams have been open', () => streams(follower).filter(({ status }) => status).length > 2);
  assert.deepEqual(follower.controls, ['snapshot-end', 'up-to-date']);
  await sql(`INSERT INTO ${things} VALUES (2)`);
  await follower.reads('the row', [['insert', { id: 2 }]], 1);
  assert.deepEqual(follower.controls, ['snapshot-end', 'up-to-date', 'up-to-date']);
});
