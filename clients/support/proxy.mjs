// HTTP proxy in front of the program that can refuse requests and cut event streams.
import { once } from 'node:events';
import http from 'node:http';

/** Starts a proxy. `refuse` makes it respond to the next requests itself, `cut` cuts event streams. */
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
    const upstream = http.request(new URL(request.url, target), { method, headers }, (upstreamResponse) => {
      response.writeHead(upstreamResponse.statusCode, upstreamResponse.rawHeaders);
      upstreamResponse.pipe(response);
      if (!upstreamResponse.headers['content-type']?.startsWith('text/event-stream')) return;
      let left = cuts.shift() ?? Infinity;
      upstreamResponse.on('data', ({ length }) => {
        left -= length;
        if (left <= 0) response.destroy();
      });
    });
    upstream.on('error', () => response.destroy());
    response.on('close', () => upstream.destroy());
    request.pipe(upstream);
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
    /** Responds to the next `times` requests with this response. */
    refuse(times, { status, headers = {}, body = '' }) {
      for (let time = 0; time < times; time += 1) planned.push({ status, headers, body });
    },
    /** Cuts the next `times` event streams after about `bytes` bytes of their bodies. */
    cut(times, bytes) {
      for (let time = 0; time < times; time += 1) cuts.push(bytes);
    },
  };
}
