"""Counters, gauges and histograms of the process; recording one costs about a microsecond.

The OpenTelemetry SDK takes ten times as long for a record, which a search would notice.
"""

import contextlib
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

Kind = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = tuple[str, ...]

MAX_SERIES = 1000
"""Series of an instrument; what comes after is counted together as `_other`."""
OTHER = "_other"
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
UNITS = {"s": "_seconds", "By": "_bytes"}
FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds for what a client waits for."""
SLOW = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds in seconds for work in the background."""


class Point(msgspec.Struct, frozen=True):
    """One series as it is now; `value` is the sum of a histogram."""

    labels: Labels
    value: float
    counts: tuple[int, ...] = ()
    """Records of a histogram by bucket, not added up; the last one has no upper bound."""


class Instrument:
    """What all kinds have in common; label values are always chosen by the code, never by users."""

    kind: Kind

    def __init__(self, name: str, unit: str, description: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.unit = unit
        self.description = description
        self.labels = tuple(labels)
        self._lock = threading.Lock()
        INSTRUMENTS.append(self)

    @property
    def prometheus_name(self) -> str:
        """The name as Prometheus, and a collector's exporter for it, write it."""
        total = "_total" if self.kind == "counter" else ""
        return self.name.replace(".", "_") + UNITS.get(self.unit, "") + total

    @property
    def bounds(self) -> tuple[float, ...]:
        """Upper bounds of the buckets of a histogram."""
        return ()

    def points(self) -> list[Point]:
        """Every series."""
        raise NotImplementedError

    def _bounded(self, labels: Labels, known: int) -> Labels:
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}")
        return labels if known < MAX_SERIES else (OTHER,) * len(labels)


INSTRUMENTS: list[Instrument] = []


class _Number(Instrument):
    def __init__(self, name: str, unit: str, description: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, unit, description, labels)
        self._values: dict[Labels, float] = {}

    def add(self, amount: float, *labels: str) -> None:
        """Add to a series."""
        with self._lock:
            values = self._values
            if labels not in values:
                labels = self._bounded(labels, len(values))
                values.setdefault(labels, 0.0)
            values[labels] += amount

    def set(self, value: float, *labels: str) -> None:
        """Replace the value of a series."""
        with self._lock:
            values = self._values
            if labels not in values:
                labels = self._bounded(labels, len(values))
            values[labels] = value

    def points(self) -> list[Point]:
        """Every series."""
        with self._lock:
            return [Point(labels, value) for labels, value in self._values.items()]


class Counter(_Number):
    """Only ever grows."""

    kind = "counter"


class Gauge(_Number):
    """Goes up and down."""

    kind = "gauge"


class Histogram(Instrument):
    """How often something took how long."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        description: str,
        labels: Sequence[str] = (),
        *,
        bounds: tuple[float, ...] = FAST,
    ) -> None:
        super().__init__(name, "s", description, labels)
        self._bounds = bounds
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    @property
    def bounds(self) -> tuple[float, ...]:
        """Upper bounds of the buckets."""
        return self._bounds

    def record(self, seconds: float, *labels: str) -> None:
        """Count one duration."""
        with self._lock:
            counts = self._counts.get(labels)
            if counts is None:
                labels = self._bounded(labels, len(self._counts))
                counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
                self._sums.setdefault(labels, 0.0)
            counts[bisect_left(self._bounds, seconds)] += 1
            self._sums[labels] += seconds

    def points(self) -> list[Point]:
        """Every series."""
        with self._lock:
            return [
                Point(labels, self._sums[labels], tuple(counts))
                for labels, counts in self._counts.items()
            ]


_observers: list[Callable[[], None]] = []


@contextlib.contextmanager
def observing(*observers: Callable[[], None]) -> Iterator[None]:
    """Let functions set gauges each time that the metrics are read."""
    _observers.extend(observers)
    try:
        yield
    finally:
        for observe in observers:
            _observers.remove(observe)


def read_all() -> list[tuple[Instrument, list[Point]]]:
    """Every instrument with its series as they are now."""
    for observe in tuple(_observers):
        observe()
    return [(instrument, instrument.points()) for instrument in INSTRUMENTS]


def prometheus_text() -> str:
    """All metrics in the text format of Prometheus."""
    return "".join(f"{line}\n" for one, points in read_all() for line in _lines(one, points))


def _lines(instrument: Instrument, points: Sequence[Point]) -> Iterator[str]:
    name = instrument.prometheus_name
    yield f"# HELP {name} {instrument.description}"
    yield f"# TYPE {name} {instrument.kind}"
    keys = [key.replace(".", "_") for key in instrument.labels]
    for point in points:
        pairs = [f'{key}="{_escaped(on)}"' for key, on in zip(keys, point.labels, strict=True)]
        if instrument.kind == "histogram":
            yield from _histogram_lines(name, pairs, instrument.bounds, point)
        else:
            yield f"{name}{_braced(pairs)} {point.value!r}"


def _histogram_lines(
    name: str, pairs: Sequence[str], bounds: Sequence[float], point: Point
) -> Iterator[str]:
    total = 0
    for bound, count in zip([*map(repr, bounds), "+Inf"], point.counts, strict=True):
        total += count
        bucket = _braced([*pairs, f'le="{bound}"'])
        yield f"{name}_bucket{bucket} {total}"
    yield f"{name}_sum{_braced(pairs)} {point.value!r}"
    yield f"{name}_count{_braced(pairs)} {total}"


def _braced(pairs: Sequence[str]) -> str:
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
