// After random changes to a table, and faults of the program, all clients have the rows of the table, and no change
// arrived twice.
//
// The steps follow from a seed, which is printed. It is constant unless FOREBAY_SEED is set.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inspect } from 'node:util';
import { becomes, follow, LogVerifier, LIMIT, Random, startTestServer } from '../support.mjs';

const ROUNDS = 150;
const WRITERS = 2;
const IDS = 40;
const WORDS = ['red', 'green', 'blue', `it's "quoted" \\ / {}`, '', '漢字', null];

/** Errors of conflicting writers. Postgres rolls back one of the transactions. */
const CONFLICTS = { deadlock_detected: '40P01', unique_violation: '23505' };

const { forebay, sql, table, transaction } = await startTestServer('convergence');
const url = forebay.shapes;
const seed = Number(process.env.FOREBAY_SEED ?? 20_261_116);

/** Shape definitions. The round is part of each, so that each is a new shape whose snapshot runs during the writes. */
const SHAPES = [
  (round) => ({ where: `id > -${round}` }),
  (round) => ({ where: `size > ${round % 90}` }),
  (round) => ({ where: 'word = $1 AND id < $2', params: ['green', `${1000 + round}`] }),
  (round) => ({ where: `word IN ('red', 'blue') OR size IS NULL OR id = -${round}`, replica: 'full' }),
  (round) => ({ where: `size BETWEEN 20 AND ${80 + round}`, columns: ['id', 'size'] }),
];

/** Returns one random statement. */
function step(random, things) {
  const id = random.below(IDS);
  const word = random.of(WORDS);
  const size = random.below(8) === 0 ? null : random.below(100);
  return random.of([
    [`INSERT INTO ${things} VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET word = $2`, [id, word, size]],
    [`INSERT INTO ${things} VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING`, [id, word, size]],
    [`UPDATE ${things} SET size = $2 WHERE id = $1`, [id, size]],
    [`UPDATE ${things} SET word = $2, size = size + 1 WHERE id % 7 = $1 % 7`, [id, word]],
    [
      `UPDATE ${things} SET id = $2 WHERE id = $1 AND NOT EXISTS (SELECT FROM ${things} WHERE id = $2)`,
      [id, random.below(IDS)],
    ],
    [`DELETE FROM ${things} WHERE id = $1`, [id]],
  ]);
}

/** Runs a random transaction. Conflicts with other writers are ignored. */
async function write(random, things) {
  const work = transaction(async (run) => {
    for (let left = 1 + random.below(4); left > 0; left -= 1) await run(...step(random, things));
    if (random.below(10) === 0) await run('ROLLBACK; BEGIN');
  });
  await work.catch((error) => assert.ok(Object.values(CONFLICTS).includes(error.code), error));
}

/** Returns the rows of a shape by a query in Postgres. */
async function stored(things, { where, params = [], columns = ['*'] }) {
  return sql(`SELECT ${columns} FROM ${things} WHERE ${where} ORDER BY id`, params);
}

/** Writes and calls `disturb` each round, then fails unless every client has the rows of its shape. */
async function runHistory(t, disturb, options = {}) {
  t.diagnostic(`FOREBAY_SEED=${seed}`);
  const random = new Random(seed);
  const writers = Array.from({ length: WRITERS }, (_, place) => new Random(seed + 1 + place));
  const things = await table('id int PRIMARY KEY, word text, size int');
  await sql(`INSERT INTO ${things} SELECT n, 'green', n FROM generate_series(1, 20) n`);
  const readers = [];
  for (let round = 1; round <= ROUNDS; round += 1) {
    if (round % 15 === 1) {
      const definition = random.of(SHAPES)(round);
      const liveSse = random.below(2) === 0;
      const follower = follow(t, { url, params: { table: things, ...definition }, liveSse, ...options });
      readers.push({ definition, liveSse, follower, verifier: new LogVerifier(follower.stream) });
    }
    await Promise.all(writers.map((writer) => write(writer, things)));
    await disturb(round, random, things);
  }

  for (const { definition, liveSse, follower, verifier } of readers) {
    const what = `the rows of ${JSON.stringify(definition)}, liveSse: ${liveSse}, FOREBAY_SEED=${seed}`;
    try {
      await becomes(what, await stored(things, definition), () => verifier.rows);
      assert.deepEqual([verifier.faults, follower.errors], [[], []], what);
    } catch (error) {
      t.diagnostic(inspect({ errors: follower.errors, requests: follower.requests.slice(-6) }, { depth: 4 }));
      t.diagnostic(forebay.log);
      throw error;
    }
  }
}

test('all kinds of clients converge to the rows of the table', LIMIT, async (t) => {
  await runHistory(t, () => {});
});

test('clients converge although the program is stopped and killed repeatedly', LIMIT, async (t) => {
  const disturb = async (round, random) => {
    if (round % 40 !== 0) return;
    await (random.below(2) === 0 ? forebay.kill() : forebay.stop());
    await forebay.start();
  };
  // A response that is truncated after its head: the client continues only if `onError` returns options.
  const onError = (error) => (error.status === 200 ? {} : undefined);
  await runHistory(t, disturb, { onError });
});

test('clients converge although the table is truncated and altered', LIMIT, async (t) => {
  await runHistory(t, async (round, random, things) => {
    if (round % 40 !== 0) return;
    if (random.below(2) === 0) await sql(`TRUNCATE ${things}`);
    else await sql(`ALTER TABLE ${things} ALTER COLUMN size TYPE ${random.of(['int', 'smallint'])}`);
  });
});
