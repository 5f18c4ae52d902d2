"""Turns ranked rows into what a client reads, and adds what surrounds them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import asyncpg
import msgspec
from pgvector import HalfVector, SparseVector

from service.db.lexical import sparse_weights
from service.db.pool import Connection
from service.models import Metadata, RecordType, StoredChunk, Vector

COLUMNS = (
    "id, chunk_id, doc_id, type, position, text, context, title, source, metadata,"
    " start_offset, end_offset, headings"
)

HYDRATE = f"SELECT {COLUMNS} FROM braid.searchable WHERE generation_id = $1 AND id = ANY($2)"

IMPACTS = "SELECT id, bm25 FROM braid.searchable WHERE generation_id = $1 AND id = ANY($2)"

DOCUMENTS = "SELECT id, doc_id, title, source, metadata FROM braid.documents WHERE id = ANY($1)"

CONTEXTUALIZED = """
SELECT id, CASE WHEN coalesce(context, '') = '' THEN text ELSE context || E'\n\n' || text END
FROM braid.searchable WHERE generation_id = $1 AND id = ANY($2)
"""

MAX_SIBLINGS = 1000
MAX_RELATED = 10_000
"""Siblings in one answer; with many hits each gets fewer."""
HITS = (
    "unnest($2::bigint[], $3::bigint[], $4::int[], $5::text[], $6::text[])"
    " AS hit(row, document_id, position, chunk_id, type)"
)
OF_DOCUMENT = "generation_id = $1 AND document_id = hit.document_id"
AROUND = f"""
    SELECT 'neighbours' AS relation, hit.row AS hit, near.* FROM {HITS} CROSS JOIN LATERAL (
        (SELECT {COLUMNS} FROM braid.searchable AS c
         WHERE {OF_DOCUMENT} AND type = 'chunk' AND hit.type = 'chunk'
           AND (c.position, c.chunk_id) < (hit.position, hit.chunk_id)
         ORDER BY c.position DESC, c.chunk_id DESC LIMIT $7)
        UNION ALL
        (SELECT {COLUMNS} FROM braid.searchable AS c
         WHERE {OF_DOCUMENT} AND type = 'chunk' AND hit.type = 'chunk'
           AND (c.position, c.chunk_id) > (hit.position, hit.chunk_id)
         ORDER BY c.position, c.chunk_id LIMIT $7)) AS near
"""
SUMMARY = f"""
    SELECT 'summary' AS relation, hit.row AS hit, s.* FROM {HITS} CROSS JOIN LATERAL (
        SELECT {COLUMNS} FROM braid.searchable WHERE {OF_DOCUMENT} AND type = 'summary') AS s
"""


HitKey: TypeAlias = tuple[int, int, int, str, RecordType]
"""Row, document, position, chunk id and type of a hit."""


class Surroundings(msgspec.Struct, frozen=True):
    """What to fetch around each hit."""

    siblings: int
    order: Vector | Mapping[int, float] | None
    """What siblings are near to: a vector, weights of lexemes by position, or reading order."""
    neighbours: int
    summary: bool


class DocumentHeader(msgspec.Struct, frozen=True):
    """What a grouped answer shows of a document."""

    doc_id: str
    title: str | None
    source: str | None
    metadata: Metadata


async def hydrate(
    connection: Connection, generation_id: int, rows: Sequence[int]
) -> dict[int, StoredChunk]:
    """The rows that still exist, by row number."""
    found = await connection.fetch(HYDRATE, generation_id, rows)
    return {row["id"]: as_chunk(row) for row in found}


async def contextualized_texts(
    connection: Connection, generation_id: int, rows: Sequence[int]
) -> dict[int, str]:
    """What was indexed of the rows that still exist: context and text, by row number."""
    found = await connection.fetch(CONTEXTUALIZED, generation_id, rows)
    return {row[0]: row[1] for row in found}


async def document_headers(
    connection: Connection, documents: Sequence[int]
) -> dict[int, DocumentHeader]:
    """Title, source and metadata of documents, by their row."""
    found = await connection.fetch(DOCUMENTS, documents)
    return {
        row["id"]: DocumentHeader(
            row["doc_id"], row["title"], row["source"], msgspec.json.decode(row["metadata"])
        )
        for row in found
    }


async def impacts(
    connection: Connection, generation_id: int, rows: Sequence[int]
) -> dict[int, dict[int, float]]:
    """Document side of BM25 of each row: impact by the lexeme's position (from 1)."""
    found = await connection.fetch(IMPACTS, generation_id, rows)
    return {row["id"]: _entries(row["bm25"]) for row in found if row["bm25"] is not None}


def _entries(vector: SparseVector) -> dict[int, float]:
    return {
        index + 1: value for index, value in zip(vector.indices(), vector.values(), strict=True)
    }


async def surroundings(
    connection: Connection, generation_id: int, hits: Sequence[HitKey], wanted: Surroundings
) -> dict[int, dict[str, list[StoredChunk]]]:
    """Siblings, neighbours and summary of all hits in one statement, by row and relation.

    Siblings come as `wanted.order` says, neighbours in reading order; a summary has none.
    """
    columns = [list(column) for column in zip(*hits, strict=True)]
    arguments: list[Any] = [generation_id, *columns, wanted.neighbours]
    parts = []
    if wanted.neighbours:
        parts.append(AROUND)
    if wanted.summary:
        parts.append(SUMMARY)
    if wanted.siblings:
        parts.append(_siblings(wanted, len(hits), arguments))
    # Only one part names $7; the cast keeps its type known to the others.
    statement = " UNION ALL ".join(f"({part})" for part in parts)
    statement = f"SELECT * FROM ({statement}) AS found WHERE $7::int IS NOT NULL"
    related: dict[int, dict[str, list[StoredChunk]]] = {}
    for row in await connection.fetch(statement, *arguments):
        relations = related.setdefault(row["hit"], {})
        relations.setdefault(row["relation"], []).append(as_chunk(row))
    for relations in related.values():
        relations.get("neighbours", []).sort(key=lambda chunk: (chunk.position, chunk.id))
    return related


def _siblings(wanted: Surroundings, hits: int, arguments: list[Any]) -> str:
    order = "position, chunk_id"
    if isinstance(wanted.order, Mapping):
        arguments.append(sparse_weights(wanted.order))
        order = f"bm25 <#> ${len(arguments)} NULLS LAST, {order}"
    elif wanted.order is not None:
        arguments.append(HalfVector(wanted.order))
        order = f"embedding <=> ${len(arguments)} NULLS LAST, {order}"
    arguments.append(min(wanted.siblings, MAX_SIBLINGS, max(1, MAX_RELATED // hits)))
    return f"""
        SELECT 'siblings' AS relation, hit.row AS hit, s.* FROM {HITS} CROSS JOIN LATERAL (
            SELECT {COLUMNS} FROM braid.searchable
            WHERE {OF_DOCUMENT} AND type = 'chunk' AND id <> hit.row
            ORDER BY {order} LIMIT ${len(arguments)}) AS s
    """


def from_column(headings: str | None) -> list[str]:
    """Headings, outermost first, as the column has them."""
    return headings.split("\n") if headings else []


def as_chunk(row: asyncpg.Record) -> StoredChunk:
    """A row of `COLUMNS` as the client's view of it."""
    kind: RecordType = row["type"]
    return StoredChunk(
        row=row["id"],
        id=row["chunk_id"],
        doc_id=row["doc_id"],
        type=kind,
        position=row["position"],
        text=row["text"],
        context=row["context"],
        title=row["title"],
        source=row["source"],
        metadata=msgspec.json.decode(row["metadata"]),
        start=row["start_offset"],
        end=row["end_offset"],
        headings=from_column(row["headings"]),
    )
