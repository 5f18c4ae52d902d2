"""Jobs: what a client asked for, how far it is and how it ended."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from service.db.pool import Connection
from service.models import JobKind, JobStatus

MAX_WARNINGS = 100
MAX_FAILURES = 100
MAX_REASON = 500

INSERT_JOB = """
INSERT INTO braid.jobs (team_id, collection_id, kind, documents, warnings, usage)
VALUES ($1, $2, $5, $3, $4::jsonb, '{"embedding_tokens": 0}') RETURNING id
"""

BEGIN_JOB = """
UPDATE braid.jobs SET status = 'processing', error = NULL, updated_at = now()
WHERE id = $1 AND status IN ('pending', 'processing')
RETURNING kind, collection_id, extract(epoch FROM now() - created_at)::float8
"""

ADD_PROGRESS = f"""
UPDATE braid.jobs AS jobs SET
    indexed = indexed + $2, failed = failed + $3, updated_at = now(),
    usage = usage || (
        SELECT coalesce(jsonb_object_agg(spent.key,
            coalesce((jobs.usage ->> spent.key)::bigint, 0) + spent.value::bigint), '{{}}')
        FROM jsonb_each_text($4::jsonb) AS spent),
    warnings = CASE WHEN jsonb_array_length(warnings) < {MAX_WARNINGS}
        THEN warnings || $5::jsonb ELSE warnings END
WHERE id = $1
"""

POSTPONE_JOB = """
UPDATE braid.jobs SET status = 'pending', error = $2, updated_at = now()
WHERE id = $1 AND status = 'processing'
"""

FINISH_JOB = f"""
UPDATE braid.jobs j SET updated_at = now(),
    status = CASE WHEN failed > 0 AND failed = documents THEN 'error' ELSE 'done' END,
    error = CASE WHEN failed > 0 AND failed = documents THEN left(
        'every document failed' || coalesce(', the first because: ' || (
            SELECT failure_reason FROM braid.ingests i
            WHERE i.job_id = j.id AND i.status = 'error' ORDER BY i.id LIMIT 1), ''),
        {MAX_REASON}) END
WHERE id = $1 AND status = 'processing' AND NOT EXISTS (
    SELECT FROM braid.ingests i WHERE i.job_id = j.id AND i.status = 'pending')
RETURNING indexed, failed
"""
FAIL_JOB = """
UPDATE braid.jobs SET status = 'error', error = $2, updated_at = now()
WHERE id = $1 AND status IN ('pending', 'processing')
"""
SET_PROGRESS = "UPDATE braid.jobs SET progress = $2::jsonb, updated_at = now() WHERE id = $1"
# Held: what the caller changes in the same transaction is there when the job begins.
WAITING_JOB = """
SELECT id FROM braid.jobs WHERE collection_id = $1 AND kind = $2 AND status = 'pending'
ORDER BY id LIMIT 1 FOR UPDATE
"""

JOB_COLUMNS = """
j.id, j.kind, j.status, j.progress, j.error, j.warnings, j.documents, j.indexed, j.failed, j.usage,
j.created_at, j.updated_at, (SELECT count(*) FROM braid.ingests i
               WHERE i.job_id = j.id AND i.status = 'pending') AS waiting
"""
GET_JOB = f"SELECT {JOB_COLUMNS} FROM braid.jobs j WHERE j.collection_id = $1 AND j.id = $2"
LIST_JOBS = f"""
SELECT {JOB_COLUMNS} FROM braid.jobs j
WHERE j.collection_id = $1 AND ($4::text IS NULL OR j.status = $4)
ORDER BY j.id DESC LIMIT $2 OFFSET $3
"""
COUNT_JOBS = """
SELECT count(*) FROM braid.jobs
WHERE collection_id = $1 AND ($2::text IS NULL OR status = $2)
"""
FAILURES = f"""
SELECT i.job_id, d.doc_id, i.failure_reason FROM unnest($1::bigint[]) AS asked (job_id)
CROSS JOIN LATERAL (
    (SELECT job_id, document_id, failure_reason FROM braid.ingests
     WHERE job_id = asked.job_id AND status = 'error' ORDER BY id LIMIT {MAX_FAILURES})
    UNION ALL
    (SELECT b.job_id, f.document_id, f.reason FROM braid.builds b
     JOIN braid.build_failures f ON f.generation_id = b.generation_id
     WHERE b.job_id = asked.job_id ORDER BY f.document_id LIMIT {MAX_FAILURES})) AS i
JOIN braid.documents d ON d.id = i.document_id
"""
JOB_KIND = "SELECT kind FROM braid.jobs WHERE collection_id = $1 AND id = $2"
SET_DOCUMENTS = "UPDATE braid.jobs SET documents = $2 WHERE id = $1"
JOB_STATUS = "SELECT status FROM braid.jobs WHERE id = $1"


class JobCounts(msgspec.Struct, frozen=True):
    """Documents of a job; `superseded` ones were deleted, sent anew or cancelled before.

    A document that changes during a re-index counts once more.
    """

    documents: int
    indexed: int
    failed: int
    superseded: int


class DocumentFailure(msgspec.Struct, frozen=True):
    """Why one document was not indexed."""

    doc_id: str
    reason: str


class JobInfo(msgspec.Struct, frozen=True):
    """A job as its owner sees it; `error` says what a waiting job waits for."""

    job_id: int
    kind: JobKind
    status: JobStatus
    progress: dict[str, Any] | None
    """Of a job that builds an index: the phase, and percent of it where the server counts."""
    error: str | None
    warnings: list[str]
    counts: JobCounts
    failures: list[DocumentFailure]
    usage: dict[str, int]
    created_at: datetime
    updated_at: datetime


class BegunJob(msgspec.Struct, frozen=True):
    """A job that a worker is at."""

    kind: JobKind
    collection_id: int
    age_seconds: float


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a step adds to its job."""

    indexed: int = 0
    failed: int = 0
    usage: Mapping[str, int] = {}
    """Tokens and calls that providers count, by name."""
    warnings: Sequence[str] = ()


async def insert_job(
    connection: Connection,
    team_id: int,
    collection_id: int,
    *,
    kind: JobKind = "ingest",
    documents: int = 0,
    warnings: Sequence[str] = (),
) -> int:
    """Add a job; its id."""
    job_id: int = await connection.fetchval(
        INSERT_JOB, team_id, collection_id, documents, _as_json(warnings[:MAX_WARNINGS]), kind
    )
    return job_id


async def begin_job(connection: Connection, job_id: int) -> BegunJob | None:
    """Mark a job as processing; None if there is nothing left to do."""
    row = await connection.fetchrow(BEGIN_JOB, job_id)
    return BegunJob(*row) if row else None


async def add_progress(connection: Connection, job_id: int, progress: JobProgress) -> None:
    """Add to the counts, the usage and the warnings of a job."""
    await connection.execute(
        ADD_PROGRESS,
        job_id,
        progress.indexed,
        progress.failed,
        msgspec.json.encode(progress.usage).decode(),
        _as_json(progress.warnings),
    )


async def postpone_job(connection: Connection, job_id: int, reason: str | None) -> None:
    """Put a job back to pending and say what it waits for."""
    await connection.execute(POSTPONE_JOB, job_id, reason and reason[:MAX_REASON])


async def finish_job(connection: Connection, job_id: int) -> JobProgress | None:
    """End a job that has nothing pending; its totals, None if it had ended."""
    row = await connection.fetchrow(FINISH_JOB, job_id)
    return JobProgress(indexed=row["indexed"], failed=row["failed"]) if row else None


async def fail_job(connection: Connection, job_id: int, reason: str) -> None:
    """End a job that cannot be done."""
    await connection.execute(FAIL_JOB, job_id, reason[:MAX_REASON])


async def set_progress(connection: Connection, job_id: int, progress: Mapping[str, Any]) -> None:
    """Say how far a job is."""
    await connection.execute(SET_PROGRESS, job_id, msgspec.json.encode(progress).decode())


async def waiting_job(connection: Connection, collection_id: int, kind: JobKind) -> int | None:
    """A job that has not begun and does not before the transaction ends."""
    job_id: int | None = await connection.fetchval(WAITING_JOB, collection_id, kind)
    return job_id


async def get_job(connection: Connection, collection_id: int, job_id: int) -> JobInfo | None:
    """A job of a collection, on a connection that writes (readers do not see ingests)."""
    rows = await connection.fetch(GET_JOB, collection_id, job_id)
    jobs = await _with_failures(connection, rows)
    return jobs[0] if jobs else None


async def list_jobs(
    connection: Connection,
    collection_id: int,
    *,
    status: JobStatus | None = None,
    limit: int,
    offset: int,
) -> tuple[list[JobInfo], int]:
    """Jobs of a collection (of one status), the newest first, and how many there are."""
    rows = await connection.fetch(LIST_JOBS, collection_id, limit, offset, status)
    total: int = await connection.fetchval(COUNT_JOBS, collection_id, status)
    return await _with_failures(connection, rows), total


async def job_kind(connection: Connection, collection_id: int, job_id: int) -> JobKind | None:
    """What a job of a collection does, None if there is no such job."""
    kind: JobKind | None = await connection.fetchval(JOB_KIND, collection_id, job_id)
    return kind


async def set_documents(connection: Connection, job_id: int, documents: int) -> None:
    """Say how many documents a job is about."""
    await connection.execute(SET_DOCUMENTS, job_id, documents)


async def job_status(connection: Connection, job_id: int) -> JobStatus | None:
    """Where a job stands, None if there is no such job."""
    status: JobStatus | None = await connection.fetchval(JOB_STATUS, job_id)
    return status


async def _with_failures(connection: Connection, rows: list[asyncpg.Record]) -> list[JobInfo]:
    failures: dict[int, list[DocumentFailure]] = {row["id"]: [] for row in rows if row["failed"]}
    if failures:
        for row in await connection.fetch(FAILURES, list(failures)):
            failure = DocumentFailure(row["doc_id"], row["failure_reason"])
            failures[row["job_id"]].append(failure)
    return [_as_job(row, failures.get(row["id"], [])) for row in rows]


def _as_job(row: asyncpg.Record, failures: list[DocumentFailure]) -> JobInfo:
    finished = row["indexed"] + row["failed"]
    # What a re-index or a backfill has before it is in no ingest.
    open_ended = row["kind"] in ("reindex", "context") and row["status"] != "done"
    superseded = 0 if open_ended else row["documents"] - finished - row["waiting"]
    return JobInfo(
        job_id=row["id"],
        kind=row["kind"],
        progress=row["progress"] and msgspec.json.decode(row["progress"]),
        status=row["status"],
        error=row["error"],
        warnings=msgspec.json.decode(row["warnings"]),
        counts=JobCounts(row["documents"], row["indexed"], row["failed"], superseded),
        failures=failures,
        usage=msgspec.json.decode(row["usage"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _as_json(warnings: Sequence[str]) -> str:
    return msgspec.json.encode([warning[:MAX_REASON] for warning in warnings]).decode()
