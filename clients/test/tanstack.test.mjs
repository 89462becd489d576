// Collections of @tanstack/db, synchronized by @tanstack/electric-db-collection.
import '../support/globals.mjs';
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  BasicIndex,
  createCollection,
  createLiveQueryCollection,
  eq,
  gt,
  gte,
  inArray,
  length,
  lt,
} from '@tanstack/db';
import { electricCollectionOptions, isChangeMessage } from '@tanstack/electric-db-collection';
import { becomes, LIMIT, MAX_WAIT_MS, QUICK, recorder, within, startTestServer } from '../support.mjs';

const { forebay, sql, table, transaction } = await startTestServer('tanstack');
const url = forebay.shapes;

const XID = 'SELECT pg_current_xact_id()::xid::text AS xid';

/** Creates a collection of a table `(id int PRIMARY KEY, title text)`. Its mutations are written to Postgres. */
function collect(t, things, { shapeOptions = {}, ...options } = {}) {
  const { requests, fetchClient } = recorder();
  const written = async (statement, values) => ({ ...(await write(statement, values)), timeout: MAX_WAIT_MS });
  const collection = createCollection(
    electricCollectionOptions({
      id: things,
      getKey: ({ id }) => id,
      shapeOptions: { url, params: { table: things }, fetchClient, backoffOptions: QUICK, ...shapeOptions },
      onInsert: async ({ transaction: { mutations } }) => {
        const { id, title } = mutations[0].modified;
        return written(`INSERT INTO ${things} VALUES ($1, $2)`, [id, title]);
      },
      onUpdate: async ({ transaction: { mutations } }) => {
        const { original, changes } = mutations[0];
        return written(`UPDATE ${things} SET title = $2 WHERE id = $1`, [original.id, changes.title]);
      },
      onDelete: async ({ transaction: { mutations } }) =>
        written(`DELETE FROM ${things} WHERE id = $1`, [mutations[0].original.id]),
      ...options,
    }),
  );
  const queries = [];
  t.after(async () => {
    for (const reader of [...queries, collection]) await reader.cleanup();
  });
  const query = (build) => {
    queries.push(createLiveQueryCollection(build));
    return queries.at(-1);
  };
  return {
    collection,
    query,
    requests,
    rows: () => [...collection.toArray].sort((one, other) => one.id - other.id).map(plain),
  };
}

/** Returns the columns of a row, without the properties that the library adds. */
function plain({ id, title }) {
  return { id, title };
}

/** Runs a statement in a transaction and returns the transaction id. */
async function write(statement, values) {
  return transaction(async (run) => {
    await run(statement, values);
    const [{ xid }] = await run(XID);
    return { txid: Number(xid) };
  });
}

test('a collection has the rows and follows their changes', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a'), (2, 'b')`);
  const { collection, rows } = collect(t, things);
  await within('the collection is ready', collection.preload());
  assert.deepEqual(rows(), [
    { id: 1, title: 'a' },
    { id: 2, title: 'b' },
  ]);
  await sql(
    `INSERT INTO ${things} VALUES (3, 'c'); UPDATE ${things} SET title = 'B' WHERE id = 2; DELETE FROM ${things} WHERE id = 1`,
  );
  await becomes(
    'the changes',
    [
      { id: 2, title: 'B' },
      { id: 3, title: 'c' },
    ],
    rows,
  );
});

for (const liveSse of [false, true]) {
  test(`mutations wait until their transaction arrives in the stream, liveSse: ${liveSse}`, LIMIT, async (t) => {
    const things = await table('id int PRIMARY KEY, title text', `(1, 'a')`);
    const { collection, rows } = collect(t, things, { shapeOptions: { liveSse } });
    await within('the collection is ready', collection.preload());

    const inserted = collection.insert({ id: 2, title: 'b' });
    assert.deepEqual(
      rows(),
      [
        { id: 1, title: 'a' },
        { id: 2, title: 'b' },
      ],
      'the insert is visible before it is stored',
    );
    await within('the insert arrives', inserted.isPersisted.promise);
    const updated = collection.update(1, (draft) => {
      draft.title = 'A';
    });
    await within('the update arrives', updated.isPersisted.promise);
    await within('the delete arrives', collection.delete(2).isPersisted.promise);
    assert.deepEqual(rows(), [{ id: 1, title: 'A' }]);
    assert.deepEqual(await sql(`SELECT * FROM ${things}`), [{ id: 1, title: 'A' }]);
  });
}

test('a mutation that fails is rolled back', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text CHECK (title <> $$bad$$)', `(1, 'a')`);
  const { collection, rows } = collect(t, things);
  await within('the collection is ready', collection.preload());
  const updated = collection.update(1, (draft) => {
    draft.title = 'bad';
  });
  await assert.rejects(within('the error of Postgres', updated.isPersisted.promise), /violates check constraint/);
  assert.deepEqual(rows(), [{ id: 1, title: 'a' }]);
});

test('awaitTxId finds transactions of the snapshot and of the log, and waits for later ones', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  const before = await write(`INSERT INTO ${things} VALUES (1, 'a')`);
  const { collection } = collect(t, things);
  await within('the collection is ready', collection.preload());
  assert.equal(await collection.utils.awaitTxId(before.txid), true);
  const after = await write(`INSERT INTO ${things} VALUES (2, 'b')`);
  assert.equal(await collection.utils.awaitTxId(after.txid, MAX_WAIT_MS), true);
  assert.ok(collection.has(2), 'awaitTxId resolved before the rows of the transaction arrived');
  const elsewhere = await write('SELECT 1');
  await assert.rejects(
    collection.utils.awaitTxId(elsewhere.txid, 200),
    /[Tt]imeout/,
    'the transaction changed no row of the shape',
  );
});

test('awaitMatch gets the messages of the stream', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  const { collection } = collect(t, things);
  await within('the collection is ready', collection.preload());
  const seen = collection.utils.awaitMatch(
    (message) => isChangeMessage(message) && message.value.title === 'x',
    MAX_WAIT_MS,
  );
  await sql(`INSERT INTO ${things} VALUES (1, 'x')`);
  assert.equal(await within('the match', seen), true);
});

test('a collection refetches after a 409', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a'), (2, 'b')`);
  const { collection, rows } = collect(t, things);
  await within('the collection is ready', collection.preload());
  await sql(`TRUNCATE ${things}; INSERT INTO ${things} VALUES (3, 'c')`);
  await becomes('the new rows', [{ id: 3, title: 'c' }], rows);
  await within('a mutation after the refetch', collection.insert({ id: 4, title: 'd' }).isPersisted.promise);
  assert.deepEqual(rows(), [
    { id: 3, title: 'c' },
    { id: 4, title: 'd' },
  ]);
});

test('an on-demand collection loads and follows the rows of its queries', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  await sql(`INSERT INTO ${things} SELECT n, 'title ' || n FROM generate_series(1, 100) n`);
  // Without an index, the limit of a query is not sent.
  const index = { autoIndex: 'eager', defaultIndexType: BasicIndex };
  const { collection, query, requests, rows } = collect(t, things, { syncMode: 'on-demand', ...index });
  const few = query((q) =>
    q
      .from({ thing: collection })
      .where(({ thing }) => gt(thing.id, 40))
      .orderBy(({ thing }) => thing.id, 'asc')
      .limit(3),
  );
  await within('the query is ready', few.preload());
  const found = () => few.toArray.map(plain);
  await becomes(
    'the rows of the query',
    [41, 42, 43].map((id) => ({ id, title: `title ${id}` })),
    found,
  );
  assert.ok(rows().length < 20, `${rows().length} rows were loaded for 3`);
  assert.ok(requests.every(({ query }) => query.log === 'changes_only'));

  await sql(`UPDATE ${things} SET title = 'new' WHERE id = 42`);
  await becomes('the change', ['title 41', 'new', 'title 43'], () => found().map(({ title }) => title));
  await within('a mutation', collection.update(43, (draft) => void (draft.title = 'mine')).isPersisted.promise);
  assert.deepEqual(
    found().map(({ title }) => title),
    ['title 41', 'new', 'mine'],
  );
});

test('an on-demand collection loads pages that are ordered by text', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  await sql(`INSERT INTO ${things} SELECT n, 'title ' || lpad(n::text, 3, '0') FROM generate_series(1, 60) n`);
  // The library requests pages only for orders that it can compute without a locale.
  const options = { defaultStringCollation: { stringSort: 'lexical' }, autoIndex: 'eager', defaultIndexType: BasicIndex };
  const { collection, query, rows } = collect(t, things, { syncMode: 'on-demand', ...options });
  const page = query((q) =>
    q
      .from({ thing: collection })
      .where(({ thing }) => gt(thing.title, 'title 010'))
      .orderBy(({ thing }) => thing.title, 'desc')
      .limit(3),
  );
  await within('the query is ready', page.preload());
  const titles = () => page.toArray.map(({ title }) => title);
  await becomes('the first page', ['title 060', 'title 059', 'title 058'], titles);
  await within('the next page', Promise.resolve(page.utils.setWindow({ offset: 3, limit: 3 })));
  await becomes('the second page', ['title 057', 'title 056', 'title 055'], titles);
  assert.ok(rows().length < 30, `${rows().length} rows were loaded for 6`);

  const range = query((q) =>
    q
      .from({ thing: collection })
      .where(({ thing }) => gte(thing.title, 'title 005'))
      .where(({ thing }) => lt(thing.title, 'title 008')),
  );
  await within('the range is ready', range.preload());
  await becomes('the range', [5, 6, 7], () => range.toArray.map(({ id }) => id).sort());
  await sql(`UPDATE ${things} SET title = 'title 0055' WHERE id = 60`);
  await becomes('the row that enters the range', [5, 6, 60, 7], () => range.toArray.map(({ id }) => id).sort());
});

test('an on-demand collection filters by enums and lengths', LIMIT, async (t) => {
  await sql(`CREATE TYPE state AS ENUM ('open', 'paid', 'done')`);
  const things = await table(
    'id int PRIMARY KEY, title text, state state',
    `(1, 'a', 'open'), (2, 'bb', 'paid'), (3, 'ccc', 'done'), (4, 'd', NULL)`,
  );
  // The library can use an update of a row that it has not loaded only if the update has the whole row.
  const shapeOptions = { params: { table: things, replica: 'full' } };
  const { collection, query } = collect(t, things, { syncMode: 'on-demand', shapeOptions });
  const found = async (build) => {
    const some = query((q) => build(q.from({ thing: collection })));
    await within('the query is ready', some.preload());
    return () => some.toArray.map(({ id }) => id).sort();
  };
  const some = await found((q) => q.where(({ thing }) => inArray(thing.state, ['open', 'done'])));
  await becomes('rows by a list of labels', [1, 3], some);
  await becomes(
    'rows by a label',
    [2],
    await found((q) => q.where(({ thing }) => eq(thing.state, 'paid'))),
  );
  await becomes(
    'rows by a length',
    [2, 3],
    await found((q) => q.where(({ thing }) => gt(length(thing.title), 1))),
  );
  await sql(`UPDATE ${things} SET state = 'open' WHERE id = 4`);
  await becomes('the row that enters the result', [1, 3, 4], some);
});

test('a progressive collection serves a query and then loads all rows', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  await sql(`INSERT INTO ${things} SELECT n, 'title ' || n FROM generate_series(1, 1000) n`);
  const { collection, query, rows } = collect(t, things, { syncMode: 'progressive' });
  const one = query((q) => q.from({ thing: collection }).where(({ thing }) => eq(thing.id, 7)));
  await within('the query is ready', one.preload());
  const found = () => one.toArray.map(plain);
  await becomes('the row of the query', [{ id: 7, title: 'title 7' }], found);
  await becomes('all rows', 1000, () => rows().length);
  await sql(`DELETE FROM ${things} WHERE id = 7`);
  await becomes('the row is gone', [], found);
});
