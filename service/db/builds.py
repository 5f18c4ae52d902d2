"""Builds: generations beside the active one, how far each follows the documents, and the swap.

Locks are taken in this order: collection, active generation, documents, the generation that is
built, its build, its job.
"""

from collections.abc import Sequence
from datetime import datetime

import asyncpg
import msgspec

from service.db.catalog import (
    COLLECTION_COLUMNS,
    CREATE_PARTITION,
    as_collection,
    contextual_columns,
    lock_collection,
)
from service.db.pool import Connection
from service.errors import ConflictError
from service.models import Generation, JobStatus

MAX_REASON = 500
LOCK_MS = 2_000

INSERT_GENERATION = """
INSERT INTO braid.generations (team_id, collection_id, state, provider, model, dim, base_url,
    language, analyzer, chunk_size, chunk_overlap, k1, b, row_budget, average_length, contextual,
    context_version)
VALUES ($1, $2, 'building', $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::jsonb, $16)
ON CONFLICT (collection_id) WHERE state = 'building' DO NOTHING RETURNING id
"""
INSERT_BUILD = "INSERT INTO braid.builds (generation_id, team_id, job_id) VALUES ($1, $2, $3)"
BUILDING_JOB = """
SELECT coalesce(b.job_id, 0) FROM braid.generations g JOIN braid.builds b ON b.generation_id = g.id
WHERE g.collection_id = $1 AND g.state = 'building'
"""
REOPEN = """
UPDATE braid.generations SET state = 'building' WHERE state = 'retired' AND id = (
    SELECT g.id FROM braid.generations g JOIN braid.builds b ON b.generation_id = g.id
    WHERE g.collection_id = $1 AND g.state = 'retired' AND b.expires_at > now()
    ORDER BY b.retired_at DESC LIMIT 1)
RETURNING id
"""
REOPEN_BUILD = """
UPDATE braid.builds SET job_id = $2, first_boundary = NULL, attempts = 0 WHERE generation_id = $1
"""
COUNT_BEHIND = """
SELECT count(*) FROM (
    SELECT FROM braid.documents
    WHERE collection_id = $1 AND status = 'ready' AND version > $2 LIMIT $3) AS behind
"""

FIND = f"""
SELECT {COLLECTION_COLUMNS}, b.built_to, b.attempts, b.first_boundary
FROM braid.builds b JOIN braid.generations g ON g.id = b.generation_id
JOIN braid.collections c ON c.id = g.collection_id
WHERE b.job_id = $1 AND g.state = 'building'
"""
HOLD = f"{FIND} FOR SHARE OF g"
HOLD_BUILD = "SELECT FROM braid.builds WHERE generation_id = $1 FOR UPDATE"

# Whoever publishes documents holds the active generation in SHARE mode until the commit, so taking
# it alone waits for them, and what is published later gets higher versions.
HOLD_ALONE = "SELECT FROM braid.generations WHERE id = $1 FOR NO KEY UPDATE"
NEXT_VERSION = "SELECT nextval('braid.document_version_seq')"
SET_FIRST_BOUNDARY = """
UPDATE braid.builds SET first_boundary = coalesce(first_boundary, $2) WHERE generation_id = $1
"""

TO_RETRY = """
SELECT d.id, d.version, (SELECT count(*) FROM braid.chunks c
                         WHERE c.generation_id = $2 AND c.document_id = d.id)
FROM braid.build_failures f JOIN braid.documents d ON d.id = f.document_id
WHERE f.generation_id = $1 AND f.to_retry ORDER BY d.id LIMIT $3
"""
DUE = """
SELECT d.id, d.version, (SELECT count(*) FROM braid.chunks c
                         WHERE c.generation_id = $2 AND c.document_id = d.id)
FROM (SELECT id, version FROM braid.documents
      WHERE collection_id = $1 AND status = 'ready' AND version > $3 AND version < $4
      ORDER BY version LIMIT $5) AS d ORDER BY d.version
"""
COUNT_ATTEMPT = """
UPDATE braid.builds SET attempts = attempts + 1 WHERE generation_id = $1 RETURNING attempts
"""
FORGIVE = "UPDATE braid.builds SET attempts = 0 WHERE generation_id = $1"
ADVANCE = """
UPDATE braid.builds SET built_to = greatest(built_to, $2), attempts = 0 WHERE generation_id = $1
"""
LOCK_VERSIONS = """
SELECT id, version FROM braid.documents WHERE id = ANY($1) ORDER BY doc_id FOR KEY SHARE
"""

CLEAR_FAILURES = """
DELETE FROM braid.build_failures WHERE generation_id = $1 AND document_id = ANY($2)
"""
ADD_FAILURES = """
INSERT INTO braid.build_failures (generation_id, team_id, document_id, reason)
SELECT $1, $2, failed.document_id, failed.reason
FROM unnest($3::bigint[], $4::text[]) AS failed (document_id, reason)
ON CONFLICT (generation_id, document_id)
    DO UPDATE SET reason = excluded.reason, to_retry = false
"""
COUNT_FAILURES = """
SELECT count(*) AS failures, (
    SELECT format('document %s: %s', d.doc_id, f.reason) FROM braid.build_failures f
    JOIN braid.documents d ON d.id = f.document_id
    WHERE f.generation_id = $1 ORDER BY d.version LIMIT 1) AS first
FROM braid.build_failures WHERE generation_id = $1 AND NOT to_retry
"""
ANY_FAILURE = "SELECT EXISTS (SELECT FROM braid.build_failures WHERE generation_id = $1)"
RETRY_FAILURES = "UPDATE braid.build_failures SET to_retry = true WHERE generation_id = $1"

COUNT_PROGRESS = """
UPDATE braid.jobs j SET documents = documents + $3,
    failed = (SELECT count(*) FROM braid.build_failures WHERE generation_id = $2)
WHERE j.id = $1 AND j.status = 'processing' RETURNING j.id
"""

HOLD_INGEST = """
UPDATE braid.builds SET ingest_held_until = now() + make_interval(secs => $2)
WHERE generation_id = $1
"""
IS_INGEST_HELD = """
SELECT EXISTS (
    SELECT FROM braid.generations g JOIN braid.builds b ON b.generation_id = g.id
    WHERE g.collection_id = $1 AND g.state = 'building' AND b.ingest_held_until > now())
"""

END_JOB = """
UPDATE braid.jobs SET status = $2, error = $3, updated_at = now()
WHERE id = $1 AND status = ANY($4) RETURNING id
"""
RETIRE = """
INSERT INTO braid.builds (generation_id, team_id, built_to, retired_at, expires_at)
VALUES ($1, $2, $3, now(), now() + make_interval(secs => $4))
ON CONFLICT (generation_id) DO UPDATE SET built_to = excluded.built_to, job_id = NULL,
    retired_at = excluded.retired_at, expires_at = excluded.expires_at
"""
SET_STATE = "UPDATE braid.generations SET state = $2 WHERE id = $1"
ACTIVATE = """
UPDATE braid.collections SET active_generation_id = $2, updated_at = now() WHERE id = $1
"""
FINISH_BUILD = "DELETE FROM braid.builds WHERE generation_id = $1"
GIVE_UP = """
UPDATE braid.generations g
SET state = CASE WHEN b.retired_at IS NULL THEN 'discarded' ELSE 'retired' END
FROM braid.builds b WHERE b.generation_id = g.id AND b.job_id = $1 AND g.state = 'building'
RETURNING g.id
"""

UNDER_WAY = f"""
SELECT {COLLECTION_COLUMNS}, j.id AS job_id, j.status, j.documents, j.indexed, j.failed
FROM braid.generations g JOIN braid.collections c ON c.id = g.collection_id
JOIN braid.builds b ON b.generation_id = g.id JOIN braid.jobs j ON j.id = b.job_id
WHERE g.collection_id = ANY($1) AND g.state = 'building'
"""
KEPT = """
SELECT DISTINCT ON (g.collection_id) g.collection_id, g.id, b.expires_at
FROM braid.generations g JOIN braid.builds b ON b.generation_id = g.id
WHERE g.collection_id = ANY($1) AND g.state = 'retired' AND b.expires_at > now()
ORDER BY g.collection_id, b.retired_at DESC
"""


class Build(msgspec.Struct, frozen=True):
    """A generation that is being built and how far it is."""

    generation: Generation
    built_to: int
    attempts: int
    first_boundary: int | None


class DueDocument(msgspec.Struct, frozen=True):
    """A document that the build does not hold in this version; `rows` is its size."""

    id: int
    version: int
    rows: int


class Failures(msgspec.Struct, frozen=True):
    """Documents that could not be carried over, and what is known of the first."""

    count: int
    first: str | None


class BuildInfo(msgspec.Struct, frozen=True):
    """A build as the owner of its collection sees it."""

    generation: Generation
    job_id: int
    status: JobStatus
    documents: int
    indexed: int
    failed: int


class KeptGeneration(msgspec.Struct, frozen=True):
    """The generation before the active one, and until when it can be returned to."""

    id: int
    until: datetime


async def start_build(connection: Connection, wanted: Generation, job_id: int) -> int:
    """Make the generation that `wanted` describes; raises `ConflictError` beside another build."""
    generation_id: int | None = await connection.fetchval(
        INSERT_GENERATION,
        wanted.team_id,
        wanted.collection_id,
        wanted.provider,
        wanted.model,
        wanted.dim,
        wanted.base_url,
        wanted.language,
        wanted.analyzer,
        wanted.chunk_size,
        wanted.chunk_overlap,
        wanted.k1,
        wanted.b,
        wanted.row_budget,
        wanted.average_length,
        *contextual_columns(wanted.contextual),
    )
    if generation_id is None:
        job = await connection.fetchval(BUILDING_JOB, wanted.collection_id)
        raise _under_way(job)
    await connection.execute(INSERT_BUILD, generation_id, wanted.team_id, job_id)
    await connection.execute(CREATE_PARTITION, generation_id)
    return generation_id


async def reopen_build(connection: Connection, collection_id: int, job_id: int) -> int:
    """Let the generation before the active one follow the documents again; its id.

    Raises `ConflictError` when there is none, or beside another build.
    """
    if (job := await connection.fetchval(BUILDING_JOB, collection_id)) is not None:
        raise _under_way(job)
    try:
        generation_id: int | None = await connection.fetchval(REOPEN, collection_id)
    except asyncpg.UniqueViolationError as error:
        raise _under_way(None) from error
    if generation_id is None:
        raise ConflictError("there is no earlier generation to return to")
    await connection.execute(REOPEN_BUILD, generation_id, job_id)
    return generation_id


async def count_behind(connection: Connection, build: Build, limit: int) -> int:
    """Documents that the build has not come to yet, counted up to a limit."""
    behind: int = await connection.fetchval(
        COUNT_BEHIND, build.generation.collection_id, build.built_to, limit
    )
    return behind


async def find_build(connection: Connection, job_id: int) -> Build | None:
    """The build of a job; None when it was given up."""
    return _as_build(await connection.fetchrow(FIND, job_id))


async def hold_build(connection: Connection, job_id: int) -> Build | None:
    """The build of a job, its generation shared and its progress held alone."""
    build = _as_build(await connection.fetchrow(HOLD, job_id))
    if build is not None:
        await connection.execute(HOLD_BUILD, build.generation.id)
    return build


async def settle_versions(connection: Connection, build: Build, active: int) -> int:
    """A version below which every publication is committed, for good; waits for a short time."""
    await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
    await connection.execute(HOLD_ALONE, active)
    boundary: int = await connection.fetchval(NEXT_VERSION)
    await connection.execute(SET_FIRST_BOUNDARY, build.generation.id, boundary)
    return boundary


async def due_documents(
    connection: Connection, build: Build, active: int, boundary: int, limit: int
) -> tuple[list[DueDocument], bool]:
    """The next documents to carry over, and whether they are tried again out of their turn."""
    generation = build.generation
    rows = await connection.fetch(TO_RETRY, generation.id, active, limit)
    again = bool(rows)
    if not again:
        rows = await connection.fetch(
            DUE, generation.collection_id, active, build.built_to, boundary, limit
        )
    return [DueDocument(*row) for row in rows], again


async def count_attempt(connection: Connection, build: Build) -> int:
    """Count an attempt at the next documents, to be committed before the work begins."""
    attempts: int = await connection.fetchval(COUNT_ATTEMPT, build.generation.id)
    return attempts


async def forgive_attempts(connection: Connection, build: Build) -> None:
    """Forget the attempts: the documents were not at fault."""
    await connection.execute(FORGIVE, build.generation.id)


async def advance(connection: Connection, build: Build, built_to: int) -> None:
    """Note that the build holds all documents up to this version."""
    await connection.execute(ADVANCE, build.generation.id, built_to)


async def lock_versions(connection: Connection, documents: Sequence[int]) -> dict[int, int]:
    """Versions of those documents that still exist; none is published or deleted meanwhile."""
    return {row["id"]: row["version"] for row in await connection.fetch(LOCK_VERSIONS, documents)}


async def note_failures(
    connection: Connection, build: Build, carried: Sequence[int], reasons: dict[int, str]
) -> None:
    """Write down which documents failed, and that others no longer do."""
    generation = build.generation
    await connection.execute(CLEAR_FAILURES, generation.id, carried)
    if reasons:
        shortened = [reason[:MAX_REASON] for reason in reasons.values()]
        await connection.execute(
            ADD_FAILURES, generation.id, generation.team_id, list(reasons), shortened
        )


async def failures_of(connection: Connection, build: Build) -> Failures:
    """What failed and was not to be tried again."""
    row = await connection.fetchrow(COUNT_FAILURES, build.generation.id)
    assert row is not None
    return Failures(row["failures"], row["first"])


async def retry_failures(connection: Connection, build: Build) -> None:
    """Have the documents that failed tried again."""
    await connection.execute(RETRY_FAILURES, build.generation.id)


async def count_progress(connection: Connection, build: Build, job_id: int, more: int) -> bool:
    """Count `more` documents and what failed; whether the job is still to go on."""
    going: int | None = await connection.fetchval(COUNT_PROGRESS, job_id, build.generation.id, more)
    return going is not None


async def hold_ingest(connection: Connection, build: Build, seconds: float) -> None:
    """Keep workers from beginning on other documents of the collection for so long."""
    await connection.execute(HOLD_INGEST, build.generation.id, seconds)


async def is_ingest_held(connection: Connection, collection_id: int) -> bool:
    """Whether a build that is nearly done asks for documents to wait."""
    held: bool = await connection.fetchval(IS_INGEST_HELD, collection_id)
    return held


async def end_job(
    connection: Connection,
    job_id: int,
    status: JobStatus,
    error: str | None = None,
    *,
    among: Sequence[JobStatus] = ("processing",),
) -> bool:
    """Give a job another status if it has one of those; whether it had."""
    reason = error and error[:MAX_REASON]
    return await connection.fetchval(END_JOB, job_id, status, reason, among) is not None


async def swap(
    connection: Connection, collection_id: int, job_id: int, *, keep_seconds: float
) -> bool:
    """Make the build of a job the active generation if it holds everything; whether it did.

    The collection is held alone: nothing is published or deleted meanwhile.
    """
    await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
    collection = await lock_collection(connection, collection_id)
    build = await hold_build(connection, job_id)
    if collection is None or build is None:
        return False
    failed = await connection.fetchval(ANY_FAILURE, build.generation.id)
    if failed or await count_behind(connection, build, 1):
        return False
    if not await end_job(connection, job_id, "done"):
        return False
    active, new = collection.generation, build.generation
    version = await connection.fetchval(NEXT_VERSION)
    await connection.execute(RETIRE, active.id, active.team_id, version, keep_seconds)
    await connection.execute(SET_STATE, active.id, "retired")
    await connection.execute(FINISH_BUILD, new.id)
    await connection.execute(SET_STATE, new.id, "active")
    await connection.execute(ACTIVATE, collection_id, new.id)
    return True


async def give_up_build(connection: Connection, job_id: int) -> bool:
    """Discard the build of a job, or let it wait again for a rollback; whether there was one."""
    return await connection.fetchval(GIVE_UP, job_id) is not None


async def builds_under_way(
    connection: Connection, collections: Sequence[int]
) -> dict[int, BuildInfo]:
    """The build of each collection that has one."""
    found = {}
    for row in await connection.fetch(UNDER_WAY, collections):
        collection = as_collection(row)
        assert collection is not None
        found[collection.id] = BuildInfo(
            generation=collection.generation,
            job_id=row["job_id"],
            status=row["status"],
            documents=row["documents"],
            indexed=row["indexed"],
            failed=row["failed"],
        )
    return found


async def kept_generations(
    connection: Connection, collections: Sequence[int]
) -> dict[int, KeptGeneration]:
    """The generation that each collection can return to."""
    return {
        row["collection_id"]: KeptGeneration(row["id"], row["expires_at"])
        for row in await connection.fetch(KEPT, collections)
    }


def _under_way(job_id: int | None) -> ConflictError:
    which = f"job {job_id}: wait for it, resume it or cancel it" if job_id else "wait for it"
    return ConflictError(f"a re-index of this collection is under way, {which}")


def _as_build(row: asyncpg.Record | None) -> Build | None:
    collection = as_collection(row) if row else None
    if row is None or collection is None:
        return None
    return Build(collection.generation, row["built_to"], row["attempts"], row["first_boundary"])
