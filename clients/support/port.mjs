// Free ports on loopback.
//
// Never from the ephemeral range: while a server is down, a client that retries could get the server's port as its own
// local port, connect to itself, and block the restart of the server.
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:net';

const LOWEST = 10_000;
const PROBES = 100;

/** Ports that the caller reserved for this run. */
const RESERVED = (process.env.FOREBAY_TEST_PORTS ?? '').split(',').filter(Boolean).map(Number);

/** Returns a port of 127.0.0.1: one of `FOREBAY_TEST_PORTS`, or one that was free at the time of the check. */
export async function freePort() {
  if (RESERVED.length > 0) return RESERVED.shift();
  const highest = await ephemeralStart();
  for (let probe = 0; probe < PROBES; probe += 1) {
    const port = randomInt(LOWEST, highest);
    if (await isFree(port)) return port;
  }
  throw new Error(`none of ${PROBES} ports between ${LOWEST} and ${highest} was free`);
}

async function isFree(port) {
  const server = createServer().listen(port, '127.0.0.1');
  try {
    await once(server, 'listening');
  } catch {
    return false;
  }
  server.close();
  await once(server, 'close');
  return true;
}

async function ephemeralStart() {
  const range = await readFile('/proc/sys/net/ipv4/ip_local_port_range', 'utf8').catch(() => '32768');
  return Number.parseInt(range, 10);
}
