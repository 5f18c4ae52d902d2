"""Ingests: accepted versions of documents that wait for the worker, and their order."""

from collections.abc import Sequence

import msgspec

from service.db.pool import Connection
from service.models import IngestMode

MAX_REASON = 500
ALONE_AFTER = 2
"""Attempts after which a document is worked on alone: it may be what stops the worker."""
EFFORT_OF_A_DOCUMENT = 1_000

# What is sent anew as a whole makes older versions pointless. Locked in the order of ids, like
# every statement here that touches several rows.
INSERT_INGESTS = """
WITH given AS (
    SELECT * FROM unnest($3::bigint[], $4::text[], $5::bytea[]) WITH ORDINALITY
        AS given (document_id, mode, payload, nth)
), outdated AS MATERIALIZED (
    SELECT i.id FROM braid.ingests i
    WHERE i.status = 'pending'
      AND i.document_id IN (SELECT document_id FROM given WHERE mode = 'replace')
    ORDER BY i.id FOR UPDATE
), superseded AS (
    UPDATE braid.ingests i SET status = 'superseded', payload = NULL
    FROM outdated WHERE i.id = outdated.id
)
INSERT INTO braid.ingests (team_id, job_id, document_id, mode, payload)
SELECT $1, $2, document_id, mode, payload FROM given ORDER BY nth
"""

# An ingest waits while its document has an older one. The running sums bound the batch; rows
# that were tried before come last and, tried twice, one by one.
CLAIM = f"""
WITH due AS (
    SELECT i.id, i.attempts, octet_length(i.payload) + {EFFORT_OF_A_DOCUMENT} AS effort
    FROM braid.ingests i
    WHERE i.job_id = $1 AND i.status = 'pending' AND NOT EXISTS (
        SELECT FROM braid.ingests older
        WHERE older.document_id = i.document_id AND older.status = 'pending' AND older.id < i.id)
), ranked AS (
    SELECT id, attempts, row_number() OVER turn AS nth, sum(effort) OVER turn AS effort
    FROM due WINDOW turn AS (ORDER BY attempts, id ROWS UNBOUNDED PRECEDING)
), chosen AS MATERIALIZED (
    SELECT i.id FROM braid.ingests i JOIN ranked r ON r.id = i.id
    WHERE i.status = 'pending'
      AND (r.nth = 1 OR (r.attempts < {ALONE_AFTER} AND r.effort <= $2))
    ORDER BY i.id FOR UPDATE OF i
)
UPDATE braid.ingests i SET attempts = i.attempts + 1
FROM chosen, braid.documents d
WHERE i.id = chosen.id AND d.id = i.document_id
RETURNING i.id, i.document_id, d.doc_id, i.mode, i.attempts, i.payload, i.xmin::text AS version
"""

GIVE_BACK = """
UPDATE braid.ingests SET attempts = greatest(attempts - 1, 0)
WHERE id = ANY($1) AND status = 'pending'
"""

STILL_DUE = """
SELECT i.id FROM unnest($1::bigint[], $2::text[]) AS claimed (id, version)
JOIN braid.ingests i ON i.id = claimed.id AND i.xmin::text = claimed.version
WHERE i.status = 'pending' AND NOT EXISTS (
    SELECT FROM braid.ingests older
    WHERE older.document_id = i.document_id AND older.status = 'pending' AND older.id < i.id)
"""

LEFT = "SELECT EXISTS (SELECT FROM braid.ingests WHERE job_id = $1 AND status = 'pending')"

CLOSE = """
UPDATE braid.ingests SET status = 'done', payload = NULL, failure_reason = NULL
WHERE id = ANY($1)
"""

# The payload stays: what failed can be looked at and sent anew.
FAIL = """
UPDATE braid.ingests i SET status = 'error', failure_reason = failed.reason
FROM unnest($1::bigint[], $2::text[]) AS failed (id, reason)
WHERE i.id = failed.id AND i.status = 'pending' RETURNING i.id
"""

PENDING_PAYLOADS = """
SELECT id, mode, payload FROM braid.ingests
WHERE document_id = $1 AND status = 'pending' ORDER BY id FOR UPDATE
"""
REPLACE_PAYLOAD = "UPDATE braid.ingests SET payload = $2 WHERE id = $1"


class NewIngest(msgspec.Struct, frozen=True):
    """One document of a job as it goes into the database."""

    document: int
    mode: IngestMode
    payload: bytes


class ClaimedIngest(msgspec.Struct, frozen=True):
    """An ingest that a worker has begun; `attempts` counts this one."""

    id: int
    document: int
    doc_id: str
    mode: IngestMode
    attempts: int
    payload: bytes
    version: str
    """Changes with the row, so that a payload that was edited meanwhile is noticed."""


async def insert_ingests(
    connection: Connection, team_id: int, job_id: int, ingests: Sequence[NewIngest]
) -> None:
    """Add the ingests of a job; those that replace a document supersede its waiting ones."""
    await connection.execute(
        INSERT_INGESTS,
        team_id,
        job_id,
        [ingest.document for ingest in ingests],
        [ingest.mode for ingest in ingests],
        [ingest.payload for ingest in ingests],
    )


async def claim(connection: Connection, job_id: int, *, effort: int) -> list[ClaimedIngest]:
    """Begin the next ingests of a job, at least one if any is due, and count the attempt.

    `effort`: bytes of payload at most, a document by itself counting for some.
    """
    rows = await connection.fetch(CLAIM, job_id, effort)
    return sorted((ClaimedIngest(*row) for row in rows), key=lambda ingest: ingest.id)


async def give_back(connection: Connection, ingests: Sequence[int]) -> None:
    """Take back the attempts that were counted: the documents were not at fault."""
    await connection.execute(GIVE_BACK, ingests)


async def still_due(connection: Connection, ingests: Sequence[ClaimedIngest]) -> set[int]:
    """Those that nothing overtook or changed since they were claimed."""
    rows = await connection.fetch(
        STILL_DUE, [ingest.id for ingest in ingests], [ingest.version for ingest in ingests]
    )
    return {row["id"] for row in rows}


async def ingests_left(connection: Connection, job_id: int) -> bool:
    """Whether a job has ingests that wait."""
    left: bool = await connection.fetchval(LEFT, job_id)
    return left


async def close_ingests(connection: Connection, ingests: Sequence[int]) -> None:
    """Mark ingests as done."""
    await connection.execute(CLOSE, ingests)


async def fail_ingests(connection: Connection, reasons: dict[int, str]) -> set[int]:
    """Mark ingests as failed, with a reason each; those that were still pending."""
    shortened = [reason[:MAX_REASON] for reason in reasons.values()]
    return {row["id"] for row in await connection.fetch(FAIL, list(reasons), shortened)}


class PendingPayload(msgspec.Struct, frozen=True):
    """What an ingest that waits will write."""

    id: int
    mode: IngestMode
    payload: bytes


async def pending_payloads(connection: Connection, document: int) -> list[PendingPayload]:
    """Payloads that wait for a document, held still until the transaction ends."""
    rows = await connection.fetch(PENDING_PAYLOADS, document)
    return [PendingPayload(**row) for row in rows]


async def replace_payload(connection: Connection, ingest: int, payload: bytes) -> None:
    """Change what a waiting ingest will write."""
    await connection.execute(REPLACE_PAYLOAD, ingest, payload)
