"""A small OTLP/HTTP receiver that keeps what it is sent.

Invariant: loopback only; leaving the context ends it. Used by the tests of the exporters.
"""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """What was received."""

    def __init__(self) -> None:
        self.traces: list[Any] = []
        self.metrics: list[Any] = []
        self.status = 200
        """What it answers."""
        self.reason: str | None = None
        """What it says to that; None: what HTTP says."""
        self.hold = threading.Event()
        """Requests wait until this is set."""
        self.hold.set()
        self.url = ""

    def take(self, path: str, body: bytes) -> None:
        """Keep one message."""
        if path.endswith("/v1/traces"):
            traces = ExportTraceServiceRequest()
            traces.ParseFromString(body)
            self.traces.append(traces)
        else:
            metrics = ExportMetricsServiceRequest()
            metrics.ParseFromString(body)
            self.metrics.append(metrics)

    def spans(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Return the spans of a name, each with the attributes of its resource."""
        return [
            (attributes(resource.resource.attributes), span)
            for message in list(self.traces)
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if span.name == name
        ]

    def latest(self) -> dict[str, list[Any]]:
        """Return the metrics of the latest report by name, those of all resources together."""
        found: dict[str, list[Any]] = {}
        for resource in self.metrics[-1].resource_metrics if self.metrics else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found.setdefault(metric.name, []).append(metric)
        return found


def attributes(pairs: Any) -> dict[str, Any]:
    """Return OTLP attributes as a plain dictionary."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a receiver on a free port."""
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            kept.hold.wait(30.0)
            if kept.status == 200:
                kept.take(self.path, body)
            self.send_response(kept.status, kept.reason)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    kept.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        kept.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
