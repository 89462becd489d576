// Whatever happens to a table, and to the program, its clients end up with what it holds, and hear nothing twice.
//
// What happens is drawn from a seed, which is printed: always the same, unless FOREBAY_SEED=… names another.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inspect } from 'node:util';
import { becomes, follow, Ledger, LIMIT, Random, world } from '../support.mjs';

const ROUNDS = 150;
const WRITERS = 2;
const IDS = 40;
const WORDS = ['red', 'green', 'blue', `it's "quoted" \\ / {}`, '', '漢字', null];

/** What writers do to each other: Postgres undoes the transaction of one. */
const CONFLICTS = { deadlock_detected: '40P01', unique_violation: '23505' };

const { forebay, sql, table, transaction } = await world('convergence');
const url = forebay.shapes;
const seed = Number(process.env.FOREBAY_SEED ?? 20_261_116);

/** Definitions of shapes; the round makes each another one, so that its snapshot is taken in the middle of it all. */
const SHAPES = [
  (round) => ({ where: `id > -${round}` }),
  (round) => ({ where: `size > ${round % 90}` }),
  (round) => ({ where: 'word = $1 AND id < $2', params: ['green', `${1000 + round}`] }),
  (round) => ({ where: `word IN ('red', 'blue') OR size IS NULL OR id = -${round}`, replica: 'full' }),
  (round) => ({ where: `size BETWEEN 20 AND ${80 + round}`, columns: ['id', 'size'] }),
];

/** One random statement. */
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

async function write(random, things) {
  const work = transaction(async (run) => {
    for (let left = 1 + random.below(4); left > 0; left -= 1) await run(...step(random, things));
    if (random.below(10) === 0) await run('ROLLBACK; BEGIN');
  });
  await work.catch((error) => assert.ok(Object.values(CONFLICTS).includes(error.code), error));
}

/** What a shape must hold, as Postgres sees it. */
async function stored(things, { where, params = [], columns = ['*'] }) {
  return sql(`SELECT ${columns} FROM ${things} WHERE ${where} ORDER BY id`, params);
}

async function history(t, disturb, options = {}) {
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
      readers.push({ definition, liveSse, follower, ledger: new Ledger(follower.stream) });
    }
    await Promise.all(writers.map((writer) => write(writer, things)));
    await disturb(round, random, things);
  }

  for (const { definition, liveSse, follower, ledger } of readers) {
    const what = `the rows of ${JSON.stringify(definition)}, liveSse: ${liveSse}, FOREBAY_SEED=${seed}`;
    try {
      await becomes(what, await stored(things, definition), () => ledger.rows);
      assert.deepEqual([ledger.faults, follower.errors], [[], []], what);
    } catch (error) {
      t.diagnostic(inspect({ errors: follower.errors, asked: follower.requests.slice(-6) }, { depth: 4 }));
      t.diagnostic(forebay.log);
      throw error;
    }
  }
}

test('clients of every kind end up with the rows of the table', LIMIT, async (t) => {
  await history(t, () => {});
});

test('also if the program is killed on the way, again and again', LIMIT, async (t) => {
  const disturb = async (round, random) => {
    if (round % 40 !== 0) return;
    await (random.below(2) === 0 ? forebay.kill() : forebay.stop());
    await forebay.start();
  };
  // An answer that broke off after its head: the client leaves it to its user to go on.
  const onError = (error) => (error.status === 200 ? {} : undefined);
  await history(t, disturb, { onError });
});

test('also if the table is truncated and altered on the way', LIMIT, async (t) => {
  await history(t, async (round, random, things) => {
    if (round % 40 !== 0) return;
    if (random.below(2) === 0) await sql(`TRUNCATE ${things}`);
    else await sql(`ALTER TABLE ${things} ALTER COLUMN size TYPE ${random.of(['int', 'smallint'])}`);
  });
});
