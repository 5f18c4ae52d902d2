"""Traces, logs and the timing of stages; exporters run only when an endpoint is set."""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import structlog
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_ON
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer

from service import __version__
from service.settings import Settings

StageStatus = Literal["ok", "timeout", "error", "skipped"]

_tracer = trace.get_tracer("braid", __version__)
log: structlog.stdlib.BoundLogger = structlog.get_logger("braid")


class Stage:
    """One step of a request while it runs: its outcome, its time in ms and what it reports."""

    def __init__(self) -> None:
        self.status: StageStatus = "ok"
        self.ms = 0.0
        self.facts: dict[str, Any] = {}


@contextlib.contextmanager
def stage(name: str) -> Iterator[Stage]:
    """Time a step and give it a span; a failure marks both and is raised again."""
    current = Stage()
    started = time.perf_counter()
    with _tracer.start_as_current_span(f"braid.{name}", record_exception=False) as span:
        try:
            yield current
        except TimeoutError:
            current.status = "timeout"
            raise
        except BaseException:
            current.status = "error"
            raise
        finally:
            current.ms = (time.perf_counter() - started) * 1000
            span.set_attribute("braid.outcome", current.status)


def configure_telemetry(settings: Settings) -> TracerProvider:
    """Install JSON logs on stdout and, with an endpoint, the export of spans."""
    _configure_logs(settings.log_level)
    # Spans that nobody receives are not recorded; they still give the logs their ids.
    provider = TracerProvider(
        sampler=DEFAULT_ON if settings.otlp_endpoint else ALWAYS_OFF,
        resource=Resource.create({"service.name": "braid"}),
    )
    if settings.otlp_endpoint:
        endpoint = settings.otlp_endpoint.rstrip("/") + "/v1/traces"
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)
    return provider


def _add_trace_ids(
    _logger: Any, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


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
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, force=True)
