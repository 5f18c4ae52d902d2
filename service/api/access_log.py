"""One line a request; of those without a valid key a few, and how many there were besides."""

import time
from collections.abc import Callable

from service.telemetry import log

QUIET = frozenset({"/livez", "/healthz", "/readyz", "/metrics"})
UNAUTHORIZED_LINES = 10
"""Lines in a period for requests without a valid key: whoever guesses keys must not fill a disk."""
PERIOD_S = 10.0


class AccessLog:
    """The access lines of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._unauthorized = 0

    def write(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note an answered request, or only count it."""
        if self._clock() - self._since >= PERIOD_S:
            self._begin_period()
        if status == 401:
            self._unauthorized += 1
            if self._unauthorized > UNAUTHORIZED_LINES:
                return
        write = log.debug if route in QUIET else log.info
        write("request", method=method, route=route, status=status, ms=round(seconds * 1000, 1))

    def _begin_period(self) -> None:
        unwritten = self._unauthorized - UNAUTHORIZED_LINES
        if unwritten > 0:
            log.warning("requests without a valid key were only counted", count=unwritten)
        self._since = self._clock()
        self._unauthorized = 0
