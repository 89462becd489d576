// Shapes by POST: a fetch function moves the query string into the body.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { follow, LIMIT, startTestServer } from '../support.mjs';

const { forebay, sql, table } = await startTestServer('posts');
const url = forebay.shapes;

/** Sends the parameters of a request in the body of a POST, as in `docs/protocol.md`. */
function fetchClient(input, init) {
  if (init?.method === 'POST') return fetch(input, init);
  const url = new URL(input);
  const [body, secrets] = [{}, new URLSearchParams()];
  for (const [name, value] of url.searchParams) {
    const number = /^params\[(.+)\]$/.exec(name)?.[1];
    if (name === 'secret' || name === 'api_secret') secrets.set(name, value);
    else if (number) (body.params ??= {})[number] = value;
    else body[name] = value;
  }
  const headers = { ...init?.headers, 'content-type': 'application/json' };
  const address = `${url.origin}${url.pathname}?${secrets}`;
  return fetch(address, { ...init, method: 'POST', headers, body: JSON.stringify(body) });
}

for (const liveSse of [false, true]) {
  test(`ten thousand values by POST, live by ${liveSse ? 'events' : 'long-poll'}`, LIMIT, async (t) => {
    const things = await table('id int PRIMARY KEY, letter text');
    await sql(`INSERT INTO ${things} SELECT n, 'a' FROM generate_series(1, 20000) n`);
    const values = `{${Array.from({ length: 10_000 }, (_, at) => 2 * at + 1)}}`;
    const params = { table: things, where: 'id = ANY($1)', params: { 1: values } };
    const follower = follow(t, { url, params, liveSse, fetchClient });
    await follower.upToDate();
    assert.equal(follower.rows.length, 10_000);
    await sql(`UPDATE ${things} SET letter = 'b' WHERE id IN (2, 3)`);
    await follower.reads('the change', [['update', { id: 3, letter: 'b' }]], 10_000);
  });
}
