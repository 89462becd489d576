"""Opens a WebSocket through the gate: `ws_drive.py URL echo|hold [CERTIFICATE]`.

`echo` sends messages of many sizes, checks each echo and closes. `hold` prints `OPEN`, and waits for the end. Both print
how the connection ended, as JSON. If the upgrade is refused, the status is printed.
"""

import asyncio
import json
import ssl
import sys

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

url, mode = sys.argv[1:3]
context = None
if len(sys.argv) > 3:
    context = ssl.create_default_context(cafile=sys.argv[3])

MESSAGES = ["text", "", b"\x00\xff", "long " * 100_000, bytes(range(256)) * 32_768]  # the last one has 8 MiB


async def echo(connection):
    for message in MESSAGES:
        await connection.send(message)
        assert await connection.recv() == message, f"the echo of {len(message)} differs"
    # Both directions at once: the gate must read from both sides while it waits for either.
    sending = asyncio.gather(*(connection.send(MESSAGES[-1]) for _ in range(4)))
    for _ in range(4):
        assert await connection.recv() == MESSAGES[-1]
    await sending
    await (await connection.ping())
    await connection.close(3001, "done")


async def main():
    try:
        async with connect(url, ssl=context, proxy=None, max_size=None) as connection:
            if mode == "echo":
                await echo(connection)
            else:
                print("OPEN", flush=True)
                try:
                    await connection.recv()
                except ConnectionClosed:
                    pass
        print(json.dumps({"code": connection.close_code, "reason": connection.close_reason}), flush=True)
    except InvalidStatus as refusal:
        print(json.dumps({"status": refusal.response.status_code, "body": refusal.response.body.decode()}), flush=True)


asyncio.run(main())
