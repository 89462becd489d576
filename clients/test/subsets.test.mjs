// Shapes without their snapshot (log: 'changes_only'), and subsets that the client requests.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Shape, snakeCamelMapper } from '@electric-sql/client';
import { becomes, follow, LIMIT, within, startTestServer } from '../support.mjs';

const { forebay, sql, table } = await startTestServer('subsets');
const url = forebay.shapes;

const isSubset = ({ method, query }) =>
  method === 'POST' || Object.keys(query).some((name) => name.startsWith('subset__'));

/** Creates a table of ten rows: `(1, 'a', 10) … (10, 'j', 100)`. */
async function tableOfTen() {
  const things = await table('id int PRIMARY KEY, letter text, size int');
  await sql(`INSERT INTO ${things} SELECT n, chr(96 + n), 10 * n FROM generate_series(1, 10) n`);
  return things;
}

function ids(messages) {
  return messages.map(({ value }) => value.id);
}

for (const offset of [undefined, 'now']) {
  test(`changes_only from ${offset ?? 'the start'} has no rows, only their changes`, LIMIT, async (t) => {
    const things = await tableOfTen();
    const follower = follow(t, { url, params: { table: things }, log: 'changes_only', offset });
    await follower.live();
    assert.deepEqual(follower.rows, []);
    await sql(`UPDATE ${things} SET size = 0 WHERE id = 3`);
    await sql(`INSERT INTO ${things} VALUES (11, 'k', 110)`);
    await follower.reads('the changes', [
      ['update', { id: 3, size: 0 }],
      ['insert', { id: 11, letter: 'k', size: 110 }],
    ]);
  });
}

test('offset=now skips the rows of a full shape', LIMIT, async (t) => {
  const things = await tableOfTen();
  const follower = follow(t, { url, params: { table: things }, offset: 'now' });
  await follower.live();
  await sql(`DELETE FROM ${things} WHERE id = 1`);
  await follower.reads('the changes', [['delete', { id: 1 }]]);
});

for (const method of ['GET', 'POST']) {
  test(`a subset by ${method} is filtered, ordered and limited`, LIMIT, async (t) => {
    const things = await tableOfTen();
    const { stream } = follow(t, { url, params: { table: things }, log: 'changes_only', subsetMethod: method });
    const subset = async (params) => ids((await within('a subset', stream.fetchSnapshot(params))).data);
    assert.deepEqual(
      await subset({ where: 'size > $1 AND letter <> $2', params: { 1: '70', 2: 'i' }, orderBy: 'id' }),
      [8, 10],
    );
    assert.deepEqual(await subset({ orderBy: 'letter DESC', limit: 3 }), [10, 9, 8]);
    assert.deepEqual(await subset({ orderBy: '"size" ASC', limit: 2, offset: 4 }), [5, 6]);
    assert.deepEqual(
      await subset({ where: 'id = ANY($1)', params: { 1: '{2,4}' }, orderBy: 'id DESC NULLS LAST' }),
      [4, 2],
    );
    assert.deepEqual(await subset({ where: 'true = true', orderBy: 'id', limit: 1, params: {} }), [1]);
    assert.deepEqual(await subset({ where: 'id < 0' }), []);
  });

  test(`a subset by ${method} is added to the stream, and its rows are followed`, LIMIT, async (t) => {
    const things = await tableOfTen();
    const follower = follow(t, { url, params: { table: things }, log: 'changes_only', subsetMethod: method });
    const shape = new Shape(follower.stream);
    await follower.live();
    await within('the subset', shape.requestSnapshot({ where: 'id <= $1', params: { 1: '2' }, orderBy: 'id' }));
    assert.deepEqual(shape.currentRows, [
      { id: 1, letter: 'a', size: 10 },
      { id: 2, letter: 'b', size: 20 },
    ]);
    assert.deepEqual(
      follower.controls.filter((control) => control !== 'up-to-date'),
      ['snapshot-end', 'snapshot-end', 'subset-end'],
    );

    await sql(`UPDATE ${things} SET size = 21 WHERE id = 2`);
    await sql(`UPDATE ${things} SET size = 31 WHERE id = 3`);
    await sql(`DELETE FROM ${things} WHERE id = 1`);
    await becomes('only rows of the subset', [{ id: 2, letter: 'b', size: 21 }], () => shape.currentRows);
  });

  test(`a subset by ${method} can be the first request of a stream`, LIMIT, async (t) => {
    const things = await tableOfTen();
    const options = { url, params: { table: things }, log: 'changes_only', offset: 'now', subsetMethod: method };
    const follower = follow(t, options);
    // The client cancels its first request for this one, so it has no schema yet.
    await within('the subset', follower.stream.requestSnapshot({ where: 'size = 50', orderBy: 'id' }));
    assert.deepEqual(follower.rows, [['insert', { id: 5, letter: 'e', size: 50 }]]);
    // Only now the client requests `offset=now`.
    await follower.live();
    await sql(`UPDATE ${things} SET size = 51 WHERE id = 5`);
    await follower.reads('the change of the row', [['update', { id: 5, size: 51 }]], 1);
  });
}

test('rows of a subset carry its mark, and its metadata holds the snapshot', LIMIT, async (t) => {
  const things = await tableOfTen();
  const { stream } = follow(t, { url, params: { table: things }, log: 'changes_only' });
  const { metadata, data } = await within('the subset', stream.fetchSnapshot({ where: 'id < 3', orderBy: 'id' }));
  assert.deepEqual(
    data.map(({ key }) => key),
    [1, 2].map((id) => `"public"."${things}"/"${id}"`),
  );
  assert.deepEqual(
    data.map(({ headers }) => headers.snapshot_mark),
    Array(2).fill(metadata.snapshot_mark),
  );
  assert.equal(typeof metadata.snapshot_mark, 'number');
  for (const field of ['xmin', 'xmax', 'database_lsn']) assert.match(metadata[field], /^\d+$/, field);
  assert.ok(
    metadata.xip_list.every((xid) => typeof xid === 'string'),
    `${metadata.xip_list}`,
  );
});

test('a change that is part of the subset is not sent again', LIMIT, async (t) => {
  const things = await tableOfTen();
  // The change commits after the stream has paused and before the subset is read, so it is in both.
  const before = async (request) => {
    if (isSubset(request)) await sql(`UPDATE ${things} SET size = 55 WHERE id = 5`);
  };
  const follower = follow(t, { url, params: { table: things }, log: 'changes_only', before });
  await follower.live();
  await within('the subset', follower.stream.requestSnapshot({ where: 'id = 5' }));
  await sql(`UPDATE ${things} SET size = 56 WHERE id = 5`);
  await follower.reads('the subset, and only later changes', [
    ['insert', { id: 5, letter: 'e', size: 55 }],
    ['update', { id: 5, size: 56 }],
  ]);
});

test('a change of another row while a subset is read is not lost', LIMIT, async (t) => {
  const things = await tableOfTen();
  const watcher = follow(t, { url, params: { table: things }, log: 'changes_only' });
  await watcher.live();
  let subsets = 0;
  // The response of a subset sets the client's offset. An offset beyond this change would skip the change.
  const before = async (request) => {
    if (!isSubset(request) || ++subsets !== 2) return;
    await sql(`UPDATE ${things} SET size = 11 WHERE id = 1`);
    await watcher.reads('the server has the change', [['update', { id: 1, size: 11 }]]);
  };
  const follower = follow(t, { url, params: { table: things }, log: 'changes_only', before });
  await follower.live();
  await within('the first subset', follower.stream.requestSnapshot({ where: 'id = 1' }));
  await within('the second subset', follower.stream.requestSnapshot({ where: 'id = 2' }));
  await follower.until('the change in between', () => follower.rows.some(([operation]) => operation === 'update'));
  assert.deepEqual(follower.rows, [
    ['insert', { id: 1, letter: 'a', size: 10 }],
    ['insert', { id: 2, letter: 'b', size: 20 }],
    ['update', { id: 1, size: 11 }],
  ]);
});

test('a subset has only rows and columns of its shape', LIMIT, async (t) => {
  const things = await tableOfTen();
  const params = { table: things, where: 'size <= 50', columns: ['id', 'letter'] };
  const { stream } = follow(t, { url, params, log: 'changes_only' });
  const subset = { where: 'letter IN ($1, $2, $3)', params: { 1: 'd', 2: 'e', 3: 'j' }, orderBy: 'id' };
  const { data } = await within('the subset', stream.fetchSnapshot(subset));
  assert.deepEqual(
    data.map(({ value }) => value),
    [
      { id: 4, letter: 'd' },
      { id: 5, letter: 'e' },
    ],
  );
});

test('subsets can overlap and be requested concurrently', LIMIT, async (t) => {
  const things = await tableOfTen();
  const { stream } = follow(t, { url, params: { table: things }, log: 'changes_only' });
  const shape = new Shape(stream);
  const parts = ['id <= 6', 'id >= 4', 'size = 50'].map((where) => shape.requestSnapshot({ where }));
  await within('three subsets', Promise.all(parts));
  const found = shape.currentRows.map(({ id }) => id).sort((one, other) => one - other);
  assert.deepEqual(found, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
  await sql(`DELETE FROM ${things} WHERE id <> 5`);
  await becomes('the remaining row', [{ id: 5, letter: 'e', size: 50 }], () => shape.currentRows);
});

test('structured expressions are sent as SQL with mapped column names', LIMIT, async (t) => {
  const things = await table('thing_id int PRIMARY KEY, thing_size int', '(1, 10), (2, 20), (3, 30)');
  const { stream } = follow(t, {
    url,
    params: { table: things },
    log: 'changes_only',
    columnMapper: snakeCamelMapper(),
  });
  const column = { type: 'ref', column: 'thingSize' };
  const whereExpr = { type: 'func', name: 'gt', args: [column, { type: 'val', paramIndex: 1 }] };
  const orderByExpr = [{ column: 'thingId', direction: 'desc' }];
  const { data } = await within(
    'the subset',
    stream.fetchSnapshot({ whereExpr, params: { 1: 10 }, orderByExpr, limit: 5 }),
  );
  assert.deepEqual(
    data.map(({ value }) => value),
    [
      { thingId: 3, thingSize: 30 },
      { thingId: 2, thingSize: 20 },
    ],
  );
});

test('clauses that TanStack collections generate are supported', LIMIT, async (t) => {
  const rows = `(1, 'ab', '2024-01-01'), (2, NULL, NULL)`;
  const things = await table('id int PRIMARY KEY, word text, seen timestamptz', rows);
  const { stream } = follow(t, { url, params: { table: things }, log: 'changes_only' });
  const clauses = [
    [`"word" = $1`, ['ab'], [1]],
    [`("id" > $1) OR ("word" IS NULL)`, ['5'], [2]],
    [`"word" IS NOT NULL AND NOT ("id" = $1)`, ['2'], [1]],
    [`"word" = ANY($1)`, ['{"ab","c d"}'], [1]],
    [`"id" = ANY($1)`, ['{2,3}'], [2]],
    [`"word" LIKE $1 OR "word" ILIKE $2`, ['a%', 'B%'], [1]],
    [`UPPER("word") = $1 AND LOWER("word") = $2`, ['AB', 'ab'], [1]],
    [`CONCAT("word",$1) = $2`, ['c', 'abc'], [1]],
    [`COALESCE("word",$1) = $2`, ['none', 'none'], [2]],
    [`"seen" >= $1`, ['2023-12-31T00:00:00.000Z'], [1]],
    [`"word" > $1`, ['a'], [1]],
    [`true = true`, [], [1, 2]],
    [`false`, [], []],
  ];
  for (const [where, values, wanted] of clauses) {
    const params = Object.fromEntries(values.map((value, index) => [index + 1, value]));
    const { data } = await within(where, stream.fetchSnapshot({ where, params, orderBy: '"id"' }));
    assert.deepEqual(ids(data), wanted, where);
  }
});

/** Creates a table of words whose order depends on the collation, and an enum. */
async function tableOfWords() {
  const mood = `mood_${(await sql(`SELECT count(*)::int AS n FROM pg_type WHERE typtype = 'e'`))[0].n}`;
  await sql(`CREATE TYPE ${mood} AS ENUM ('sad', 'ok', 'happy')`);
  const rows = `(1, 'b', 'sad', '{"a": 1}'), (2, 'A', 'ok', '{"a": 2}'), (3, 'é', 'happy', '[]'),
    (4, 'Z', NULL, NULL), (5, 'it''s \\ "x"', 'ok', '{}')`;
  const things = await table(`id int PRIMARY KEY, word text, mood ${mood}, doc jsonb`, rows);
  return { things, mood };
}

for (const method of ['GET', 'POST']) {
  test(`text, enums and JSON of a subset by ${method} are compared by the database`, LIMIT, async (t) => {
    const { things, mood } = await tableOfWords();
    const { stream } = follow(t, { url, params: { table: things }, log: 'changes_only', subsetMethod: method });
    const clauses = [
      [`"word" > $1`, ['b']],
      [`"word" >= $1 AND "word" < $2`, ['A', 'Z']],
      [`("word" > $1) OR ("word" = $2 AND "id" > $3)`, ['é', 'b', '0']],
      [`"word" = ANY($1) OR LENGTH("word") > $2`, ['{"A","é"}', '3']],
      [`LENGTH(CONCAT("word",$1)) = $2`, ['x', '2']],
      [`UPPER("word") < $1`, ['Y']],
      [`"mood" = ANY($1)`, ['{"sad","happy"}']],
      [`"mood" > $1`, ['sad']],
      [`"mood"::text = ANY($1)`, ['{"ok"}']],
      [`"mood"::text LIKE $1 AND "word" > $2`, ['%o%', '']],
      [`"mood" = $1::${mood} OR "mood" = ANY($2::${mood}[])`, ['sad', '{ok}']],
      [`"mood" = CAST($1 AS public.${mood})`, ['happy']],
      [`"doc" ->> 'a' = $1 OR "doc" @> $2`, ['2', '[]']],
    ];
    for (const [where, values] of clauses) {
      const params = Object.fromEntries(values.map((value, index) => [index + 1, value]));
      const literal = (value) => `'${value.replaceAll("'", "''")}'`;
      const clause = where.replace(/\$(\d)/g, (_, number) => literal(values[number - 1]));
      for (const order of ['"word"', '"word" DESC NULLS LAST, "id"', '"mood" DESC, "id"']) {
        const { data } = await within(where, stream.fetchSnapshot({ where, params, orderBy: order, limit: 4 }));
        const wanted = await sql(`SELECT id FROM ${things} WHERE ${clause} ORDER BY ${order} LIMIT 4`);
        assert.deepEqual(ids(data), ids(wanted.map((value) => ({ value }))), `${where} ORDER BY ${order}`);
      }
    }
  });
}

test('consecutive pages by text are all rows in the order of the database', LIMIT, async (t) => {
  const { things } = await tableOfWords();
  const { stream } = follow(t, { url, params: { table: things }, log: 'changes_only' });
  const found = [];
  for (let last = ''; ; ) {
    const page = { where: '"word" > $1', params: { 1: last }, orderBy: '"word"', limit: 2 };
    const { data } = await within('a page', stream.fetchSnapshot(page));
    if (data.length === 0) break;
    found.push(...data.map(({ value }) => value.word));
    last = found.at(-1);
  }
  const wanted = await sql(`SELECT word FROM ${things} ORDER BY word`);
  assert.deepEqual(
    found,
    wanted.map(({ word }) => word),
  );
});

test('errors of a clause are reported, with the position of a syntax error', LIMIT, async (t) => {
  const { things } = await tableOfWords();
  const { stream } = follow(t, { url, params: { table: things }, log: 'changes_only' });
  for (const [where, message] of [
    ['1 x 1', 'At location 17: syntax error at or near \\"x\\"'],
    ['"mood" = ANY($1)', 'invalid input value for enum'],
    ['pg_sleep(1) IS NULL', 'the function pg_sleep of 1 arguments is not supported in where clauses'],
    ['"word" > (SELECT 1)', 'subqueries are not supported'],
    ['"nope" > 1', 'column \\"nope\\" does not exist'],
  ]) {
    const refused = (error) => error.status === 400 && JSON.stringify(error.json ?? error.text).includes(message);
    await assert.rejects(within(where, stream.fetchSnapshot({ where, params: { 1: '{no}' } })), refused, where);
  }
  const shape = new URL(url);
  shape.search = new URLSearchParams({ table: things, offset: '-1', where: '1 x 1' });
  const answer = await (await fetch(shape)).json();
  assert.deepEqual(answer.errors, { where: ['At location 17: syntax error at or near "x"'] });
});
