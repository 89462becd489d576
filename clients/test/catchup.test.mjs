// ShapeStream of @electric-sql/client, with server-sent events that end while the client is catching up.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { SETTING } from '../support/forebay.mjs';
import { follow, LIMIT, startProxy, startTestServer } from '../support.mjs';

/** Long enough that the client doesn't count a stream as short. After three short streams the client polls. */
const SSE_TIMEOUT_MS = 1_200;

const env = { [SETTING.sseTimeout]: `${SSE_TIMEOUT_MS}` };
const { forebay, sql, table } = await startTestServer('catchup', { env });

/** Follows a table, and delays the first event stream until `rows` rows of 10 KB exist, ten in each transaction. */
async function followFromBehind(t, rows, options) {
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

function streamRequests({ requests }) {
  return requests.filter(({ query }) => 'live_sse' in query);
}

/** Waits for all rows. Fails if a row is missing, repeated or out of order, or a transaction is split. */
async function assertAllArrive(follower, rows) {
  await follower.until('all rows', () => follower.changes.length >= rows);
  const ids = follower.changes.map(({ value }) => value.id);
  assert.deepEqual(
    ids,
    Array.from({ length: rows }, (_, index) => index + 1),
  );
  const sizes = follower.batches.map((batch) => batch.filter(({ key }) => key).length);
  assert.ok(
    sizes.every((size) => size % 10 === 0),
    `incomplete transactions: ${sizes}`,
  );
}

/** Returns the same response, limited to 10 MB per second. */
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

test('a client whose stream times out while it is catching up gets all changes', LIMIT, async (t) => {
  // 40 MB: far more than the client reads before the timeout, and more than socket buffers hold.
  const rows = 4_000;
  const follower = await followFromBehind(t, rows, { rewrite: slowed });
  await assertAllArrive(follower, rows);
  assert.ok(streamRequests(follower).length > 1, 'one stream delivered everything');
});

test('a client whose streams are cut while it is catching up gets all changes', LIMIT, async (t) => {
  const rows = 300;
  const proxy = await startProxy(t, forebay.url);
  proxy.cut(2, 500_000);
  const follower = await followFromBehind(t, rows, { url: proxy.shapes });
  await assertAllArrive(follower, rows);
  const [first, second] = streamRequests(follower);
  assert.equal(first.headers['electric-offset'], first.query.offset, 'the response head has the offset of the request');
  const upToDates = follower.messages.filter(({ headers }) => headers.control === 'up-to-date');
  const acknowledged = upToDates.map(({ headers }) => `${headers.global_last_seen_lsn}_0`);
  assert.ok([first.query.offset, ...acknowledged].includes(second.query.offset), 'its offset is of no up-to-date');
});

test('a stream sends nothing until a change arrives', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY', '(1)');
  const follower = follow(t, { url: forebay.shapes, params: { table: things }, liveSse: true });
  const answered = () => streamRequests(follower).filter(({ status }) => status);
  await follower.until('two streams have been open', () => answered().length > 2);
  assert.deepEqual(follower.controls, ['snapshot-end', 'up-to-date']);
  await sql(`INSERT INTO ${things} VALUES (2)`);
  await follower.reads('the row', [['insert', { id: 2 }]], 1);
  assert.deepEqual(follower.controls, ['snapshot-end', 'up-to-date', 'up-to-date']);
});
