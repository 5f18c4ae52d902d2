"""A circuit breaker: a service that keeps failing is left alone for a while."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Literal

from service.errors import CircuitOpenError
from service.instruments import CIRCUIT_CHANGES
from service.telemetry import log

State = Literal["closed", "open", "half-open"]

MOST_FAILURES = 10
OPEN_SECONDS = 30.0
LEAST_PATIENCE_SECONDS = 0.05
"""A caller that gave the service less time than this says nothing about it."""


class Breaker:
    """Opens after failures in a row; after a while one call at a time may try again."""

    def __init__(self, provider: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.state: State = "closed"
        self.provider = provider
        self._clock = clock
        self._failures = 0
        self._opened = 0.0
        self._trying = False

    def admit(self) -> None:
        """Raise `CircuitOpenError` at once when no call should be made."""
        if self.state == "closed":
            return
        if self._clock() - self._opened < OPEN_SECONDS or self._trying:
            raise CircuitOpenError("the provider failed too often and is left alone for a while")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count how the call inside ends; raises `CircuitOpenError` like `admit`."""
        self.admit()
        trial = self.state != "closed"
        if trial:
            self._trying = True
            self._change("half-open")
        began = self._clock()
        try:
            yield
        except Exception:
            self._failed()
            raise
        except BaseException:
            # Cancelled, since its time was over.
            if self._clock() - began >= LEAST_PATIENCE_SECONDS:
                self._failed()
            raise
        else:
            self._succeeded(trial=trial)
        finally:
            if trial:
                self._trying = False

    def _succeeded(self, *, trial: bool) -> None:
        # A call that began before the circuit opened does not close it.
        if trial or self.state == "closed":
            self._failures = 0
            self._change("closed")

    def _failed(self) -> None:
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            self._opened = self._clock()
            self._change("open")

    def _change(self, state: State) -> None:
        if state != self.state:
            self.state = state
            CIRCUIT_CHANGES.add(1, self.provider, state)
            log.warning("circuit changed", provider=self.provider, state=state)
