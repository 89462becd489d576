// Database and program of one test file; both are removed after its last test.
import { after } from 'node:test';
import { startForebay } from './forebay.mjs';
import { makeDatabase } from './postgres.mjs';

/** Creates a database and starts the program. Takes the options of `startForebay`. */
export async function startTestServer(purpose, options = {}) {
  const database = await makeDatabase(purpose);
  try {
    const forebay = await startForebay({ database, ...options });
    after(async () => {
      await forebay.end();
      await database.end();
      // Sometimes a timer, probably of a published client, keeps the process alive although all tests have ended.
      setTimeout(() => process.exit(), 2_000).unref();
    });
    const { sql, text, table, transaction } = database;
    return { database, forebay, sql, text, table, transaction };
  } catch (error) {
    await database.end();
    throw error;
  }
}
