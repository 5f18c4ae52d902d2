"""Searches that wait on a lock, for as long as a test wants them to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg

EVENTUALLY_SECONDS = 60


@contextlib.asynccontextmanager
async def locked_chunks(dsn: str) -> AsyncIterator[None]:
    """Searches wait as long as this lasts."""
    holder = await asyncpg.connect(dsn)
    try:
        async with holder.transaction():
            await holder.execute("LOCK braid.chunks IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await holder.close()


async def until_waiting(dsn: str, sessions: int) -> None:
    """Return when so many sessions wait for a lock."""
    asker = await asyncpg.connect(dsn)
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    try:
        async with asyncio.timeout(EVENTUALLY_SECONDS):
            while True:
                if await asker.fetchval(waiting) == sessions:
                    return
                await asyncio.sleep(0.01)
    finally:
        await asker.close()
