// What a file of tests stands on: a database, and the program before it, until the file's last test is done.
import { after } from 'node:test';
import { startForebay } from './forebay.mjs';
import { makeDatabase } from './postgres.mjs';

/** Makes both. What `startForebay` takes, this takes too. */
export async function world(purpose, how = {}) {
  const database = await makeDatabase(purpose);
  try {
    const forebay = await startForebay({ database, ...how });
    after(async () => {
      await forebay.end();
      await database.end();
      // Now and then something, most likely a published client's timer, keeps the process although all tests have ended.
      setTimeout(() => process.exit(), 2_000).unref();
    });
    const { sql, text, table, transaction } = database;
    return { database, forebay, sql, text, table, transaction };
  } catch (error) {
    await database.end();
    throw error;
  }
}
