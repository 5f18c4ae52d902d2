"""A bound on the requests of a team in a process, by the generic cell rate algorithm."""

import time
from collections.abc import Callable

from service.errors import OverloadedError

BURST_SECONDS = 1.0
"""What a team did not use of the last second it may use at once."""


class Rates:
    """Lets each team make `per_second` requests a second; any number when that is None."""

    def __init__(
        self, per_second: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval = None if per_second is None else 1 / per_second
        self._clock = clock
        self._due: dict[int, float] = {}
        """When each team would have made its requests at an even pace."""

    def count(self, team_id: int) -> None:
        """Count a request; raises `OverloadedError` for one too many, which does not count."""
        interval = self._interval
        if interval is None:
            return
        now = self._clock()
        due = max(self._due.get(team_id, now), now) + interval
        late = due - now - max(BURST_SECONDS, interval)
        if late > 1e-9:
            raise OverloadedError("the team makes too many requests", retry_after=late)
        self._due[team_id] = due
