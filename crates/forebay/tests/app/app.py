"""Streaming service for the tests of the gate: FastAPI on uvicorn, tokens as server-sent events.

It sends event n+1 only after the client has acknowledged event n with another request. So a client that gets all events
proves, without a clock, that no proxy buffered them.
"""

import asyncio
import json
import sys
import time

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel

app = FastAPI()


class Run:
    """State of one stream."""

    def __init__(self):
        self.sent = 0
        self.acknowledged = 0
        self.moved = asyncio.Event()
        self.end = None  # how it ended: "complete" or "cancelled"
        self.report = None  # tokens that a browser reports

    def show(self):
        return {"sent": self.sent, "acknowledged": self.acknowledged, "end": self.end, "report": self.report}


runs: dict[str, Run] = {}


def run_of(name: str) -> Run:
    return runs.setdefault(name, Run())


async def tokens(run: Run, count: int):
    try:
        for number in range(1, count + 1):
            run.sent = number
            yield f"id: {number}\ndata: {json.dumps({'token': number, 'sent_at': time.time()})}\n\n"
            while run.acknowledged < number:
                run.moved.clear()
                await run.moved.wait()
        yield "data: [DONE]\n\n"
        run.end = "complete"
    finally:
        run.end = run.end or "cancelled"


def stream(name: str, count: int, thread: str) -> StreamingResponse:
    headers = {"X-Thread-ID": thread, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(tokens(run_of(name), count), media_type="text/event-stream", headers=headers)


class Query(BaseModel):
    name: str
    tokens: int = 5


@app.post("/api/v1/stream")
async def create_stream(request: Request, query: Query):
    return stream(query.name, query.tokens, request.headers.get("X-Thread-ID", ""))


@app.get("/live/{name}")
async def live(request: Request, name: str, tokens: int = 5):
    return stream(name, tokens, request.headers.get("X-Thread-ID", ""))


@app.post("/ack/{name}/{number}")
async def acknowledge(name: str, number: int):
    run = run_of(name)
    run.acknowledged = max(run.acknowledged, number)
    run.moved.set()
    return run.show()


@app.get("/state/{name}")
async def state(name: str):
    return run_of(name).show()


@app.post("/report/{name}")
async def report(name: str, request: Request):
    run_of(name).report = await request.json()
    return {}


@app.get("/slow-head/{name}")
async def slow_head(request: Request, name: str):
    """Never responds; records the disconnect of the client."""
    run = run_of(name)
    run.sent = 1
    while (await request.receive())["type"] != "http.disconnect":
        pass
    run.end = "cancelled"


@app.get("/headers")
async def headers(request: Request):
    return [[name.decode(), value.decode("latin-1")] for name, value in request.scope["headers"]]


PAGE = """<!doctype html><meta charset="utf-8"><title>stream</title><script>
const [name, leaveAfter] = [location.pathname.split('/').pop(), Number(new URLSearchParams(location.search).get('leave'))];
const seen = [];
const post = (path, body) => fetch(path, {method: 'POST', body: JSON.stringify(body ?? null)});
const source = new EventSource(`/live/${name}`);
source.onmessage = async event => {
  if (event.data === '[DONE]') { source.close(); return post(`/report/${name}`, seen); }
  seen.push(JSON.parse(event.data).token);
  if (seen.length === leaveAfter) { source.close(); return post(`/report/${name}`, seen); }
  await post(`/ack/${name}/${seen.at(-1)}`);
};
source.onerror = () => { source.close(); post(`/report/${name}`, ['error', ...seen]); };
</script>"""


@app.get("/page/{name}")
async def page(name: str):
    return HTMLResponse(PAGE)


class PortPrintingServer(uvicorn.Server):
    """Prints its port once it listens."""

    async def startup(self, sockets=None):
        await super().startup(sockets=sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        print(f"PORT {port}", flush=True)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    PortPrintingServer(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")).run()
