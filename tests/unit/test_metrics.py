"""Recording is exact and bounded, and the text format says it as Prometheus reads it."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import metrics
from service.metrics import (
    MAX_SERIES,
    OTHER,
    Counter,
    Gauge,
    Histogram,
    observing,
    prometheus_text,
)


@pytest.fixture(autouse=True)
def only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "INSTRUMENTS", [])
    monkeypatch.setattr(metrics, "_observers", [])


def test_a_counter_in_the_text_format() -> None:
    counter = Counter("braid.things", "", "Things that were seen", ("kind.of",))
    counter.add(1, "a")
    counter.add(2.5, "a")
    counter.add(1, 'odd "\\\n')
    assert prometheus_text() == (
        "# HELP braid_things_total Things that were seen\n"
        "# TYPE braid_things_total counter\n"
        'braid_things_total{kind_of="a"} 3.5\n'
        'braid_things_total{kind_of="odd \\"\\\\\\n"} 1.0\n'
    )


def test_a_histogram_in_the_text_format() -> None:
    histogram = Histogram("braid.wait", "How long", ("pool",), bounds=(0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.record(seconds, "read")
    assert prometheus_text() == (
        "# HELP braid_wait_seconds How long\n"
        "# TYPE braid_wait_seconds histogram\n"
        'braid_wait_seconds_bucket{pool="read",le="0.1"} 2\n'
        'braid_wait_seconds_bucket{pool="read",le="1.0"} 3\n'
        'braid_wait_seconds_bucket{pool="read",le="+Inf"} 4\n'
        'braid_wait_seconds_sum{pool="read"} 7.65\n'
        'braid_wait_seconds_count{pool="read"} 4\n'
    )


def test_a_gauge_is_asked_for_when_it_is_read() -> None:
    gauge = Gauge("braid.size", "By", "How large")
    with observing(lambda: gauge.set(7)):
        assert "braid_size_bytes 7\n" in prometheus_text()
    gauge.set(8)
    assert "braid_size_bytes 8\n" in prometheus_text()


def test_series_are_bounded_and_nothing_is_lost() -> None:
    counter = Counter("braid.things", "", "Things", ("id",))
    histogram = Histogram("braid.wait", "How long", ("id",))
    for number in range(MAX_SERIES + 50):
        counter.add(1, str(number))
        histogram.record(1.0, str(number))
    for points in (counter.points(), histogram.points()):
        assert len(points) == MAX_SERIES + 1
    assert {one.labels: one.value for one in counter.points()}[(OTHER,)] == 50
    assert sum(sum(one.counts) for one in histogram.points()) == MAX_SERIES + 50


@given(st.lists(st.floats(0, 1e6)))
def test_every_record_is_in_the_bucket_of_its_bound(seconds: list[float]) -> None:
    histogram = Histogram("braid.wait", "How long")
    for one in seconds:
        histogram.record(one)
    points = histogram.points()
    assert len(points) == (1 if seconds else 0)
    for point in points:
        assert point.value == pytest.approx(math.fsum(seconds))
        edges = [-1.0, *histogram.bounds, math.inf]
        assert list(point.counts) == [
            sum(low < one <= high for one in seconds) for low, high in itertools.pairwise(edges)
        ]


def test_labels_are_those_that_were_declared() -> None:
    counter = Counter("braid.things", "", "Things", ("kind",))
    with pytest.raises(ValueError, match="has the labels"):
        counter.add(1, "a", "b")
