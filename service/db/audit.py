"""What an audit of a collection reads: its indexes, statistics, rows, segments and jobs."""

from datetime import datetime
from typing import Literal

import asyncpg
import msgspec

from service.db.pool import Connection
from service.db.segments import Segment, count_rows, live_segments
from service.db.upkeep import measured_average_length
from service.errors import NotFoundError
from service.models import Generation, IndexPolicy, JobStatus

COUNTED_AT_MOST = 20_000
"""Rows of a larger generation are estimated from the planner's statistics."""
MAX_EXAMPLES = 10

# Every index of the parent has its part in each partition.
INDEXES = """
SELECT parent.relname AS of_parent, part.relname AS name,
       coalesce(i.indisvalid AND i.indisready, false) AS valid
FROM pg_index p JOIN pg_class parent ON parent.oid = p.indexrelid
LEFT JOIN (pg_inherits h JOIN pg_index i ON i.indexrelid = h.inhrelid
           JOIN pg_class part ON part.oid = i.indexrelid)
    ON h.inhparent = p.indexrelid AND i.indrelid = to_regclass($1)
WHERE p.indrelid = 'braid.chunks'::regclass ORDER BY parent.relname
"""
TABLE = """
SELECT greatest(c.reltuples, 0)::bigint AS estimated, s.n_live_tup AS live, s.n_dead_tup AS dead,
       s.n_mod_since_analyze AS modified, pg_table_size(c.oid) AS bytes,
       greatest(s.last_analyze, s.last_autoanalyze) AS analyzed_at,
       greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed_at,
       (SELECT null_frac FROM pg_stats WHERE schemaname = 'braid' AND tablename = c.relname
            AND attname = 'embedding') AS without_vector
FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid WHERE c.oid = to_regclass($1)
"""
COUNTED = f"""
SELECT count(*) AS rows, count(*) FILTER (WHERE without) AS without_vector
FROM (SELECT embedding IS NULL AS without FROM braid.chunks
      WHERE generation_id = $1 LIMIT {COUNTED_AT_MOST + 1}) AS counted
"""
FAILED = f"""
SELECT doc_id, failure_reason, count(*) OVER () AS total FROM braid.documents
WHERE collection_id = $1 AND failure_reason IS NOT NULL ORDER BY id DESC LIMIT {MAX_EXAMPLES}
"""
JOBS = """
SELECT count(*) FILTER (WHERE status = 'pending') AS pending,
       count(*) FILTER (WHERE status = 'processing') AS processing,
       (extract(epoch FROM now() - min(created_at)))::float8 AS oldest_seconds,
       (extract(epoch FROM now() - max(updated_at)))::float8 AS idle_seconds,
       (array_agg(error ORDER BY id) FILTER (WHERE error IS NOT NULL))[1] AS waiting_for
FROM braid.jobs WHERE collection_id = $1 AND status IN ('pending', 'processing')
"""
HEADERS = """
SELECT (SELECT count(*) FROM braid.chunks WHERE generation_id = $2 AND context_due) AS due,
    coalesce(sum((usage ->> 'context_cached_tokens')::bigint), 0)::bigint AS cached,
    coalesce(sum((usage ->> 'context_input_tokens')::bigint
                 + (usage ->> 'context_cache_write_tokens')::bigint), 0)::bigint AS at_full_price
FROM braid.jobs WHERE collection_id = $1 AND usage ? 'context_calls'
"""
OTHER_GENERATIONS = """
SELECT g.id, g.state, j.id AS job_id, j.status AS job_status,
       (SELECT count(*) FROM braid.build_failures f WHERE f.generation_id = g.id) AS failures
FROM braid.generations g LEFT JOIN braid.builds b ON b.generation_id = g.id
LEFT JOIN braid.jobs j ON j.id = b.job_id
WHERE g.collection_id = $1 AND g.state IN ('building', 'retired') ORDER BY g.id
"""


VECTOR_INDEX = """
SELECT c.index_policy AS policy, g.index_rows AS measured_rows, g.index_recall AS recall,
       g.index_note AS note,
       (SELECT array_agg(part.relname::text) FROM pg_index i
        JOIN pg_class part ON part.oid = i.indexrelid JOIN pg_am a ON a.oid = part.relam
        WHERE i.indrelid = to_regclass($2::text) AND a.amname = 'hnsw' AND i.indisvalid) AS complete
FROM braid.generations g JOIN braid.collections c ON c.id = g.collection_id WHERE g.id = $1
"""


class IndexState(msgspec.Struct, frozen=True):
    """An index that the chunks of a generation should have."""

    of_parent: str
    name: str | None
    """None: there is none."""
    valid: bool


class VectorIndexState(msgspec.Struct, frozen=True):
    """What is wanted of the approximate index, and what is there."""

    policy: IndexPolicy
    measured_rows: int | None
    recall: float | None
    note: str | None
    complete: list[str] | None
    """Names of those that searches can use."""


class TableState(msgspec.Struct, frozen=True):
    """The table of a generation's chunks, as the server's counters see it."""

    rows: int
    estimated: bool
    without_vector: int
    dead: int
    modified: int
    bytes: int
    analyzed_at: datetime | None
    vacuumed_at: datetime | None


class OtherGeneration(msgspec.Struct, frozen=True):
    """A generation that is built beside the active one, or kept to go back to."""

    id: int
    state: Literal["building", "retired"]
    job_id: int | None
    job_status: JobStatus | None
    failures: int
    """Documents that it could not take over."""


class FailedDocument(msgspec.Struct, frozen=True):
    """A document whose last version could not be indexed."""

    doc_id: str
    reason: str


class JobState(msgspec.Struct, frozen=True):
    """Jobs that have not ended."""

    pending: int
    processing: int
    oldest_seconds: float | None
    idle_seconds: float | None
    """Since any of them moved."""
    waiting_for: str | None


class HeaderState(msgspec.Struct, frozen=True):
    """Headers that a model writes for chunks."""

    due: int
    """Chunks that wait for theirs."""
    cached_tokens: int
    """Of the prompts of all jobs of the collection."""
    full_price_tokens: int


class Audit(msgspec.Struct, frozen=True):
    """A collection as it stands."""

    indexes: list[IndexState]
    vector_index: VectorIndexState
    table: TableState
    segments: list[Segment]
    packed_alive: int
    """Rows in the range of the segments that still exist."""
    fresh: int
    """Rows past the newest segment."""
    failed: int
    failures: list[FailedDocument]
    """The newest of them."""
    average_length: float | None
    """Of the rows now; the generation knows the one that their scores were computed with."""
    jobs: JobState
    generations: list[OtherGeneration]
    headers: HeaderState


async def read_audit(connection: Connection, generation: Generation) -> Audit:
    """Read all of it as the owner of the schema."""
    table = f"braid.chunks_{generation.id:d}"
    segments = await live_segments(connection, generation.id)
    boundary = segments[-1].upper if segments else 0
    alive, fresh = await count_rows(connection, generation.id, boundary) if segments else (0, 0)
    failures = await connection.fetch(FAILED, generation.collection_id)
    jobs = await connection.fetchrow(JOBS, generation.collection_id)
    others = await connection.fetch(OTHER_GENERATIONS, generation.collection_id)
    vector_index = await connection.fetchrow(VECTOR_INDEX, generation.id, table)
    headers = await connection.fetchrow(HEADERS, generation.collection_id, generation.id)
    assert jobs is not None
    assert headers is not None
    if vector_index is None:
        raise NotFoundError("unknown collection")
    return Audit(
        indexes=[IndexState(*row) for row in await connection.fetch(INDEXES, table)],
        vector_index=VectorIndexState(*vector_index),
        table=await _table_state(connection, generation, table),
        segments=segments,
        packed_alive=alive,
        fresh=fresh,
        failed=failures[0]["total"] if failures else 0,
        failures=[FailedDocument(row["doc_id"], row["failure_reason"]) for row in failures],
        average_length=await measured_average_length(connection, generation.id),
        jobs=JobState(*jobs),
        generations=[OtherGeneration(*row) for row in others],
        headers=HeaderState(*headers),
    )


async def _table_state(connection: Connection, generation: Generation, table: str) -> TableState:
    row = await connection.fetchrow(TABLE, table)
    counted = await connection.fetchrow(COUNTED, generation.id)
    assert counted is not None
    if row is None:
        raise NotFoundError("unknown collection")
    estimated = counted["rows"] > COUNTED_AT_MOST
    rows, without = (
        _estimate(row, counted) if estimated else (counted["rows"], counted["without_vector"])
    )
    return TableState(
        rows=rows,
        estimated=estimated,
        without_vector=without,
        dead=row["dead"] or 0,
        modified=row["modified"] or 0,
        bytes=row["bytes"],
        analyzed_at=row["analyzed_at"],
        vacuumed_at=row["vacuumed_at"],
    )


def _estimate(row: asyncpg.Record, counted: asyncpg.Record) -> tuple[int, int]:
    rows = max(row["estimated"], row["live"] or 0, counted["rows"])
    return rows, max(round(rows * (row["without_vector"] or 0)), counted["without_vector"])
