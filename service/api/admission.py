"""Admission: so many searches at once, shared out among teams; some more wait a moment."""

import asyncio
import contextlib
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable

from service.errors import OverloadedError
from service.instruments import SEARCH_LIMIT, SEARCHES

WAIT_SECONDS = 0.03
"""A refusal is worth more the sooner it comes: the client may ask another process."""
SHARE_WAIT_SECONDS = 0.25
"""Of a team that holds its share while places are free: it waits for its own searches to end."""
RETRY_AFTER_SECONDS = 1.0
ACTIVE_SECONDS = 2.0
"""After its last search a team no longer counts among those that share."""
COUNT_SECONDS = 0.5
"""Counting costs time that grows with the teams, so not every search does it."""


class Gate:
    """Lets `limit` callers in; of each team half as many may wait a moment for a place.

    A team alone may hold every place. Where several teams search, each may hold its `share`, by
    default an equal part; a place that comes free goes to who waits and holds the fewest.
    """

    def __init__(
        self,
        limit: int,
        share: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = self._free = limit
        self._share = share
        self._clock = clock
        self._queue = max(1, limit // 2)
        self._held: defaultdict[int, int] = defaultdict(int)
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        self._seen: dict[int, float] = {}
        self._next_count = 0.0

    def observe(self) -> None:
        """Set the gauges of admission."""
        SEARCHES.set(self._limit - self._free, "active")
        SEARCHES.set(sum(map(len, self._waiting.values())), "waiting")
        SEARCH_LIMIT.set(self._limit)

    @contextlib.asynccontextmanager
    async def place(self, team_id: int) -> AsyncIterator[None]:
        """Hold a place; raises `OverloadedError` when none comes free in time."""
        self._seen[team_id] = self._clock()
        if self._open_to(team_id) and not self._waiting.get(team_id):
            self._take(team_id)
        else:
            await self._wait(team_id)
        try:
            yield
        finally:
            self._give_back(team_id)

    @property
    def busy(self) -> bool:
        """Whether somebody waits, so that somebody may have to be refused."""
        return bool(self._waiting)

    def refuses(self, team_id: int) -> bool:
        """Whether the team's next caller would be refused at once."""
        return len(self._waiting.get(team_id, ())) >= self._queue and not self._open_to(team_id)

    def refusal(self) -> OverloadedError:
        """What a caller is told for whom there is no place."""
        return OverloadedError(
            f"{self._limit} searches are in progress, or as many as a team may have",
            retry_after=RETRY_AFTER_SECONDS,
        )

    def _open_to(self, team_id: int) -> bool:
        return self._free > 0 and self._held.get(team_id, 0) < self._most(team_id)

    def _most(self, team_id: int) -> int:
        """Places that a team may hold at the moment."""
        now = self._clock()
        if now >= self._next_count:
            self._next_count = now + COUNT_SECONDS
            since = now - ACTIVE_SECONDS
            self._seen = {
                team: seen
                for team, seen in self._seen.items()
                if seen > since or team in self._held
            }
        teams = len(self._seen) + (team_id not in self._seen)
        if teams == 1:
            return self._limit
        return max(1, self._limit // teams if self._share is None else self._share)

    def _take(self, team_id: int) -> None:
        self._free -= 1
        self._held[team_id] += 1

    def _give_back(self, team_id: int) -> None:
        self._free += 1
        self._held[team_id] -= 1
        if not self._held[team_id]:
            del self._held[team_id]
        self._let_in()

    def _let_in(self) -> None:
        while self._free and self._waiting:
            open_to = [team for team in self._waiting if self._open_to(team)]
            if not open_to:
                return
            team = min(open_to, key=lambda one: self._held[one])
            caller = self._waiting[team].popleft()
            if not self._waiting[team]:
                del self._waiting[team]
            if not caller.done():
                self._take(team)
                caller.set_result(None)

    async def _wait(self, team_id: int) -> None:
        if self.refuses(team_id):
            raise self.refusal()
        caller = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(team_id, deque()).append(caller)
        try:
            async with asyncio.timeout(SHARE_WAIT_SECONDS if self._free else WAIT_SECONDS):
                await caller
        except BaseException as error:
            self._leave_queue(team_id, caller)
            if isinstance(error, TimeoutError):
                raise self.refusal() from error
            raise

    def _leave_queue(self, team_id: int, caller: "asyncio.Future[None]") -> None:
        if caller.done() and not caller.cancelled():
            self._give_back(team_id)  # it was let in and left at the same moment
            return
        queue = self._waiting.get(team_id)
        if queue and caller in queue:
            queue.remove(caller)
            if not queue:
                del self._waiting[team_id]
