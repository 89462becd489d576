// useShape of @electric-sql/react, in headless Chromium, on a page of another origin than the server.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { SETTING } from '../support/forebay.mjs';
import { becomes, LIMIT, serve, startBrowser, startTestServer } from '../support.mjs';

const { forebay, sql, table } = await startTestServer('react', { env: { [SETTING.allowDeletion]: 'true' } });
const url = forebay.shapes;
const origin = await serve({ after });
const browser = await startBrowser({ after });

async function open() {
  const page = await browser.open(origin);
  const read = () => page.run('() => window.read()');
  return {
    page,
    show: (options) => page.run('(options) => window.show(options)', options),
    subset: (options, params) => page.run('(options, params) => window.subset(options, params)', options, params),
    async shows(what, rows) {
      try {
        await becomes(what, { state: 'ready', rows }, read);
      } catch (error) {
        error.message += `\nmessages of the page: ${page.messages.join('\n')}`;
        throw error;
      }
    },
  };
}

for (const liveSse of [false, true]) {
  test(`a component shows the rows and their changes, liveSse: ${liveSse}`, LIMIT, async () => {
    const things = await table('id int PRIMARY KEY, title text', `(1, 'one'), (2, 'two')`);
    const { show, shows } = await open();
    await show({ url, params: { table: things }, liveSse });
    await shows('the rows', ['1: one', '2: two']);
    await sql(`INSERT INTO ${things} VALUES (3, 'drei')`);
    await shows('the insert', ['1: one', '2: two', '3: drei']);
    await sql(`UPDATE ${things} SET title = 'tres' WHERE id = 3`);
    await shows('the update', ['1: one', '2: two', '3: tres']);
    await sql(`DELETE FROM ${things} WHERE id = 1`);
    await shows('the delete', ['2: two', '3: tres']);
  });
}

test('a component with new options shows the other shape', LIMIT, async () => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a'), (2, 'b')`);
  const { show, shows } = await open();
  const params = { table: things, where: 'id = $1' };
  await show({ url, params: { ...params, params: ['1'] } });
  await shows('the first', ['1: a']);
  await show({ url, params: { ...params, params: ['2'] } });
  await shows('the other', ['2: b']);
  await sql(`UPDATE ${things} SET title = 'c'`);
  await shows('its change', ['2: c']);
});

test('a page continues after a 409', LIMIT, async () => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a')`);
  const { show, shows } = await open();
  await show({ url, params: { table: things } });
  await shows('the row', ['1: a']);
  await sql(`TRUNCATE ${things}; INSERT INTO ${things} VALUES (2, 'b')`);
  await shows('the row after it', ['2: b']);
});

test('a page continues after a restart of the program', LIMIT, async () => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a')`);
  const { show, shows } = await open();
  await show({ url, params: { table: things } });
  await shows('the row', ['1: a']);
  await forebay.restart();
  await sql(`INSERT INTO ${things} VALUES (2, 'b')`);
  await shows('the row after it', ['1: a', '2: b']);
});

test('a reloaded page shows the current rows, whatever the cache holds', LIMIT, async () => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a')`);
  const { page, show, shows } = await open();
  await show({ url, params: { table: things } });
  await shows('the row', ['1: a']);
  await sql(`UPDATE ${things} SET title = 'b'`);
  await shows('the change', ['1: b']);
  await page.go(origin);
  await show({ url, params: { table: things } });
  await shows('the change after the reload', ['1: b']);
  const deleted = await fetch(`${url}?table=${things}`, { method: 'DELETE' });
  assert.equal(deleted.status, 202);
  await sql(`UPDATE ${things} SET title = 'c'`);
  await page.go(origin);
  await show({ url, params: { table: things } });
  await shows('the rows after the shape was deleted', ['1: c']);
});

test('the browser allows a subset by POST with headers of the app', LIMIT, async () => {
  const things = await table('id int PRIMARY KEY, title text', `(1, 'a'), (2, 'b')`);
  const { subset } = await open();
  const options = { url, params: { table: things }, headers: { Authorization: 'Bearer token', 'X-App': 'test' } };
  const params = { where: 'id = $1', params: { 1: '2' }, method: 'POST' };
  assert.deepEqual(await subset(options, params), [{ id: 2, title: 'b' }]);
});
