"""Drops the chunk tables of generations that are gone, without holding up anybody's search."""

import asyncio
import random

from service.db.pool import Database
from service.errors import UnavailableError

LOCK_TIMEOUT_MS = 100
ATTEMPTS = 20

ORPHANS = """
SELECT coalesce(array_agg(generation_id), '{}') FROM (
    SELECT substring(c.relname FROM '^chunks_([0-9]+)$')::bigint AS generation_id
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'braid' AND c.relkind = 'r' AND c.relname ~ '^chunks_[0-9]+$') AS partitions
WHERE NOT EXISTS (SELECT FROM braid.generations g WHERE g.id = generation_id)
"""
DROP_PARTITION = "SELECT braid.drop_partition($1)"


async def drop_orphan_partitions(database: Database) -> list[int]:
    """Drop what deleted collections left; the generations whose table is still in use."""
    row = await database.fetch_row(ORPHANS)
    orphans = row[0] if row else []
    return [one for one in orphans if not await _drop_partition(database, one)]


async def _drop_partition(database: Database, generation_id: int) -> bool:
    # Dropping needs the parent's exclusive lock, and while it waits every search waits behind
    # it: so it waits briefly, steps aside, and comes back.
    for _ in range(ATTEMPTS):
        try:
            async with database.administer() as connection:
                await connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
                await connection.execute(DROP_PARTITION, generation_id)
        except UnavailableError:
            await asyncio.sleep(random.uniform(0.05, 0.15))  # noqa: S311 - a pause, no secret
        else:
            return True
    return False
