"""OpenTelemetry collector: receives OTLP over HTTP, decodes it with the official messages, and returns it as JSON.

`GET /received` returns every span, the latest state of every metric, and every text, in which tests search for
secrets. Texts are decoded: the bytes of ids, times and numbers may contain any short text by chance.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

lock = threading.Lock()
spans: list[dict] = []
metrics: dict[str, dict] = {}
texts: set[str] = set()
keys: set[str] = set()


def plain(value):
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None


def attributes(pairs):
    return {pair.key: plain(pair.value) for pair in pairs}


def take_texts(message):
    for field, value in message.ListFields():
        if isinstance(value, str):
            texts.add(value)
        elif isinstance(value, bytes):
            if not field.name.endswith("_id"):
                texts.add(value.decode("latin-1"))
        elif field.message_type:
            for one in [value] if hasattr(value, "ListFields") else value:
                take_texts(one)


def take_traces(body: bytes):
    message = ExportTraceServiceRequest.FromString(body)
    take_texts(message)
    for of_resource in message.resource_spans:
        resource = attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                spans.append(
                    {
                        "trace": span.trace_id.hex(),
                        "id": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "name": span.name,
                        "kind": span.kind,
                        "start_ns": span.start_time_unix_nano,
                        "end_ns": span.end_time_unix_nano,
                        "attributes": attributes(span.attributes),
                        "status": span.status.code,
                        "resource": resource,
                        "scope": of_scope.scope.name,
                    }
                )


def point(kind: str, one):
    shown = {
        "attributes": attributes(one.attributes),
        "start_ns": one.start_time_unix_nano,
        "time_ns": one.time_unix_nano,
    }
    if kind == "histogram":
        buckets = {"count": one.count, "sum": one.sum, "bounds": list(one.explicit_bounds), "buckets": list(one.bucket_counts)}
        return shown | buckets
    return shown | {"value": getattr(one, one.WhichOneof("value"))}


def take_metrics(body: bytes):
    message = ExportMetricsServiceRequest.FromString(body)
    take_texts(message)
    for of_resource in message.resource_metrics:
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                metrics[metric.name] = {
                    "kind": kind,
                    "description": metric.description,
                    "temporality": getattr(data, "aggregation_temporality", None),
                    "monotonic": getattr(data, "is_monotonic", None),
                    "points": [point(kind, one) for one in data.data_points],
                    "resource": attributes(of_resource.resource.attributes),
                }


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        takes = {"/v1/traces": take_traces, "/v1/metrics": take_metrics}.get(self.path)
        if takes is None or self.headers["Content-Type"] != "application/x-protobuf":
            return self.answer(400, b"")
        with lock:
            takes(body)
            keys.add(self.headers["api-key"] or "")
        self.answer(200, b"")

    def do_GET(self):
        with lock:
            received = {"spans": spans, "metrics": metrics, "texts": sorted(texts), "keys": sorted(keys)}
            text = json.dumps(received).encode()
        self.answer(200, text)

    def answer(self, status: int, body: bytes):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.daemon_threads = True
    print("PORT", server.server_address[1], flush=True)
    server.serve_forever()
