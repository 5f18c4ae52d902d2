"""Around every request: a span, one access line, and headers that every answer carries."""

import time
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Scope, Send
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service import __version__
from service.api.access_log import AccessLog
from service.instruments import HTTP_ACTIVE, HTTP_DURATION

METHODS = frozenset({"GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS"})
HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]

_tracer = trace.get_tracer("braid.http", __version__)
_propagator = TraceContextTextMapPropagator()


class Observed:
    """Wraps the router, so that requests that match no route are seen too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log = AccessLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; names, queries and bodies go nowhere but to the handler."""
        method = scope.get("method")
        if method is None:  # not HTTP
            await self._app(scope, receive, send)
            return
        method = method if method in METHODS else "_OTHER"
        started = time.perf_counter()
        answered = _Answered(send)
        HTTP_ACTIVE.add(1)
        with _tracer.start_as_current_span(
            method,
            context=_propagator.extract(_trace_headers(scope)),
            kind=SpanKind.SERVER,
            record_exception=False,
        ) as span:
            try:
                await self._app(scope, receive, answered.send)
            finally:
                route = scope.get("path_template") or "unmatched"
                _describe(span, method, route, answered.status)
                seconds = time.perf_counter() - started
                HTTP_ACTIVE.add(-1)
                HTTP_DURATION.record(seconds, method, route, str(answered.status))
                self._log.write(method, route, answered.status, seconds)


class _Answered:
    """Passes the answer on, adds the common headers and remembers the status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 500

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = {name.lower() for name, _ in message["headers"]}
            added = [header for header in HEADERS if header[0] not in given]
            message["headers"] = [*message["headers"], *added]
        await self._send(message)


def _trace_headers(scope: Any) -> dict[str, str]:
    wanted = (b"traceparent", b"tracestate")
    return {
        name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in wanted
    }


def _describe(span: trace.Span, method: str, route: str, status: int) -> None:
    span.update_name(f"{method} {route}")
    span.set_attribute("http.request.method", method)
    span.set_attribute("http.route", route)
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))
