"""Rows on their way from one generation of a collection to the next."""

from collections.abc import Sequence

import asyncpg
import msgspec
import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from service.db.chunks import TitleLexemes, as_column, refusals_named
from service.db.hydrate import from_column
from service.db.pool import Connection
from service.db.prepared import PreparedByHash, as_prepared
from service.models import Generation, RecordType

DOCUMENTS = """
SELECT id, doc_id, version, title, source, CASE WHEN $2 THEN text END AS text,
    chunk_size, chunk_overlap FROM braid.documents
WHERE id = ANY($1) ORDER BY version
"""
ROWS = """
SELECT document_id, id, type, chunk_id, position, text, context, context_due,
    start_offset, end_offset, headings, own_vector OR ($3 AND embedding IS NOT NULL) AS own_vector,
    embedding IS NOT NULL AS embedded,
    CASE WHEN own_vector OR $3 THEN embedding END AS embedding
FROM braid.chunks WHERE generation_id = $1 AND document_id = ANY($2)
ORDER BY document_id, type, position, chunk_id
"""
MADE = """
SELECT document_id, content_hash, context, embedding FROM braid.chunks
WHERE generation_id = $1 AND document_id = ANY($2) AND NOT own_vector AND NOT context_due
"""
REMOVE = "DELETE FROM braid.chunks WHERE generation_id = $1 AND document_id = ANY($2)"

# Title, source and metadata are those of the row at this moment: a patch needs no new version.
ADD = """
INSERT INTO braid.chunks (generation_id, team_id, document_id, type, chunk_id, doc_id, position,
    title, source, metadata, text, context, context_due, start_offset, end_offset, headings,
    content_hash, embedding, own_vector, tsv, length, bm25)
SELECT $1, old.team_id, old.document_id, old.type, new.chunk_id, old.doc_id, new.position,
    old.title, old.source, old.metadata, new.text, new.context, new.context_due,
    new.start_offset, new.end_offset, new.headings, new.content_hash,
    coalesce(new.embedding, donor.embedding), new.own_vector,
    lexemes.tsv, counted.length, braid.bm25_document(lexemes.tsv, counted.length, $4, $5, $6)
FROM unnest($7::bigint[], $8::bigint[], $9::text[], $10::int[], $11::text[], $12::text[],
            $13::int[], $14::int[], $15::bytea[], $16::halfvec[], $17::boolean[], $18::text[],
            $19::text[], $20::text[], $21::text[], $22::boolean[], $23::text[]) WITH ORDINALITY
    AS new (like_row, vector_row, chunk_id, position, text, context, start_offset, end_offset,
            content_hash, embedding, own_vector, exact, words, title_exact, title_words,
            context_due, headings, nth)
JOIN braid.chunks old ON old.generation_id = $2 AND old.id = new.like_row
LEFT JOIN braid.chunks donor ON donor.generation_id = $2 AND donor.id = new.vector_row
CROSS JOIN LATERAL (
    SELECT new.exact::tsvector || to_tsvector($3::text::regconfig, new.words)
        || setweight(new.title_exact::tsvector
                     || to_tsvector($3::text::regconfig, new.title_words), 'A') AS tsv OFFSET 0
) AS lexemes
CROSS JOIN LATERAL (SELECT braid.document_length(lexemes.tsv) AS length OFFSET 0) AS counted
ORDER BY new.nth
"""


class SourceDocument(msgspec.Struct, frozen=True):
    """A document as it is stored; its text only where that was asked for."""

    id: int
    doc_id: str
    version: int
    title: str | None
    source: str | None
    text: str | None
    chunk_size: int | None
    """Its own, where it is not the collection's."""
    chunk_overlap: int | None


class SourceRow(msgspec.Struct, frozen=True):
    """A row of the active generation; `vector` only of those whose vector is the client's."""

    id: int
    type: RecordType
    chunk_id: str
    position: int
    text: str
    context: str | None
    context_due: bool
    """The header could not be made yet."""
    start: int | None
    end: int | None
    headings: Sequence[str]
    own_vector: bool
    embedded: bool
    vector: NDArray[np.float16] | None


class CarriedChunk(msgspec.Struct, frozen=True):
    """What a row of the new generation says, its index aside."""

    like: int
    """The row of the active generation that it takes title, source and metadata from."""
    vector_of: int | None
    """The row whose vector it takes."""
    chunk_id: str
    position: int
    text: str
    context: str | None
    start: int | None
    end: int | None
    headings: Sequence[str]
    own_vector: bool
    content_hash: bytes


class CarriedRow(msgspec.Struct, frozen=True):
    """A row of the new generation."""

    chunk: CarriedChunk
    embedding: NDArray[np.float16] | None
    exact: str
    words: str
    title: TitleLexemes
    context_due: bool = False


async def source_documents(
    connection: Connection, documents: Sequence[int], *, texts: bool
) -> list[SourceDocument]:
    """Documents in the order of their versions."""
    return [SourceDocument(*row) for row in await connection.fetch(DOCUMENTS, documents, texts)]


async def source_rows(
    connection: Connection, active: Generation, documents: Sequence[int]
) -> dict[int, list[SourceRow]]:
    """The rows of documents in reading order, summaries last."""
    found: dict[int, list[SourceRow]] = {document: [] for document in documents}
    clients = active.provider == "none"
    for row in await connection.fetch(ROWS, active.id, documents, clients):
        found[row["document_id"]].append(_as_source_row(row))
    return found


async def made_before(
    connection: Connection, generation_id: int, documents: Sequence[int]
) -> PreparedByHash:
    """What a generation already holds for texts of documents, by document and content hash."""
    return {
        (row["document_id"], row["content_hash"]): as_prepared(row)
        for row in await connection.fetch(MADE, generation_id, documents)
    }


async def replace_rows(
    connection: Connection,
    active: Generation,
    generation: Generation,
    *,
    configuration: str,
    documents: Sequence[int],
    rows: Sequence[CarriedRow],
) -> None:
    """Let `generation` hold exactly these rows of the documents; raises `RefusedRowsError`."""
    chunks = [row.chunk for row in rows]
    await connection.execute(REMOVE, generation.id, documents)
    with refusals_named():
        await connection.execute(
            ADD,
            generation.id,
            active.id,
            configuration,
            generation.average_length,
            generation.k1,
            generation.b,
            [chunk.like for chunk in chunks],
            [chunk.vector_of for chunk in chunks],
            [chunk.chunk_id for chunk in chunks],
            [chunk.position for chunk in chunks],
            [chunk.text for chunk in chunks],
            [chunk.context for chunk in chunks],
            [chunk.start for chunk in chunks],
            [chunk.end for chunk in chunks],
            [chunk.content_hash for chunk in chunks],
            [None if row.embedding is None else HalfVector(row.embedding) for row in rows],
            [chunk.own_vector for chunk in chunks],
            [row.exact for row in rows],
            [row.words for row in rows],
            [row.title.exact for row in rows],
            [row.title.words for row in rows],
            [row.context_due for row in rows],
            [as_column(chunk.headings) for chunk in chunks],
        )


def _as_source_row(row: asyncpg.Record) -> SourceRow:
    vector = row["embedding"]
    return SourceRow(
        id=row["id"],
        type=row["type"],
        chunk_id=row["chunk_id"],
        position=row["position"],
        text=row["text"],
        context=row["context"],
        context_due=row["context_due"],
        start=row["start_offset"],
        end=row["end_offset"],
        headings=from_column(row["headings"]),
        own_vector=row["own_vector"],
        embedded=row["embedded"],
        vector=None if vector is None else np.asarray(vector.to_numpy(), np.float16),
    )
