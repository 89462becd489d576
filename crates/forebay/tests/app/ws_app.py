"""WebSocket service for the tests of the gate, with the package `websockets`: it echoes every message.

`GET /page` returns a page that opens a WebSocket, `/open` returns the number of open ones, `/refused` is always a 403.
"""

import asyncio
import http

from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response

PAGE = b"""<!doctype html><meta charset="utf-8"><title>socket</title><script>
const socket = new WebSocket(`ws://${location.host}/echo`);
socket.binaryType = 'arraybuffer';
const large = 'x'.repeat(1 << 20);
const sent = ['one', new Uint8Array([0, 255, 128]), '', large];
const received = [];
window.report = null;
socket.onopen = () => socket.send(sent[0]);
socket.onmessage = ({data}) => {
  received.push(typeof data === 'string' ? (data === large ? 'large' : data) : [...new Uint8Array(data)]);
  if (received.length < sent.length) socket.send(sent[received.length]);
  else if (!location.search) socket.close(3001, 'done');
  else window.report = {received};
};
socket.onclose = ({code, reason, wasClean}) => { window.report = {received, code, reason, wasClean}; };
</script>"""

open_sockets = 0


async def echo(connection):
    global open_sockets
    open_sockets += 1
    try:
        async for message in connection:
            await connection.send(message)
    except ConnectionClosed:
        pass
    finally:
        open_sockets -= 1


def process_request(connection, request):
    path = request.path.split("?")[0]
    if path == "/page":
        headers = Headers({"Content-Type": "text/html", "Content-Length": str(len(PAGE)), "Connection": "close"})
        return Response(200, "OK", headers, PAGE)
    if path == "/open":
        return connection.respond(http.HTTPStatus.OK, str(open_sockets))
    if path == "/refused":
        return connection.respond(http.HTTPStatus.FORBIDDEN, "not here")
    return None


async def main():
    async with serve(echo, "127.0.0.1", 0, process_request=process_request, max_size=None) as server:
        print("PORT", server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
