// Peer of the race `fanout`: sends each inserted row to all clients, as a server-sent event.
import http from 'node:http';
import { LogicalReplicationService, PgoutputPlugin } from 'pg-logical-replication';

const [connectionString, port] = process.argv.slice(2);
const streams = new Set();
const service = new LogicalReplicationService({ connectionString });
service.on('data', (lsn, { tag, new: row }) => {
  if (tag === 'insert') for (const stream of streams) stream.write(`data: ${JSON.stringify(row, (_, value) => (typeof value === 'bigint' ? String(value) : value))}\n\n`);
});
service.subscribe(new PgoutputPlugin({ protoVersion: 1, publicationNames: ['news'] }), 'news');

const server = http.createServer((request, response) => {
  response.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders();
  streams.add(response.on('close', () => streams.delete(response)));
});
service.once('start', () => server.listen(Number(port), '127.0.0.1'));
