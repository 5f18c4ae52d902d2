"""Admission: so many searches at once, so many more that wait a moment, and no others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from service.errors import OverloadedError
from service.instruments import SEARCH_LIMIT, SEARCHES

WAIT_SECONDS = 0.03
"""A refusal is worth more the sooner it comes: the client may ask another process."""
RETRY_AFTER_SECONDS = 1.0


class Gate:
    """Lets `limit` callers in; half as many may wait `WAIT_SECONDS` for a place."""

    def __init__(self, limit: int) -> None:
        self._places = asyncio.Semaphore(limit)
        self._limit = limit
        self._queue = max(1, limit // 2)
        self._active = 0
        self._waiting = 0

    def observe(self) -> None:
        """Set the gauges of admission."""
        SEARCHES.set(self._active, "active")
        SEARCHES.set(self._waiting, "waiting")
        SEARCH_LIMIT.set(self._limit)

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place; raises `OverloadedError` when none comes free in time."""
        await self._enter()
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self._places.release()

    @property
    def full(self) -> bool:
        """Whether the next caller would be refused at once."""
        return self._waiting >= self._queue and self._places.locked()

    async def _enter(self) -> None:
        if self.full:
            raise self.refusal()
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._places.acquire()
        except TimeoutError as error:
            raise self.refusal() from error
        finally:
            self._waiting -= 1

    def refusal(self) -> OverloadedError:
        """What a caller is told for whom there is no place."""
        return OverloadedError(
            f"{self._limit} searches are in progress", retry_after=RETRY_AFTER_SECONDS
        )
