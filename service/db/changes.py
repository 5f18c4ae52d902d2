"""Hears when keys, collections or generations change, so that nobody has to ask each time."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import asyncpg

from service.db.hosts import connect
from service.db.pool import LOST_CONNECTION
from service.telemetry import log

CHANNEL = "braid_changes"
# Of whichever server writes: a promoted replica begins another timeline.
HISTORY = """
SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE
    left(pg_walfile_name(pg_current_wal_lsn()), 8) END
"""
HEARTBEAT_SECONDS = 0.5
DEAF_SECONDS = 2.0
"""Without a sign of life for this long, nothing heard before counts."""
RETRY_SECONDS = 1.0
ANSWER_SECONDS = 1.0
CONNECT_SECONDS = 2.0


class Changes:
    """Listens to the database for notices of change (they come with the commit that made them).

    A heartbeat tells silence from a dead connection: notices are delivered in order, so an
    answered heartbeat means that every notice before it has been heard.
    """

    def __init__(self, dsn: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._dsn = dsn
        self._clock = clock
        self._current_until = float("-inf")
        self._subscribers: list[Callable[[], None]] = []
        self._history: str | None = None
        self._of_history: list[Callable[[], None]] = []

    def subscribe(self, forget: Callable[[], None]) -> None:
        """Have `forget` called whenever something may have changed."""
        self._subscribers.append(forget)

    def subscribe_to_history(self, forget: Callable[[], None]) -> None:
        """Have `forget` called when what was committed may have been lost: after a failover.

        Numbers that the lost transactions used may come again, for something else.
        """
        self._of_history.append(forget)

    @property
    def current(self) -> bool:
        """Whether every change older than `DEAF_SECONDS` has been heard."""
        return self._clock() < self._current_until

    async def listen(self) -> None:
        """Listen until cancelled, over one connection at a time."""
        while True:
            try:
                await self._listen_once()
            except (*LOST_CONNECTION, asyncpg.PostgresError, TimeoutError) as error:
                if self.current:
                    log.warning("no longer hears of changes", error=type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen_once(self) -> None:
        connection = await connect(self._dsn, timeout=CONNECT_SECONDS)
        try:
            await connection.add_listener(CHANNEL, self._heard)
            self._heard()
            await self._compare_history(connection)
            while True:
                asked = self._clock()
                await connection.execute("SELECT 1", timeout=ANSWER_SECONDS)
                self._current_until = asked + DEAF_SECONDS
                await asyncio.sleep(HEARTBEAT_SECONDS)
        finally:
            with contextlib.suppress(*LOST_CONNECTION, asyncpg.PostgresError):
                connection.terminate()

    async def _compare_history(self, connection: Any) -> None:
        history = await connection.fetchval(HISTORY, timeout=ANSWER_SECONDS)
        if self._history is not None and history != self._history:
            log.warning("the database has another history than before, caches are dropped")
            for forget in self._of_history:
                forget()
        self._history = history

    def _heard(self, *_notice: Any) -> None:
        for forget in self._subscribers:
            forget()
