"""Documents: their own rows, from acceptance to deletion."""

from collections.abc import Sequence
from typing import Literal

import asyncpg
import msgspec

from service.db.catalog import COLLECTION_COLUMNS, COLLECTION_TABLES, as_collection
from service.db.pool import Connection
from service.errors import NotFoundError
from service.models import Generation, Metadata

DocumentStatus = Literal["pending", "ready", "error"]

# Every transaction that changes documents begins here: a deletion of the collection waits for it,
# and so does a change of what all chunks of the generation have in common.
HOLD_GENERATION = f"""
SELECT {COLLECTION_COLUMNS} FROM {COLLECTION_TABLES}
WHERE c.id = $1 FOR KEY SHARE OF c FOR SHARE OF g
"""

# In one order everywhere, so that two transactions never wait for each other. The new version
# becomes visible when it is indexed; until then an old one stays as it is.
ACCEPT = """
INSERT INTO braid.documents AS d (team_id, collection_id, doc_id)
SELECT $1, $2, doc_id FROM unnest($3::text[]) AS doc_id ORDER BY doc_id COLLATE "C"
ON CONFLICT (collection_id, doc_id) DO UPDATE SET updated_at = now(),
    status = CASE d.status WHEN 'error' THEN 'pending' ELSE d.status END,
    failure_reason = CASE d.status WHEN 'error' THEN NULL ELSE d.failure_reason END
RETURNING d.doc_id, d.id
"""

LOCK = """
SELECT id, title, source, metadata FROM braid.documents
WHERE id = ANY($1) ORDER BY doc_id FOR UPDATE
"""
LOCK_ONE = """
SELECT id, title, source, metadata FROM braid.documents
WHERE collection_id = $1 AND doc_id = $2 FOR UPDATE
"""

PUBLISH = """
UPDATE braid.documents d SET
    status = 'ready', failure_reason = NULL, updated_at = now(),
    version = nextval('braid.document_version_seq'),
    title = CASE WHEN new.whole THEN new.title ELSE coalesce(new.title, d.title) END,
    source = CASE WHEN new.whole THEN new.source ELSE coalesce(new.source, d.source) END,
    metadata = CASE WHEN new.whole THEN coalesce(new.metadata, '{}')
               ELSE coalesce(new.metadata, d.metadata) END,
    language = CASE WHEN new.whole THEN new.language ELSE coalesce(new.language, d.language) END,
    summary = CASE WHEN new.whole THEN new.summary ELSE coalesce(new.summary, d.summary) END,
    text = CASE WHEN new.whole THEN new.text ELSE coalesce(new.text, d.text) END,
    chunk_size = CASE WHEN new.whole OR new.text IS NOT NULL THEN new.chunk_size
                 ELSE d.chunk_size END,
    chunk_overlap = CASE WHEN new.whole OR new.text IS NOT NULL THEN new.chunk_overlap
                    ELSE d.chunk_overlap END
FROM unnest($1::bigint[], $2::boolean[], $3::text[], $4::text[], $5::jsonb[], $6::text[],
            $7::text[], $8::text[], $9::int[], $10::int[])
    AS new (id, whole, title, source, metadata, language, summary, text, chunk_size, chunk_overlap)
WHERE d.id = new.id
"""

# A document whose earlier version is visible stays ready; it only tells what went wrong.
FAIL = """
UPDATE braid.documents d SET updated_at = now(), failure_reason = failed.reason,
    status = CASE d.status WHEN 'pending' THEN 'error' ELSE d.status END
FROM unnest($1::bigint[], $2::text[]) AS failed (id, reason) WHERE d.id = failed.id
"""

SET_METADATA = "UPDATE braid.documents SET metadata = $2, updated_at = now() WHERE id = $1"
DELETE = "DELETE FROM braid.documents WHERE id = $1"


class LockedDocument(msgspec.Struct, frozen=True):
    """What the chunks of a document share, held still until the transaction ends."""

    id: int
    title: str | None
    source: str | None
    metadata: Metadata


class DocumentVersion(msgspec.Struct, frozen=True):
    """What an ingest says of a document; unless it is `whole`, None leaves a field as it is."""

    id: int
    whole: bool
    title: str | None
    source: str | None
    metadata: Metadata | None
    language: str | None
    summary: str | None
    text: str | None
    chunking: tuple[int, int] | None
    """Size and overlap, where the document has its own."""


async def hold_generation(connection: Connection, collection_id: int) -> Generation:
    """The active generation, held still until the transaction ends; raises `NotFoundError`."""
    # Who waited for a swap of generations finds no row: the generation it joined is another one.
    row = await connection.fetchrow(HOLD_GENERATION, collection_id) or await connection.fetchrow(
        HOLD_GENERATION, collection_id
    )
    collection = as_collection(row) if row else None
    if collection is None:
        raise NotFoundError("unknown collection")
    return collection.generation


async def accept_documents(
    connection: Connection, team_id: int, collection_id: int, doc_ids: Sequence[str]
) -> dict[str, int]:
    """Make or lock the rows of documents; their numbers by id."""
    rows = await connection.fetch(ACCEPT, team_id, collection_id, doc_ids)
    return {row["doc_id"]: row["id"] for row in rows}


async def lock_documents(
    connection: Connection, documents: Sequence[int]
) -> dict[int, LockedDocument]:
    """Hold those documents that still exist."""
    return {row["id"]: _as_locked(row) for row in await connection.fetch(LOCK, documents)}


async def lock_document(connection: Connection, collection_id: int, doc_id: str) -> LockedDocument:
    """Hold one document; raises `NotFoundError`."""
    row = await connection.fetchrow(LOCK_ONE, collection_id, doc_id)
    if row is None:
        raise NotFoundError("unknown document")
    return _as_locked(row)


async def publish(connection: Connection, versions: Sequence[DocumentVersion]) -> None:
    """Set the fields of documents whose chunks this transaction wrote, and make them ready."""
    await connection.execute(
        PUBLISH,
        [version.id for version in versions],
        [version.whole for version in versions],
        [version.title for version in versions],
        [version.source for version in versions],
        [None if version.metadata is None else as_json(version.metadata) for version in versions],
        [version.language for version in versions],
        [version.summary for version in versions],
        [version.text for version in versions],
        [version.chunking[0] if version.chunking else None for version in versions],
        [version.chunking[1] if version.chunking else None for version in versions],
    )


async def fail_documents(connection: Connection, reasons: dict[int, str]) -> None:
    """Say why documents could not be indexed."""
    await connection.execute(FAIL, list(reasons), [reason[:500] for reason in reasons.values()])


async def set_metadata(connection: Connection, document: int, metadata: Metadata) -> None:
    """Replace the metadata of a document's own row."""
    await connection.execute(SET_METADATA, document, as_json(metadata))


async def delete_row(connection: Connection, document: int) -> None:
    """Delete a document's row and what waits for it."""
    await connection.execute(DELETE, document)


def as_json(metadata: Metadata) -> str:
    """Metadata as a `jsonb` parameter."""
    return msgspec.json.encode(metadata).decode()


def _as_locked(row: asyncpg.Record) -> LockedDocument:
    return LockedDocument(
        row["id"], row["title"], row["source"], msgspec.json.decode(row["metadata"])
    )
