"""What a search leaves behind in the metrics: once, at its end."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from service.errors import UnavailableError
from service.instruments import (
    SEARCH_DEGRADED,
    SEARCH_DURATION,
    SEARCH_PATHS,
    SEARCH_STAGE_DURATION,
)
from service.models import Mode
from service.search.progress import Progress
from service.telemetry import stage

Outcome = Literal["ok", "degraded", "unavailable", "cancelled", "error"]
PATH_FACTS = ("path", "method")
"""Facts of a stage that say which way it went."""


@contextlib.contextmanager
def measured(mode: Mode, parts: Callable[[], Sequence[Progress]]) -> Iterator[None]:
    """Give a search its span and, however it ends, its metrics."""
    began = time.perf_counter()
    outcome: Outcome = "error"
    with stage("search") as current:
        current.facts["mode"] = mode
        try:
            yield
            outcome = "degraded" if any(part.degraded for part in parts()) else "ok"
        except UnavailableError:
            outcome = "unavailable"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            current.facts["result"] = outcome
            SEARCH_DURATION.record(time.perf_counter() - began, mode, outcome)
            for part in parts():
                _record(mode, part)


def _record(mode: Mode, part: Progress) -> None:
    if part.fusion_seconds:
        SEARCH_STAGE_DURATION.record(part.fusion_seconds, "fusion", mode, "ok")
    for name, facts in part.stages.items():
        SEARCH_STAGE_DURATION.record(facts["ms"] / 1000, name, mode, facts["status"])
        for fact in PATH_FACTS:
            if fact in facts:
                SEARCH_PATHS.add(1, name, facts[fact])
    for one in part.degraded:
        SEARCH_DEGRADED.add(1, one.stage, one.reason)
