"""Batches of passages that a provider writes headers for, for as long as a day."""

from collections.abc import Sequence

import msgspec

from service.db.ingests import ClaimedIngest
from service.db.pool import Connection
from service.models import Generation

SIZE = """
SELECT coalesce(sum(octet_length(payload)), 0) FROM braid.ingests
WHERE job_id = $1 AND status = 'pending'
"""
NEXT = """
SELECT i.id, i.document_id, d.doc_id, i.mode, i.attempts, i.payload, i.xmin::text AS version
FROM braid.ingests i JOIN braid.documents d ON d.id = i.document_id
WHERE i.job_id = $1 AND i.status = 'pending' AND i.id > $2 ORDER BY i.id LIMIT $3
"""
INSERT = """
INSERT INTO braid.context_batches
    (team_id, job_id, generation_id, provider_batch, last_ingest, complete)
VALUES ($1, $2, $3, $4, $5, $6)
"""
OF_JOB = """
SELECT id, provider_batch, last_ingest, complete, read_at IS NOT NULL,
    extract(epoch FROM now() - created_at)::float8
FROM braid.context_batches WHERE job_id = $1 AND generation_id = $2 ORDER BY id
"""
MARK_READ = "UPDATE braid.context_batches SET read_at = now() WHERE id = $1"


class ContextBatch(msgspec.Struct, frozen=True):
    """A batch that was submitted."""

    id: int
    provider_batch: str | None
    """The provider's name of it; None: nothing was left to ask about."""
    last_ingest: int
    """Documents of the job up to this one are in this batch or an earlier one."""
    complete: bool
    """There is no other batch after it."""
    read: bool
    age_seconds: float


async def payload_bytes(connection: Connection, job_id: int) -> int:
    """How much a job has before it."""
    size: int = await connection.fetchval(SIZE, job_id)
    return size


async def next_ingests(
    connection: Connection, job_id: int, after: int, limit: int
) -> list[ClaimedIngest]:
    """Ingests of a job in their order, without beginning them."""
    return [ClaimedIngest(*row) for row in await connection.fetch(NEXT, job_id, after, limit)]


async def insert_batch(
    connection: Connection,
    generation: Generation,
    job_id: int,
    provider_batch: str | None,
    *,
    last_ingest: int,
    complete: bool,
) -> None:
    """Remember a batch."""
    await connection.execute(
        INSERT,
        generation.team_id,
        job_id,
        generation.id,
        provider_batch,
        last_ingest,
        complete,
    )


async def batches_of(
    connection: Connection, job_id: int, generation_id: int
) -> Sequence[ContextBatch]:
    """The batches of a job, the oldest first."""
    rows = await connection.fetch(OF_JOB, job_id, generation_id)
    return [ContextBatch(*row) for row in rows]


async def mark_read(connection: Connection, batch: int) -> None:
    """Note that the answers of a batch are kept, or that none are to be had."""
    await connection.execute(MARK_READ, batch)
