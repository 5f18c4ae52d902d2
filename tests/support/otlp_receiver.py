"""A collector that takes OTLP over HTTP as protobuf, and keeps what it was sent."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Received:
    """The bytes of every export by path, and what they mean."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[tuple[str, bytes]] = []

    @property
    def everything(self) -> bytes:
        """All bytes that arrived."""
        return b"".join(body for _, body in self.bodies)

    @property
    def spans(self) -> list[Span]:
        """Every span, in the order of arrival."""
        return [
            span
            for export in self._exports("/v1/traces")
            for resource in ExportTraceServiceRequest.FromString(export).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resources(self) -> list[Resource]:
        """Who sent the metrics."""
        return [
            resource.resource
            for export in self._exports("/v1/metrics")
            for resource in ExportMetricsServiceRequest.FromString(export).resource_metrics
        ]

    @property
    def metrics(self) -> dict[str, Metric]:
        """The last state of every metric."""
        return {
            metric.name: metric
            for export in self._exports("/v1/metrics")
            for resource in ExportMetricsServiceRequest.FromString(export).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def _exports(self, path: str) -> list[bytes]:
        return [body for at, body in self.bodies if at == path]


def attributes(pairs: "Iterator[KeyValue] | list[KeyValue]") -> dict[str, object]:
    """Attributes as plain values."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextlib.contextmanager
def receiving() -> Iterator[Received]:
    """A collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.bodies.append((self.path, body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received = Received(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
