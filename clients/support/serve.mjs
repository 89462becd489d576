// Web server for the bundled page of `browser/`. Its origin differs from that of the program.
import { once } from 'node:events';
import http from 'node:http';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const HTML =
  '<!doctype html><meta charset="utf-8"><title>rows</title><div id="root"></div><script src="/page.js"></script>';

/** Bundles the page and serves it until the tests end. Returns its URL. */
export async function serve(test) {
  const script = await bundle('page.jsx');
  const server = http.createServer((request, response) => {
    const [type, body] = request.url.startsWith('/page.js') ? ['text/javascript', script] : ['text/html', HTML];
    response.writeHead(200, { 'content-type': `${type}; charset=utf-8` });
    response.end(body);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  test.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}/`;
}

async function bundle(name) {
  const { outputFiles } = await build({
    entryPoints: [fileURLToPath(new URL(`../browser/${name}`, import.meta.url))],
    bundle: true,
    write: false,
    format: 'iife',
    jsx: 'automatic',
    define: { 'process.env.NODE_ENV': '"production"' },
    logLevel: 'silent',
  });
  return outputFiles[0].text;
}
