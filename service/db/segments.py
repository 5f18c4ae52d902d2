"""Packed postings: what a segment is made of, how it is written, and how a query reads it."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import islice

import asyncpg
import msgspec
import numpy as np
from numpy.typing import NDArray

from service.db.candidates import CandidateQuery, as_candidates, best_first, eligible
from service.db.catalog import COLLECTION_COLUMNS, COLLECTION_TABLES, as_collection
from service.db.lexical import sparse_weights
from service.db.pool import Connection, Database
from service.models import Candidate, Generation

Ids = NDArray[np.int64]
Ordinals = NDArray[np.int32]
Levels = NDArray[np.uint8]

READ_ROWS = 2_000
WRITTEN_LISTS = 5_000
HEADER_BYTES = 12
"""Of a sparsevec in binary: dimensions, entries and an unused word, before indices and values."""

HOLD = "SELECT average_length FROM braid.generations WHERE id = $1 FOR NO KEY UPDATE"
ONE_PACKER = "SELECT pg_try_advisory_xact_lock(hashtextextended('braid packed postings', $1))"
BOUNDARY = "SELECT nextval('braid.chunk_row_seq')"
ROWS = """
    SELECT id, document_id, type = 'summary' AS summary, sparsevec_send(bm25) AS bm25
    FROM braid.chunks WHERE generation_id = $1 AND id >= $2 AND id < $3 AND bm25 IS NOT NULL
    ORDER BY id LIMIT $4
"""
INSERT_SEGMENT = """
    INSERT INTO braid.segments (team_id, generation_id, lower, upper, rows, average_length,
                                row_ids, documents, summaries)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING id
"""
INSERT_LISTS = """
    INSERT INTO braid.postings (segment_id, lexeme, team_id, rows, data)
    SELECT $1, lexeme, $2, rows, data
    FROM unnest($3::int[], $4::int[], $5::bytea[]) AS given (lexeme, rows, data)
"""
RETIRE = "UPDATE braid.segments SET retired_at = now() WHERE id = ANY($1) AND retired_at IS NULL"
FORGET = """
    DELETE FROM braid.segments WHERE generation_id = $1 AND retired_at < now() - $2::interval
"""
SEGMENTS = """
    SELECT id, lower, upper, rows, average_length FROM braid.segments
    WHERE generation_id = $1 AND retired_at IS NULL ORDER BY lower
"""
LARGEST = f"""
    SELECT {COLLECTION_COLUMNS} FROM {COLLECTION_TABLES}
    ORDER BY (SELECT sum(s.rows) FROM braid.segments s
              WHERE s.generation_id = g.id AND s.retired_at IS NULL) DESC NULLS LAST, g.id
    LIMIT $1
"""
CONTENTS = "SELECT row_ids, documents, summaries FROM braid.segments WHERE id = $1"
LISTS = """
    SELECT segment_id, lexeme, rows, data FROM braid.postings
    WHERE segment_id = ANY($1) AND lexeme = ANY($2)
"""
LIVE_ROWS = """
    SELECT count(*) FILTER (WHERE id < $2) AS packed, count(*) FILTER (WHERE id >= $2) AS fresh
    FROM braid.chunks WHERE generation_id = $1
"""


class Segment(msgspec.Struct, frozen=True):
    """A range of a generation's rows whose postings are packed."""

    id: int
    lower: int
    upper: int
    rows: int
    average_length: float


class SegmentContents(msgspec.Struct, frozen=True):
    """By ordinal: the row, its document, and whether it is a summary."""

    rows: Ids
    documents: Ids
    summaries: NDArray[np.bool_]


class PostingList(msgspec.Struct, frozen=True):
    """The rows of a segment that hold one lexeme, ascending, and their impacts in levels."""

    ordinals: Ordinals
    levels: Levels

    @property
    def rows(self) -> int:
        """How many rows hold it."""
        return len(self.ordinals)


class RowBatch(msgspec.Struct, frozen=True):
    """Rows to pack: their entries one after the other, `counts` of them a row."""

    rows: Ids
    documents: Ids
    summaries: NDArray[np.bool_]
    counts: NDArray[np.int32]
    lexemes: NDArray[np.int32]
    impacts: NDArray[np.float32]


async def settle_boundary(connection: Connection, generation_id: int) -> int:
    """A row number below which every row of the generation is committed, for good.

    Whoever writes rows holds the generation in SHARE mode until the commit, so taking it alone
    waits for them, and rows written later have higher numbers.
    """
    await connection.fetchval(HOLD, generation_id)
    boundary: int = await connection.fetchval(BOUNDARY)
    return boundary


async def one_packer(connection: Connection, generation_id: int) -> bool:
    """Whether this transaction is the one that packs the generation now."""
    locked: bool = await connection.fetchval(ONE_PACKER, generation_id)
    return locked


async def rows_to_pack(
    connection: Connection, generation_id: int, lower: int, upper: int
) -> AsyncIterator[RowBatch]:
    """The rows of a range in ascending order, some thousand at a time."""
    while True:
        rows = await connection.fetch(ROWS, generation_id, lower, upper, READ_ROWS)
        if not rows:
            return
        yield _row_batch(rows)
        lower = rows[-1]["id"] + 1


def _row_batch(rows: Sequence[asyncpg.Record]) -> RowBatch:
    vectors = [row["bm25"] for row in rows]
    counts = np.array([(len(vector) - HEADER_BYTES) // 8 for vector in vectors], np.int32)
    sized = list(zip(vectors, counts.tolist(), strict=True))
    indices = [np.frombuffer(vector, ">i4", n, HEADER_BYTES) for vector, n in sized]
    impacts = [np.frombuffer(vector, ">f4", n, HEADER_BYTES + 4 * n) for vector, n in sized]
    return RowBatch(
        rows=np.array([row["id"] for row in rows], np.int64),
        documents=np.array([row["document_id"] for row in rows], np.int64),
        summaries=np.array([row["summary"] for row in rows], np.bool_),
        counts=counts,
        lexemes=np.concatenate(indices).astype(np.int32) + 1,
        impacts=np.concatenate(impacts).astype(np.float32),
    )


async def add_segment(
    connection: Connection,
    generation: Generation,
    bounds: tuple[int, int],
    contents: SegmentContents,
    lists: Iterable[tuple[int, PostingList]],
) -> None:
    """Write one segment of the rows from bounds[0] to before bounds[1], and its lists."""
    segment_id = await connection.fetchval(
        INSERT_SEGMENT,
        generation.team_id,
        generation.id,
        *bounds,
        len(contents.rows),
        generation.average_length,
        contents.rows.tobytes(),
        contents.documents.tobytes(),
        contents.summaries.tobytes(),
    )
    remaining = iter(lists)
    while batch := list(islice(remaining, WRITTEN_LISTS)):
        await connection.execute(
            INSERT_LISTS,
            segment_id,
            generation.team_id,
            [lexeme for lexeme, _ in batch],
            [len(one.ordinals) for _, one in batch],
            [pack_list(one) for _, one in batch],
        )


def pack_list(one: PostingList) -> bytes:
    """Ordinals as int4, then one byte an impact."""
    return one.ordinals.astype("<i4").tobytes() + one.levels.tobytes()


def unpack_list(rows: int, data: bytes) -> PostingList:
    """A view of a stored list."""
    return PostingList(np.frombuffer(data, "<i4", rows), np.frombuffer(data, "u1", rows, 4 * rows))


async def retire_segments(connection: Connection, segments: Sequence[int]) -> None:
    """Let queries find these no more; those that have begun still may."""
    await connection.execute(RETIRE, segments)


async def forget_segments(connection: Connection, generation_id: int, age: timedelta) -> None:
    """Delete what was retired longer ago than `age`."""
    await connection.execute(FORGET, generation_id, age)


async def live_segments(connection: Connection, generation_id: int) -> list[Segment]:
    """The segments of a generation in the order of their rows."""
    return [Segment(*row) for row in await connection.fetch(SEGMENTS, generation_id)]


async def largest_generations(database: Database, limit: int) -> list[Generation]:
    """Active generations of all teams, those with the most packed rows first."""
    async with database.administer() as connection:
        rows = await connection.fetch(LARGEST, limit)
    return [found.generation for row in rows if (found := as_collection(row))]


async def count_rows(connection: Connection, generation_id: int, boundary: int) -> tuple[int, int]:
    """Rows of a generation before and after a boundary."""
    row = await connection.fetchrow(LIVE_ROWS, generation_id, boundary)
    assert row is not None
    return row["packed"], row["fresh"]


async def segment_contents(connection: Connection, segment_id: int) -> SegmentContents | None:
    """What the ordinals of a segment stand for; None when it was forgotten."""
    row = await connection.fetchrow(CONTENTS, segment_id)
    if row is None:
        return None
    return SegmentContents(
        np.frombuffer(row["row_ids"], "<i8"),
        np.frombuffer(row["documents"], "<i8"),
        np.frombuffer(row["summaries"], np.bool_),
    )


async def posting_lists(
    connection: Connection, segments: Sequence[int], lexemes: Sequence[int]
) -> dict[tuple[int, int], PostingList]:
    """The lists of some lexemes, by segment and lexeme."""
    found = await connection.fetch(LISTS, segments, lexemes)
    return {(segment, lexeme): unpack_list(rows, data) for segment, lexeme, rows, data in found}


class PackedQuery(msgspec.Struct, frozen=True):
    """Rows that the lists put on top, and from where on rows are in no list."""

    rows: list[int]
    boundary: int
    tsquery: str
    """Matched by every row that holds a lexeme of the query, not just one of the same position."""
    weights: Mapping[int, float]
    """idf x query tf by the lexeme's position (from 1)."""


async def packed_candidates(
    connection: Connection, query: CandidateQuery, packed: PackedQuery
) -> list[Candidate]:
    """Those rows that are still there, and the best fresh rows, all with their exact scores."""
    arguments: list[object] = [
        sparse_weights(packed.weights),
        packed.rows,
        packed.boundary,
        packed.tsquery,
    ]
    score = "-(bm25 <#> $1)"
    condition = eligible(query, arguments)
    # As a function, because the planner would look up what @@ selects in thousands of statistics.
    holds = "ts_match_vq(tsv, $4::text::tsquery)"
    is_fresh = f"{condition} AND id >= $3 AND bm25 <#> $1 < 0 AND {holds}"
    fresh = best_first(query, score, is_fresh, arguments)
    still_there = (
        f"SELECT id, document_id, type, chunk_id, position, {score} AS score"
        f" FROM braid.searchable WHERE {condition} AND id = ANY($2) AND {holds}"
    )
    return as_candidates(await connection.fetch(f"({still_there}) UNION ALL ({fresh})", *arguments))
