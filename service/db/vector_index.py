"""HNSW indexes of generations: what is there, building and dropping, and what was measured."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import asyncpg
import msgspec

from service.db.dense import EXACT_COMPONENTS, index_expression
from service.db.hosts import connect
from service.db.pool import LOST_CONNECTION, Connection, Database
from service.errors import UnavailableError
from service.models import Generation, Quantization

CONNECT_SECONDS = 10.0
MAX_DIMENSIONS: Mapping[Quantization, int] = {"none": 4_000, "binary": 64_000}
GROWTH = 1.5
GROWTH_ROWS = 1_000
PATIENCE = 8
RETRY_AFTER = "interval '1 hour'"
CLIENT_CHECK = "client_connection_check_interval"

CLAIM = "SELECT pg_try_advisory_lock(hashtextextended('braid vector index', $1))"
INDEXES = """
SELECT c.relname AS name, i.indisvalid AS valid
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
WHERE i.indrelid = to_regclass($1::text) AND a.amname = 'hnsw'
"""
PROGRESS = """
SELECT phase, (blocks_done * 100.0 / nullif(blocks_total, 0))::float8 AS percent
FROM pg_stat_progress_create_index WHERE relid = to_regclass($1::text)
"""
SAMPLE_IDS = """
SELECT array_agg(id) FROM (
    SELECT id FROM {table} TABLESAMPLE SYSTEM ($1) WHERE embedding IS NOT NULL
    ORDER BY random() LIMIT $2) AS sampled
"""
COUNT_VECTORS = "SELECT count(embedding) FROM {table}"
PUBLISH = """
UPDATE braid.generations SET index_quantization = $2, index_rows = $3, index_ef_search = $4,
    index_recall = $5, index_note = $6, index_sample = $7, index_measured_at = now()
WHERE id = $1
"""
FORGET = """
UPDATE braid.generations SET index_quantization = NULL, index_rows = NULL, index_ef_search = NULL,
    index_recall = NULL, index_note = $2, index_sample = NULL, index_measured_at = NULL
WHERE id = $1
"""
IS_THERE = """
SELECT EXISTS (SELECT FROM braid.generations g JOIN braid.collections c ON c.id = g.collection_id
               WHERE g.id = $1 AND g.state <> 'discarded')
"""
SET_POLICY = "UPDATE braid.collections SET index_policy = $2, updated_at = now() WHERE id = $1"

# The planner's estimate of the rows is as old as the last ANALYZE, which follows every fifth.
# A row is written several times faster without the index: a load may end first, within bounds.
DUE = f"""
SELECT c.index_policy <> 'exact' AND g.dim <= $3 AND (
    CASE WHEN g.index_quantization IS DISTINCT FROM c.quantization
         THEN p.reltuples * g.dim > $4 AND (p.reltuples * g.dim > {PATIENCE} * $4 OR NOT EXISTS (
             SELECT FROM braid.jobs j WHERE j.collection_id = c.id AND j.kind = 'ingest'
                 AND j.status IN ('pending', 'processing')))
         ELSE p.reltuples > {GROWTH} * g.index_rows + $5 END)
    AND NOT EXISTS (
        SELECT FROM braid.jobs j WHERE j.collection_id = c.id AND j.kind = 'index' AND (
            j.status IN ('pending', 'processing')
            OR j.status = 'error' AND j.updated_at > now() - {RETRY_AFTER}))
FROM braid.generations g JOIN braid.collections c ON c.id = g.collection_id
JOIN pg_class p ON p.oid = to_regclass($2::text)
WHERE g.id = $1 FOR NO KEY UPDATE OF c
"""


class IndexBuildError(Exception):
    """The server could not build the index; the message says why."""


class IndexProgress(msgspec.Struct, frozen=True):
    """Where the server is with building an index."""

    phase: str
    percent: float | None


class IndexMeasure(msgspec.Struct, frozen=True):
    """What was found out about an index; `ef_search` is None when none is good enough."""

    rows: int
    ef_search: int | None
    recall: float | None
    note: str | None
    sample: list[int]


class IndexBuilder:
    """A session that builds and drops indexes, and holds the right to until it ends."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection
        self.notices: list[str] = []
        connection.add_log_listener(self._listen)

    def _listen(self, _connection: object, message: Any) -> None:
        self.notices.append(str(message.message))

    async def claim(self, generation_id: int) -> bool:
        """Whether this session is the one that changes the indexes of the generation."""
        claimed: bool = await self._connection.fetchval(CLAIM, generation_id)
        return claimed

    async def indexes(self, generation_id: int) -> dict[str, bool]:
        """Names of the HNSW indexes that are there, and whether each is complete."""
        found = await self._connection.fetch(INDEXES, _table(generation_id))
        return {row["name"]: row["valid"] for row in found}

    async def build(self, generation: Generation, quantization: Quantization) -> None:
        """Build an index beside searches and writes; stopped half-way it leaves an invalid one."""
        assert generation.dim is not None
        name = index_name(generation.id, quantization)
        expression = index_expression(generation.dim, quantization)
        await self._run(
            f"CREATE INDEX CONCURRENTLY {name} ON {_table(generation.id)} USING hnsw ({expression})"
        )
        # The planner needs no statistics of what it only orders by, and they are large.
        await self._run(f"ALTER INDEX braid.{name} ALTER COLUMN 1 SET STATISTICS 0")

    async def drop(self, name: str) -> None:
        """Drop an index without holding up searches."""
        await self._run(f"DROP INDEX CONCURRENTLY IF EXISTS braid.{name}")

    async def _run(self, statement: str) -> None:
        try:
            await self._connection.execute(statement)
        except LOST_CONNECTION as error:
            raise UnavailableError("the connection that changed the index was lost") from error
        except asyncpg.PostgresError as error:
            raise IndexBuildError(f"the server refused: {error}") from error


@contextlib.asynccontextmanager
async def open_builder(dsn: str, *, memory_mb: int | None) -> AsyncIterator[IndexBuilder]:
    """A session straight to the server; closing it stops what it builds."""
    try:
        connection = await connect(dsn, timeout=CONNECT_SECONDS)
    except (*LOST_CONNECTION, TimeoutError) as error:
        raise UnavailableError("cannot connect to the database") from error
    try:
        await connection.execute("SET statement_timeout = 0; SET lock_timeout = 0")
        # A worker that is killed must not leave the server building for nobody.
        with contextlib.suppress(asyncpg.PostgresError):
            await connection.execute(f"SET {CLIENT_CHECK} = '2s'")
        if memory_mb is not None:
            await connection.execute(f"SET maintenance_work_mem = '{memory_mb:d}MB'")
        yield IndexBuilder(connection)
    finally:
        connection.terminate()


def index_name(generation_id: int, quantization: Quantization) -> str:
    """Name of the index of a generation."""
    suffix = "hnsw" if quantization == "none" else f"hnsw_{quantization}"
    return f"chunks_{generation_id:d}_{suffix}"


async def index_progress(database: Database, generation_id: int) -> IndexProgress | None:
    """How far the server is with an index of the generation."""
    row = await database.fetch_row(PROGRESS, _table(generation_id))
    return IndexProgress(row["phase"], row["percent"]) if row else None


async def is_there(database: Database, generation_id: int) -> bool:
    """Whether the generation has not been deleted."""
    row = await database.fetch_row(IS_THERE, generation_id)
    return bool(row and row[0])


async def count_vectors(database: Database, generation_id: int) -> int:
    """Rows of the generation that have a vector."""
    row = await database.fetch_row(COUNT_VECTORS.format(table=_table(generation_id)))
    assert row is not None
    return int(row[0])


async def sample_rows(
    database: Database, generation_id: int, *, rows: int, wanted: int
) -> list[int]:
    """Row numbers of some rows with a vector, at random, from about ten times as many."""
    percent = min(100.0, 1000.0 * wanted / max(rows, 1))
    statement = SAMPLE_IDS.format(table=_table(generation_id))
    row = await database.fetch_row(statement, percent, wanted)
    return list(row[0]) if row and row[0] else []


async def publish_index(
    connection: Connection, generation_id: int, quantization: Quantization, found: IndexMeasure
) -> None:
    """Let searches use an index as it was measured."""
    await connection.execute(
        PUBLISH,
        generation_id,
        quantization,
        found.rows,
        found.ef_search,
        found.recall,
        found.note,
        found.sample,
    )


async def forget_index(connection: Connection, generation_id: int, note: str | None) -> None:
    """Let searches use no index."""
    await connection.execute(FORGET, generation_id, note)


async def set_index_policy(connection: Connection, collection_id: int, policy: str) -> None:
    """Say whether a collection has an approximate index."""
    await connection.execute(SET_POLICY, collection_id, policy)


async def index_is_due(connection: Connection, generation: Generation) -> bool:
    """Whether an index should be built or measured again, as the schema's owner; holds the row."""
    due: bool | None = await connection.fetchval(
        DUE,
        generation.id,
        _table(generation.id),
        MAX_DIMENSIONS["binary"],
        EXACT_COMPONENTS,
        GROWTH_ROWS,
    )
    return bool(due)


def _table(generation_id: int) -> str:
    return f"braid.chunks_{generation_id:d}"
