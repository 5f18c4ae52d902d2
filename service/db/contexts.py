"""Chunks whose header could not be made when they were indexed."""

from collections.abc import Sequence

import asyncpg
import msgspec
import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from service.db.chunks import refusals_named
from service.db.pool import Connection
from service.models import Generation

ANY_DUE = """
SELECT EXISTS (SELECT FROM braid.chunks WHERE generation_id = $1 AND context_due)
"""
DUE = """
SELECT DISTINCT document_id FROM braid.chunks
WHERE generation_id = $1 AND context_due AND document_id > $2 ORDER BY document_id LIMIT $3
"""
DOCUMENTS = """
SELECT id, doc_id, version, title, text FROM braid.documents WHERE id = ANY($1) ORDER BY id
"""
VERSIONS = "SELECT id, version FROM braid.documents WHERE id = ANY($1)"
ROWS = """
SELECT document_id, id, text, start_offset, content_hash, context_due, embedding IS NOT NULL
FROM braid.chunks
WHERE generation_id = $1 AND document_id = ANY($2) AND type = 'chunk'
ORDER BY document_id, position, chunk_id
"""
# As when a title changes: the words of the title stay, and the row gets another number.
SET_CONTEXT = """
UPDATE braid.chunks c SET id = nextval('braid.chunk_row_seq'), context = new.context,
    context_due = false, embedding = coalesce(new.embedding, c.embedding), tsv = lexemes.tsv,
    length = counted.length, bm25 = braid.bm25_document(lexemes.tsv, counted.length, $3, $4, $5)
FROM unnest($6::bigint[], $7::text[], $8::halfvec[], $9::text[], $10::text[])
    AS new (id, context, embedding, exact, words)
JOIN braid.chunks old ON old.generation_id = $1 AND old.id = new.id
CROSS JOIN LATERAL (
    SELECT new.exact::tsvector || to_tsvector($2::text::regconfig, new.words)
        || ts_filter(old.tsv, '{a}') AS tsv OFFSET 0
) AS lexemes
CROSS JOIN LATERAL (SELECT braid.document_length(lexemes.tsv) AS length OFFSET 0) AS counted
WHERE c.generation_id = $1 AND c.id = new.id AND c.context_due
"""
# A generation that is built beside the active one carries the document over once more.
TOUCH = """
UPDATE braid.documents SET version = nextval('braid.document_version_seq') WHERE id = ANY($1)
"""
# Held: either the job has seen what is due, or whoever asks for it sees that the job is over.
OPEN_JOB = """
SELECT id FROM braid.jobs WHERE collection_id = $1 AND kind = 'context'
  AND status IN ('pending', 'processing') ORDER BY id LIMIT 1 FOR UPDATE
"""
HOLD_JOB = "SELECT FROM braid.jobs WHERE id = $1 FOR UPDATE"
FINISH = """
UPDATE braid.jobs SET status = 'done', error = NULL, documents = indexed, updated_at = now()
WHERE id = $1 AND status = 'processing'
"""


class DueDocument(msgspec.Struct, frozen=True):
    """A document some of whose chunks wait for their headers."""

    id: int
    doc_id: str
    version: int
    title: str | None
    text: str | None


class DueRow(msgspec.Struct, frozen=True):
    """A chunk of such a document."""

    document: int
    row: int
    text: str
    start: int | None
    content_hash: bytes
    due: bool
    embedded: bool


class RowContext(msgspec.Struct, frozen=True):
    """A header and what the row is made of with it."""

    row: int
    context: str | None
    embedding: NDArray[np.float16] | None
    exact: str
    words: str


async def any_due(connection: Connection, generation_id: int) -> bool:
    """Whether any chunk of a generation waits for its header."""
    due: bool = await connection.fetchval(ANY_DUE, generation_id)
    return due


async def due_documents(
    connection: Connection, generation_id: int, after: int, limit: int
) -> list[DueDocument]:
    """The next documents with chunks that wait."""
    rows = await connection.fetch(DUE, generation_id, after, limit)
    found = await connection.fetch(DOCUMENTS, [row["document_id"] for row in rows])
    return [DueDocument(*row) for row in found]


async def rows_of(
    connection: Connection, generation_id: int, documents: Sequence[int]
) -> dict[int, list[DueRow]]:
    """The chunks of documents in reading order."""
    found: dict[int, list[DueRow]] = {document: [] for document in documents}
    for row in await connection.fetch(ROWS, generation_id, documents):
        found[row["document_id"]].append(DueRow(*row))
    return found


async def versions_of(connection: Connection, documents: Sequence[int]) -> dict[int, int]:
    """Versions of the documents that still exist."""
    rows: list[asyncpg.Record] = await connection.fetch(VERSIONS, documents)
    return {row["id"]: row["version"] for row in rows}


async def set_contexts(
    connection: Connection, generation: Generation, configuration: str, rows: Sequence[RowContext]
) -> None:
    """Give rows their headers; raises `RefusedRowsError`."""
    with refusals_named():
        await connection.execute(
            SET_CONTEXT,
            generation.id,
            configuration,
            generation.average_length,
            generation.k1,
            generation.b,
            [row.row for row in rows],
            [row.context for row in rows],
            [None if row.embedding is None else HalfVector(row.embedding) for row in rows],
            [row.exact for row in rows],
            [row.words for row in rows],
        )


async def touch_documents(connection: Connection, documents: Sequence[int]) -> None:
    """Give documents a new version, although their text is the same."""
    await connection.execute(TOUCH, documents)


async def open_context_job(connection: Connection, collection_id: int) -> int | None:
    """The job that makes up for headers, which does not end before the transaction does."""
    job_id: int | None = await connection.fetchval(OPEN_JOB, collection_id)
    return job_id


async def finish_context_job(connection: Connection, job_id: int, generation_id: int) -> bool:
    """End a job that has nothing left to do; whether that is so."""
    await connection.execute(HOLD_JOB, job_id)
    if await any_due(connection, generation_id):
        return False
    await connection.execute(FINISH, job_id)
    return True


async def end_context_job(connection: Connection, job_id: int) -> None:
    """End a job, whatever is left."""
    await connection.execute(FINISH, job_id)
