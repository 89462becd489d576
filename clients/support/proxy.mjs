// A proxy that stands before the program and, when told, answers in its place or cuts an event stream.
import { once } from 'node:events';
import http from 'node:http';

/** Starts one. `refuse` makes it answer the next requests itself, `cut` ends event streams; all others pass, and stream. */
export async function startProxy(test, target) {
  const planned = [];
  const refused = [];
  const cuts = [];
  const server = http.createServer((request, response) => {
    const refusal = planned.shift();
    if (refusal) {
      refused.push({ url: request.url, at: performance.now(), status: refusal.status });
      response.writeHead(refusal.status, refusal.headers);
      response.end(refusal.body);
      return;
    }
    const { method, headers } = request;
    const onward = http.request(new URL(request.url, target), { method, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.rawHeaders);
      answer.pipe(response);
      if (!answer.headers['content-type']?.startsWith('text/event-stream')) return;
      let left = cuts.shift() ?? Infinity;
      answer.on('data', ({ length }) => {
        left -= length;
        if (left <= 0) response.destroy();
      });
    });
    onward.on('error', () => response.destroy());
    response.on('close', () => onward.destroy());
    request.pipe(onward);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  test.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return {
    shapes: `http://127.0.0.1:${server.address().port}/v1/shape`,
    refused,
    /** The next `times` requests get this answer. */
    refuse(times, { status, headers = {}, body = '' }) {
      for (let time = 0; time < times; time += 1) planned.push({ status, headers, body });
    },
    /** The next `times` event streams are cut after about so many bytes of their bodies. */
    cut(times, bytes) {
      for (let time = 0; time < times; time += 1) cuts.push(bytes);
    },
  };
}
