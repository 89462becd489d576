"""Drives a stream through the gate with httpx: `drive.py BASE NAME complete|leave`."""

import json
import sys

import httpx

base, name, mode = sys.argv[1:4]
headers = {"X-Thread-ID": f"thread-{name}"}
numbers = []
with httpx.Client(base_url=base, timeout=20) as streaming, httpx.Client(base_url=base, timeout=20) as other:
    query = {"name": name, "tokens": 5}
    with streaming.stream("POST", "/api/v1/stream", json=query, headers=headers) as response:
        assert response.status_code == 200, response.status_code
        assert response.headers["content-type"].startswith("text/event-stream"), response.headers
        assert response.headers["x-thread-id"] == f"thread-{name}", response.headers
        for line in response.iter_lines():
            if line == "data: [DONE]":
                break
            if line.startswith("data: "):
                number = json.loads(line[len("data: "):])["token"]
                numbers.append(number)
                if mode == "leave" and number == 3:
                    break  # leaving the block closes the connection during the stream
                other.post(f"/ack/{name}/{number}").raise_for_status()
print(json.dumps(numbers))
