"""Drops the chunk tables of generations that are gone, without holding up anybody's search."""

import asyncio

import asyncpg
import msgspec

from service.db.pool import Database
from service.errors import UnavailableError

PATIENCE_SECONDS = 1.0
"""To wait for those who still read a table before leaving it for later."""

ORPHANS = """
SELECT found.generation_id, i.inhrelid IS NOT NULL, coalesce(i.inhdetachpending, false)
FROM (
    SELECT c.oid, substring(c.relname FROM '^chunks_([0-9]+)$')::bigint AS generation_id
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'braid' AND c.relkind = 'r' AND c.relname ~ '^chunks_[0-9]+$') AS found
LEFT JOIN pg_inherits i ON i.inhrelid = found.oid
WHERE NOT EXISTS (SELECT FROM braid.generations g
                  WHERE g.id = found.generation_id AND g.state <> 'discarded')
ORDER BY coalesce(i.inhdetachpending, false) DESC, found.generation_id
"""

# Whatever else removes a partition locks the parent, and every search waits behind that lock.
DETACH = "ALTER TABLE braid.chunks DETACH PARTITION braid.chunks_{:d} CONCURRENTLY"
FINALIZE = "ALTER TABLE braid.chunks DETACH PARTITION braid.chunks_{:d} FINALIZE"
DROP = "DROP TABLE IF EXISTS braid.chunks_{:d}"
SOMEBODY_ELSE_DOES = (
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.UndefinedTableError,
    asyncpg.WrongObjectTypeError,
)


class _Orphan(msgspec.Struct, frozen=True):
    generation_id: int
    attached: bool
    detaching: bool


async def drop_orphan_partitions(database: Database) -> list[int]:
    """Drop what deletions left; the generations whose table is still in use."""
    async with database.administer() as connection:
        orphans = [_Orphan(*row) for row in await connection.fetch(ORPHANS)]
    return [one.generation_id for one in orphans if not await _drop(database, one)]


async def _drop(database: Database, orphan: _Orphan) -> bool:
    statements = [DROP]
    if orphan.attached:
        statements.insert(0, FINALIZE if orphan.detaching else DETACH)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for statement in statements:
                wanted = statement.format(orphan.generation_id)
                if not await database.execute_unless(SOMEBODY_ELSE_DOES, wanted):
                    return False
    except (TimeoutError, UnavailableError):
        return False
    return True
