// Collections of @tanstack/db, kept in step by @tanstack/electric-db-collection.
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
import { becomes, LIMIT, PATIENCE_MS, QUICK, recorder, within, world } from '../support.mjs';

const { forebay, sql, table, transaction } = await world('tanstack');
const url = forebay.shapes;

const XID = 'SELECT pg_current_xact_id()::xid::text AS xid';

/** A collection of a table `(id int PRIMARY KEY, title text)`; what it is told to change, it changes in Postgres. */
function collect(t, things, { shapeOptions = {}, ...options } = {}) {
  const { requests, fetchClient } = recorder();
  const written = async (statement, values) => ({ ...(await write(statement, values)), timeout: PATIENCE_MS });
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

/** Without what the library adds to a row. */
function plain({ id, title }) {
  return { id, title };
}

async function write(statement, values) {
  return transaction(async (run) => {
    await run(statement, values);
    const [{ xid }] = await run(XID);
    return { txid: Number(xid) };
  });
}

test('a collection has the rows, and follows them', LIMIT, async (t) => {
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
    'what happened',
    [
      { id: 2, title: 'B' },
      { id: 3, title: 'c' },
    ],
    rows,
  );
});

for (const liveSse of [false, true]) {
  test(`mutations wait for their transaction to come back, liveSse: ${liveSse}`, LIMIT, async (t) => {
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
      'it is there before the database has it',
    );
    await within('the insert comes back', inserted.isPersisted.promise);
    const updated = collection.update(1, (draft) => {
      draft.title = 'A';
    });
    await within('the update comes back', updated.isPersisted.promise);
    await within('the delete comes back', collection.delete(2).isPersisted.promise);
    assert.deepEqual(rows(), [{ id: 1, title: 'A' }]);
    assert.deepEqual(await sql(`SELECT * FROM ${things}`), [{ id: 1, title: 'A' }]);
  });
}

test('a mutation that fails is undone', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text CHECK (title <> $$bad$$)', `(1, 'a')`);
  const { collection, rows } = collect(t, things);
  await within('the collection is ready', collection.preload());
  const updated = collection.update(1, (draft) => {
    draft.title = 'bad';
  });
  await assert.rejects(within('the refusal', updated.isPersisted.promise), /violates check constraint/);
  assert.deepEqual(rows(), [{ id: 1, title: 'a' }]);
});

test('awaitTxId knows transactions of the log, of the snapshot, and waits for those to come', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  const before = await write(`INSERT INTO ${things} VALUES (1, 'a')`);
  const { collection } = collect(t, things);
  await within('the collection is ready', collection.preload());
  assert.equal(await collection.utils.awaitTxId(before.txid), true);
  const after = await write(`INSERT INTO ${things} VALUES (2, 'b')`);
  assert.equal(await collection.utils.awaitTxId(after.txid, PATIENCE_MS), true);
  assert.ok(collection.has(2), 'the rows of a transaction are there when it is known');
  const elsewhere = await write('SELECT 1');
  await assert.rejects(
    collection.utils.awaitTxId(elsewhere.txid, 200),
    /[Tt]imeout/,
    'it touched nothing of the shape',
  );
});

test('awaitMatch sees the messages themselves', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  const { collection } = collect(t, things);
  await within('the collection is ready', collection.preload());
  const seen = collection.utils.awaitMatch(
    (message) => isChangeMessage(message) && message.value.title === 'x',
    PATIENCE_MS,
  );
  await sql(`INSERT INTO ${things} VALUES (1, 'x')`);
  assert.equal(await within('the match', seen), true);
});

test('a collection starts over after a 409', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a'), (2, 'b')`);
  const { collection, rows } = collect(t, things);
  await within('the collection is ready', collection.preload());
  await sql(`TRUNCATE ${things}; INSERT INTO ${things} VALUES (3, 'c')`);
  await becomes('the new rows', [{ id: 3, title: 'c' }], rows);
  await within('a mutation after it', collection.insert({ id: 4, title: 'd' }).isPersisted.promise);
  assert.deepEqual(rows(), [
    { id: 3, title: 'c' },
    { id: 4, title: 'd' },
  ]);
});

test('a collection on demand loads what queries ask for, and follows it', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  await sql(`INSERT INTO ${things} SELECT n, 'title ' || n FROM generate_series(1, 100) n`);
  const index = { autoIndex: 'eager', defaultIndexType: BasicIndex }; // without one, no query is cut by its limit
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
    'its rows',
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

test('a collection on demand loads pages by text, and more of them', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  await sql(`INSERT INTO ${things} SELECT n, 'title ' || lpad(n::text, 3, '0') FROM generate_series(1, 60) n`);
  // Only what it can order itself without a locale, it asks for in pages.
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
  await becomes('the last ones', ['title 060', 'title 059', 'title 058'], titles);
  await within('the next page', Promise.resolve(page.utils.setWindow({ offset: 3, limit: 3 })));
  await becomes('those before', ['title 057', 'title 056', 'title 055'], titles);
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
  await becomes('what comes in', [5, 6, 60, 7], () => range.toArray.map(({ id }) => id).sort());
});

test('a collection on demand loads by enums and by lengths', LIMIT, async (t) => {
  await sql(`CREATE TYPE state AS ENUM ('open', 'paid', 'done')`);
  const things = await table(
    'id int PRIMARY KEY, title text, state state',
    `(1, 'a', 'open'), (2, 'bb', 'paid'), (3, 'ccc', 'done'), (4, 'd', NULL)`,
  );
  // An update of a row that it has not loaded is of use to it only if the row is whole.
  const shapeOptions = { params: { table: things, replica: 'full' } };
  const { collection, query } = collect(t, things, { syncMode: 'on-demand', shapeOptions });
  const found = async (build) => {
    const some = query((q) => build(q.from({ thing: collection })));
    await within('the query is ready', some.preload());
    return () => some.toArray.map(({ id }) => id).sort();
  };
  const some = await found((q) => q.where(({ thing }) => inArray(thing.state, ['open', 'done'])));
  await becomes('by a list of labels', [1, 3], some);
  await becomes(
    'by a label',
    [2],
    await found((q) => q.where(({ thing }) => eq(thing.state, 'paid'))),
  );
  await becomes(
    'by a length',
    [2, 3],
    await found((q) => q.where(({ thing }) => gt(length(thing.title), 1))),
  );
  await sql(`UPDATE ${things} SET state = 'open' WHERE id = 4`);
  await becomes('a row that comes in', [1, 3, 4], some);
});

test('a progressive collection answers a query before it has all rows', LIMIT, async (t) => {
  const things = await table('id int PRIMARY KEY, title text');
  await sql(`INSERT INTO ${things} SELECT n, 'title ' || n FROM generate_series(1, 1000) n`);
  const { collection, query, rows } = collect(t, things, { syncMode: 'progressive' });
  const one = query((q) => q.from({ thing: collection }).where(({ thing }) => eq(thing.id, 7)));
  await within('the query is ready', one.preload());
  const found = () => one.toArray.map(plain);
  await becomes('its row', [{ id: 7, title: 'title 7' }], found);
  await becomes('all rows', 1000, () => rows().length);
  await sql(`DELETE FROM ${things} WHERE id = 7`);
  await becomes('the row is gone', [], found);
});
