"""Metrics to an OpenTelemetry collector: OTLP over HTTP from a thread of its own."""

import threading
import time
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from service import __version__
from service.metrics import Instrument, Point, read_all

INTERVAL_SECONDS = 15.0
EXPORT_SECONDS = 2.0
"""A collector that does not answer in time holds up the end of a process at most this long."""
CUMULATIVE = AggregationTemporality.CUMULATIVE


class MetricExport:
    """Sends all metrics every `interval` seconds, and once more at the end."""

    def __init__(
        self, endpoint: str, resource: Resource, *, interval: float = INTERVAL_SECONDS
    ) -> None:
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)
        self._resource = resource
        self._interval = interval
        self._since = time.time_ns()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Send the last values and stop."""
        self._stopping.set()
        self._thread.join(EXPORT_SECONDS)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            self._export()
        self._export()

    def _export(self) -> None:
        metrics = [
            _metric(one, points, self._since, time.time_ns())
            for one, points in read_all()
            if points
        ]
        scope = ScopeMetrics(InstrumentationScope("braid", __version__), metrics, "")
        self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))


def _metric(instrument: Instrument, points: Sequence[Point], since: int, now: int) -> Metric:
    data: Sum | Gauge | Histogram
    if instrument.kind == "histogram":
        data = Histogram([_histogram(instrument, one, since, now) for one in points], CUMULATIVE)
    else:
        numbers = [
            NumberDataPoint(
                attributes=_attributes(instrument, one),
                start_time_unix_nano=since,
                time_unix_nano=now,
                value=one.value,
            )
            for one in points
        ]
        counts = instrument.kind == "counter"
        data = Sum(numbers, CUMULATIVE, is_monotonic=True) if counts else Gauge(numbers)
    return Metric(instrument.name, instrument.description, instrument.unit, data)


def _histogram(instrument: Instrument, point: Point, since: int, now: int) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=_attributes(instrument, point),
        start_time_unix_nano=since,
        time_unix_nano=now,
        count=sum(point.counts),
        sum=point.value,
        bucket_counts=point.counts,
        explicit_bounds=instrument.bounds,
        min=None,  # type: ignore[arg-type] # not kept: the protocol lets them out
        max=None,  # type: ignore[arg-type]
    )


def _attributes(instrument: Instrument, point: Point) -> dict[str, str]:
    return dict(zip(instrument.labels, point.labels, strict=True))
