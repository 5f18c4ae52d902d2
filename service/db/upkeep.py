"""What a generation's rows have in common, brought up to date after documents were written."""

from collections.abc import Sequence

import asyncpg
import msgspec

from service.db.pool import Connection, Database
from service.models import Generation

EXACT_ROWS = 10_000
BATCH_ROWS = 2_000
SAMPLED_PAGES = 1_000
TOLERATED_DRIFT = {200: 0.001, 2_000: 0.01}
"""Share of the average by rows: to rewrite a row costs as much as to index it, about 1 ms."""
LARGE_DRIFT = 0.1
LOADING_ROWS = 1_000
"""Beyond, the last of several waiting jobs sets right what the others leave."""
GROWTH = 1.2

# Rows without a lexeme never match, so they say nothing about the length of those that do.
COUNTED_LENGTH = f"""
SELECT count(*) AS rows, (avg(length) FILTER (WHERE length > 0))::float8 AS average
FROM (SELECT length FROM braid.chunks WHERE generation_id = $1 LIMIT {EXACT_ROWS + 1}) AS counted
"""
SAMPLED_LENGTH = """
SELECT (avg(length) FILTER (WHERE length > 0))::float8
FROM braid.chunks TABLESAMPLE SYSTEM ($2) WHERE generation_id = $1
"""
PAGES = "SELECT pg_relation_size($1::text::regclass) / current_setting('block_size')::int"

IS_EMPTY = "SELECT NOT EXISTS (SELECT FROM braid.chunks WHERE generation_id = $1)"
EXPECTED_LENGTH = """
SELECT (avg(length) FILTER (WHERE length > 0))::float8
FROM unnest($2::text[], $3::text[]) AS given (exact, words)
CROSS JOIN LATERAL braid.document_length(
    exact::tsvector || to_tsvector($1::text::regconfig, words)) AS length
"""
MORE_JOBS = """
SELECT count(*) > 1 FROM braid.jobs
WHERE collection_id = $1 AND kind = 'ingest' AND status IN ('pending', 'processing')
"""

ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended('braid average length', $1))"
# Whoever writes rows of the generation holds it in SHARE mode, so this waits for their commits.
HOLD = "SELECT id FROM braid.generations WHERE id = $1 FOR NO KEY UPDATE"
IN_USE = "SELECT average_length FROM braid.generations WHERE id = $1"
RECOMPUTE = """
WITH batch AS MATERIALIZED (
    SELECT id FROM braid.chunks WHERE generation_id = $1 AND id > $2 ORDER BY id LIMIT $3
), computed AS (
    UPDATE braid.chunks c SET bm25 = braid.bm25_document(c.tsv, c.length, $4, $5, $6)
    FROM batch WHERE c.generation_id = $1 AND c.id = batch.id AND c.tsv IS NOT NULL
)
SELECT count(*) AS rows, max(id) AS last FROM batch
"""
SET_AVERAGE = "UPDATE braid.generations SET average_length = $2 WHERE id = $1"

STALE = f"""
SELECT pg_relation_size(c.oid) / current_setting('block_size')::int
           > {GROWTH} * greatest(c.relpages, 1)
    OR coalesce(s.last_analyze, s.last_autoanalyze) IS NULL
    OR s.n_mod_since_analyze > ({GROWTH} - 1) * greatest(c.reltuples, 1)
FROM pg_class c JOIN pg_stat_all_tables s ON s.relid = c.oid
WHERE c.oid = to_regclass($1::text)
"""


class _Length(msgspec.Struct, frozen=True):
    rows: int
    """At most one more than `EXACT_ROWS`."""
    average: float | None


async def is_empty(connection: Connection, generation_id: int) -> bool:
    """Whether a generation has no rows yet."""
    empty: bool = await connection.fetchval(IS_EMPTY, generation_id)
    return empty


async def seed_average_length(
    database: Database,
    generation: Generation,
    configuration: str,
    lexemes: Sequence[tuple[str, str]],
) -> None:
    """Expect of an empty generation the length of its first rows (exact lexemes and words)."""
    async with database.write(generation.team_id) as connection:
        await connection.fetchval(HOLD, generation.id)
        if await is_empty(connection, generation.id):
            exact, words = zip(*lexemes, strict=True)
            length = await connection.fetchval(EXPECTED_LENGTH, configuration, exact, words)
            if length is not None:
                await connection.execute(SET_AVERAGE, generation.id, length)


async def refresh_average_length(database: Database, generation: Generation) -> bool:
    """Follow the average length when it drifted, and BM25 of all rows with it; whether it did.

    Rows computed with different averages never stay: writers hold the generation in SHARE mode
    while they read its average and write, each batch here holds it alone, and new rows have
    higher numbers. Stopped half-way, the old average still stands and the drift with it.
    """
    async with database.write(generation.team_id) as connection:
        if await _drifted(connection, generation) is None:
            return False
        await connection.execute(ONE_AT_A_TIME, generation.id)
        average = await _drifted(connection, generation)
        if average is None:
            return False
        await _recompute(database, generation, average)
    return True


async def measured_average_length(connection: Connection, generation_id: int) -> float | None:
    """Average length of the rows now, of a sample when there are many; None without any."""
    return (await _measure(connection, generation_id)).average


async def analyze_if_grown(database: Database, generation_id: int) -> bool:
    """Renew the planner's statistics of a generation that grew by a fifth; whether it did."""
    table = f"braid.chunks_{generation_id:d}"
    row = await database.fetch_row(STALE, table)
    if row is None or not row[0]:
        return False
    await database.fetch_row(f"ANALYZE (SKIP_LOCKED) {table}")
    return True


async def _drifted(connection: Connection, generation: Generation) -> float | None:
    """The real average length, if it is too far from the one in use."""
    measured = await _measure(connection, generation.id)
    in_use = await connection.fetchval(IN_USE, generation.id)
    if measured.average is None or in_use is None:
        return None
    bounds = (drift for rows, drift in TOLERATED_DRIFT.items() if measured.rows <= rows)
    tolerated = next(bounds, LARGE_DRIFT)
    if measured.rows > LOADING_ROWS and await _more_jobs(connection, generation):
        tolerated = LARGE_DRIFT
    return measured.average if abs(measured.average / in_use - 1) > tolerated else None


async def _more_jobs(connection: Connection, generation: Generation) -> bool:
    more: bool = await connection.fetchval(MORE_JOBS, generation.collection_id)
    return more


async def _measure(connection: Connection, generation_id: int) -> _Length:
    counted = await connection.fetchrow(COUNTED_LENGTH, generation_id)
    assert counted is not None
    if counted["rows"] <= EXACT_ROWS:
        return _Length(counted["rows"], counted["average"])
    pages = await connection.fetchval(PAGES, f"braid.chunks_{generation_id:d}")
    share = min(100.0, 100 * SAMPLED_PAGES / max(pages, 1))
    return _Length(counted["rows"], await connection.fetchval(SAMPLED_LENGTH, generation_id, share))


async def _recompute(database: Database, generation: Generation, average: float) -> None:
    last, batch = 0, EXACT_ROWS + 1
    while True:
        async with database.write(generation.team_id) as connection:
            await connection.fetchval(HOLD, generation.id)
            done: asyncpg.Record | None = await connection.fetchrow(
                RECOMPUTE, generation.id, last, batch, average, generation.k1, generation.b
            )
            assert done is not None
            if done["rows"] < batch:
                await connection.execute(SET_AVERAGE, generation.id, average)
                return
        last, batch = done["last"], BATCH_ROWS
