"""How far a search is: its deadline, its stages, and what it had to leave out."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from service.errors import BadAnswerError, CircuitOpenError, ProviderError, UnavailableError
from service.search.response import Degradation, StageName
from service.telemetry import Stage, log, stage

T = TypeVar("T")

HYDRATION_SHARE = 0.2
"""Part of the time that the legs may not use: an answer that nobody can read is none."""
HYDRATION_SECONDS = 0.5
FAILURES = (TimeoutError, UnavailableError, ProviderError)


class NoEmbedderError(ProviderError):
    """The collection turns no text into vectors, and the query brought none."""


REASONS = {
    NoEmbedderError: "no embedder",
    BadAnswerError: "bad answer",
    CircuitOpenError: "circuit open",
    TimeoutError: "timeout",
}


class Deadline:
    """When the answer is due."""

    def __init__(self, seconds: float) -> None:
        self._started = time.perf_counter()
        self._seconds = seconds

    @property
    def spent_ms(self) -> float:
        """Time since the search began."""
        return round((time.perf_counter() - self._started) * 1000, 2)

    def remaining(self) -> float:
        """Seconds that are left."""
        return self._seconds - (time.perf_counter() - self._started)

    def for_legs(self) -> float:
        """Seconds that are left to find candidates."""
        reserve = min(HYDRATION_SHARE * self._seconds, HYDRATION_SECONDS)
        return self.remaining() - reserve


class Progress:
    """The stages of a search, or of its part in one collection, as they end."""

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.stages: dict[StageName, dict[str, Any]] = {}
        self.fusion_seconds = 0.0
        self._degraded: dict[StageName, str] = {}

    @property
    def degraded(self) -> list[Degradation]:
        """What was left out, and why."""
        return [Degradation(name, why) for name, why in self._degraded.items()]

    def degrade(self, name: StageName, reason: str) -> None:
        """Say that a stage did less than it was asked for."""
        self._degraded[name] = reason

    async def attempt(
        self, name: StageName, seconds: float, work: Callable[[Stage], Awaitable[T]]
    ) -> T | None:
        """Run one stage within `seconds`; a failure degrades the answer and is named in it."""
        current: Stage | None = None
        try:
            with stage(name) as current:
                async with asyncio.timeout(seconds):
                    return await work(current)
        except FAILURES as error:
            reason = _reason(error)
            self._degraded[name] = reason
            log.warning(
                "search stage failed", stage=name, reason=reason, error=type(error).__name__
            )
            return None
        finally:
            if current is not None:
                self.record(name, current)

    def record(self, name: StageName, done: Stage) -> None:
        """Write down a stage that ended; one that ran before adds its time."""
        earlier = self.stages.get(name, {}).get("ms", 0.0)
        spent = round(earlier + done.ms, 2)
        self.stages[name] = {"status": done.status, "ms": spent, **done.facts}


def _reason(error: BaseException) -> str:
    return next((reason for kind, reason in REASONS.items() if isinstance(error, kind)), "error")
