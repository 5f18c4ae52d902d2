"""Removes, bit by bit, what deleted collections and discarded generations left behind."""

from service.db.pool import Connection, Database

BATCH_DOCUMENTS = 1_000
BATCH_JOBS = 100
SAFETY = "interval '2 minutes'"
"""Longer than any search: who has begun on a generation may end on it."""

DISCARD_EXPIRED = f"""
UPDATE braid.generations g SET state = 'discarded' FROM braid.builds b
WHERE b.generation_id = g.id AND g.state = 'retired'
  AND greatest(b.expires_at, b.retired_at + {SAFETY}) < now()
RETURNING g.id
"""
DISCARD_ALL = "UPDATE braid.generations SET state = 'discarded' WHERE collection_id = $1"
DISCARDED = "SELECT id FROM braid.generations WHERE state = 'discarded' ORDER BY id"
DELETE_SEGMENT = """
DELETE FROM braid.segments WHERE id = (
    SELECT id FROM braid.segments WHERE generation_id = $1 LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id
"""
DELETE_GENERATION = """
DELETE FROM braid.generations g WHERE g.id = $1 AND g.state = 'discarded'
  AND to_regclass('braid.chunks_' || g.id) IS NULL
"""

REMEMBER = "INSERT INTO braid.deleted_collections (id) VALUES ($1)"
DELETED = "SELECT id FROM braid.deleted_collections ORDER BY id"
DELETE_DOCUMENTS = f"""
DELETE FROM braid.documents WHERE id IN (
    SELECT id FROM braid.documents WHERE collection_id = $1
    LIMIT {BATCH_DOCUMENTS} FOR UPDATE SKIP LOCKED)
RETURNING id
"""
DELETE_JOBS = f"""
DELETE FROM braid.jobs WHERE id IN (
    SELECT id FROM braid.jobs WHERE collection_id = $1
    LIMIT {BATCH_JOBS} FOR UPDATE SKIP LOCKED)
RETURNING id
"""
FORGET = """
DELETE FROM braid.deleted_collections d WHERE d.id = $1
  AND NOT EXISTS (SELECT FROM braid.documents WHERE collection_id = d.id)
  AND NOT EXISTS (SELECT FROM braid.jobs WHERE collection_id = d.id)
  AND NOT EXISTS (SELECT FROM braid.generations WHERE collection_id = d.id)
"""

# What a build can still be resumed from stays.
DELETE_OLD_JOBS = f"""
DELETE FROM braid.jobs WHERE id IN (
    SELECT j.id FROM braid.jobs j
    WHERE j.status IN ('done', 'error', 'cancelled')
      AND j.updated_at < now() - make_interval(secs => $1)
      AND NOT EXISTS (SELECT FROM braid.builds b WHERE b.job_id = j.id)
      AND NOT EXISTS (
          SELECT FROM braid.ingests i WHERE i.job_id = j.id AND i.status = 'pending')
    LIMIT {BATCH_JOBS} FOR UPDATE SKIP LOCKED)
RETURNING id
"""


async def leave_behind(connection: Connection, collection_id: int) -> None:
    """Mark what belongs to a collection that this transaction deletes for removal."""
    await connection.execute(DISCARD_ALL, collection_id)
    await connection.execute(REMEMBER, collection_id)


async def discard_expired(database: Database) -> int:
    """Give up generations whose time to be rolled back to is over; how many."""
    async with database.administer() as connection:
        return len(await connection.fetch(DISCARD_EXPIRED))


async def remove_leftovers(database: Database) -> None:
    """Remove rows in small transactions; a generation's own row goes once its table is gone."""
    for generation_id in await _ids(database, DISCARDED):
        await _until_none_is_left(database, DELETE_SEGMENT, generation_id)
        async with database.administer() as connection:
            await connection.execute(DELETE_GENERATION, generation_id)
    for collection_id in await _ids(database, DELETED):
        await _until_none_is_left(database, DELETE_DOCUMENTS, collection_id)
        await _until_none_is_left(database, DELETE_JOBS, collection_id)
        async with database.administer() as connection:
            await connection.execute(FORGET, collection_id)


async def remove_old_jobs(database: Database, keep_seconds: float) -> None:
    """Remove jobs that ended so long ago, with what they keep of documents that failed."""
    await _until_none_is_left(database, DELETE_OLD_JOBS, keep_seconds)


async def _ids(database: Database, statement: str) -> list[int]:
    async with database.administer() as connection:
        return [row["id"] for row in await connection.fetch(statement)]


async def _until_none_is_left(database: Database, statement: str, argument: float) -> None:
    while True:
        async with database.administer() as connection:
            if not await connection.fetch(statement, argument):
                return
