"""What a diagnosis reads of a document and its records, whether a search would see them or not."""

from collections.abc import Sequence

import asyncpg
import msgspec

from service.db.documents import DocumentStatus
from service.db.filter_sql import filter_sql
from service.db.pool import Connection
from service.models import Filter, Generation, RecordType

MAX_RECORDS = 10_000

DOCUMENT = """
SELECT d.status, d.failure_reason, d.language, EXISTS (
    SELECT FROM braid.ingests i WHERE i.document_id = d.id AND i.status = 'pending') AS waiting
FROM braid.documents d WHERE d.collection_id = $1 AND d.doc_id = $2
"""
DOCUMENT_OF_CHUNK = """
SELECT doc_id FROM braid.searchable WHERE generation_id = $1 AND chunk_id = $2
ORDER BY document_id LIMIT 1
"""


class DocumentState(msgspec.Struct, frozen=True):
    """Where a document stands; `waiting`: a version of it is not indexed yet."""

    status: DocumentStatus
    failure_reason: str | None
    language: str | None
    waiting: bool


class RecordState(msgspec.Struct, frozen=True):
    """A record of the active generation; `failed` counts conditions from 0."""

    row: int
    id: str
    type: RecordType
    position: int
    has_vector: bool
    failed: list[int]
    """Conditions of the filter that do not hold."""


async def document_state(
    connection: Connection, generation: Generation, doc_id: str
) -> DocumentState | None:
    """A document as the owner of the schema sees it."""
    row = await connection.fetchrow(DOCUMENT, generation.collection_id, doc_id)
    return DocumentState(**dict(row)) if row else None


async def document_of_chunk(
    connection: Connection, generation: Generation, chunk_id: str
) -> str | None:
    """The first document that has a record of this id; reads the whole generation."""
    doc_id: str | None = await connection.fetchval(DOCUMENT_OF_CHUNK, generation.id, chunk_id)
    return doc_id


async def record_states(
    connection: Connection,
    generation: Generation,
    doc_id: str,
    chunk_id: str | None,
    conditions: Sequence[Filter],
) -> list[RecordState]:
    """A document's records, or the one of this id, and which conditions each of them fails."""
    arguments: list[object] = [generation.id, doc_id, chunk_id]
    failing = [f"({filter_sql(one, arguments)}) IS NOT TRUE" for one in conditions]
    statement = f"""
        SELECT id, chunk_id, type, position, embedding IS NOT NULL AS has_vector,
               ARRAY[{", ".join(failing)}]::boolean[] AS failing
        FROM braid.searchable WHERE generation_id = $1 AND doc_id = $2
            AND ($3::text IS NULL OR chunk_id = $3)
        ORDER BY position, chunk_id, type LIMIT {MAX_RECORDS}
    """
    return [_as_state(row) for row in await connection.fetch(statement, *arguments)]


def _as_state(row: asyncpg.Record) -> RecordState:
    failed = [at for at, fails in enumerate(row["failing"]) if fails]
    return RecordState(
        row["id"], row["chunk_id"], row["type"], row["position"], row["has_vector"], failed
    )
