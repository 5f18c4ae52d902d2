"""Traces, logs and the timing of stages; exporters run only when an endpoint is set."""

import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import structlog
from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_ON
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer

from service import __version__
from service.instruments import INFO
from service.metrics import Histogram
from service.otlp import EXPORT_SECONDS, MetricExport
from service.settings import Settings

StageStatus = Literal["ok", "timeout", "error", "skipped"]

_tracer = trace.get_tracer("braid", __version__)
log: structlog.stdlib.BoundLogger = structlog.get_logger("braid")


class Stage:
    """One step of a request while it runs: its outcome, its time in ms and what it reports."""

    __slots__ = (
        "_began",
        "_durations",
        "_kind",
        "_name",
        "_span",
        "_token",
        "error",
        "facts",
        "ms",
        "status",
    )

    def __init__(
        self,
        name: str,
        durations: Histogram | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
    ) -> None:
        self.status: StageStatus = "ok"
        self.ms = 0.0
        self.facts: dict[str, Any] = {}
        self.error: str | None = None
        """Class of what made it fail."""
        self._name = name
        self._durations = durations
        self._kind = kind

    def __enter__(self) -> "Stage":
        self._span = _child_span(self._name, self._kind)
        if self._span is not None:
            self._token = context.attach(trace.set_span_in_context(self._span))
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        seconds = time.perf_counter() - self._began
        self.ms = seconds * 1000
        if kind is not None:
            self.error = kind.__name__
            self.status = "timeout" if issubclass(kind, TimeoutError) else "error"
        if self._durations is not None:
            self._durations.record(seconds, self._name, self.status)
        if self._span is not None:
            context.detach(self._token)
            self._describe(self._span)
            self._span.end()

    def _describe(self, span: trace.Span) -> None:
        span.set_attribute("braid.outcome", self.status)
        if self.error is not None:
            span.set_attribute("error.type", self.error)
        for name, fact in self.facts.items():
            if fact is not None:
                span.set_attribute(f"braid.{name}", fact)


def stage(
    name: str,
    durations: Histogram | None = None,
    *,
    kind: trace.SpanKind = trace.SpanKind.INTERNAL,
) -> Stage:
    """Time a step and give it a span; a failure marks both and goes on its way.

    `durations` has the labels stage and outcome.
    """
    return Stage(name, durations, kind)


def _child_span(name: str, kind: trace.SpanKind) -> trace.Span | None:
    """A span below the current one; none where nobody would receive it."""
    current = trace.get_current_span()
    if current.get_span_context().is_valid and not current.is_recording():
        return None
    return _tracer.start_span(f"braid.{name}", kind=kind)


class Telemetry:
    """What is exported; without an endpoint nothing is."""

    def __init__(self, endpoint: str | None, role: str) -> None:
        resource = Resource.create(
            {"service.name": "braid", "service.version": __version__, "braid.role": role}
        )
        # Spans that nobody receives are not recorded; they still give the logs their ids.
        self._spans = TracerProvider(
            sampler=DEFAULT_ON if endpoint else ALWAYS_OFF, resource=resource
        )
        self._metrics: MetricExport | None = None
        if endpoint:
            base = endpoint.rstrip("/")
            exporter = OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=EXPORT_SECONDS)
            self._spans.add_span_processor(BatchSpanProcessor(exporter))
            self._metrics = MetricExport(f"{base}/v1/metrics", resource)
        trace.set_tracer_provider(self._spans)
        INFO.set(1, __version__, role)

    def shutdown(self) -> None:
        """Export what is left, and stop."""
        if self._metrics is not None:
            self._metrics.shutdown()
        self._spans.shutdown()


def configure_telemetry(settings: Settings, role: str = "all") -> Telemetry:
    """Install JSON logs on stdout and, with an endpoint, the export of spans and metrics."""
    _configure_logs(settings.log_level)
    return Telemetry(settings.otlp_endpoint, role)


def _add_trace_ids(
    _logger: Any, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    current = trace.get_current_span().get_span_context()
    if current.is_valid:
        event["trace_id"] = f"{current.trace_id:032x}"
        event["span_id"] = f"{current.span_id:016x}"
    return event


class JsonLines(logging.Formatter):
    """What libraries and the server log, in the form of all other lines."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON; without a traceback, which may quote values."""
        event: structlog.typing.EventDict = {
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": datetime.fromtimestamp(record.created, UTC),
        }
        if record.exc_info and record.exc_info[0] is not None:
            event["error"] = record.exc_info[0].__name__
        return msgspec.json.encode(_add_trace_ids(None, "", event)).decode()


def _configure_logs(level: str) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_trace_ids,
            # Never the values of local variables: they hold texts and keys.
            ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(
                serializer=lambda event, **_: msgspec.json.encode(event).decode()
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
    )
    # Libraries log through the standard module: warnings only, in the same form.
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[lines], force=True)
