"""Taking documents in: checked, packed, and committed with their job before anyone hears of it."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from service.db.catalog import text_search_configurations
from service.db.documents import accept_documents, hold_generation
from service.db.ingests import NewIngest, insert_ingests
from service.db.jobs import insert_job
from service.db.pool import Database
from service.db.queue import enqueue
from service.errors import InvalidRequestError
from service.indexing.bounds import validate_documents
from service.indexing.cleaning import Cleaner
from service.indexing.payload import PendingChunk, PendingDocument, pack, pack_vector
from service.indexing.splitting import OVERLAP_PART
from service.models import Collection, DocumentChunking, IncomingChunk, IncomingDocument, IngestMode

CLEANED = "document {doc_id!r}: characters that cannot be stored were removed"


class Packed(msgspec.Struct, frozen=True):
    """A document as it waits in the database."""

    doc_id: str
    mode: IngestMode
    payload: bytes
    cleaned: bool


async def submit_documents(
    database: Database,
    collection: Collection,
    documents: Sequence[IncomingDocument],
    mode: IngestMode | None = None,
) -> int:
    """Accept documents for indexing and return the job's id; nothing of them is lost from then on.

    Without a mode a document with chunks of its own is upserted and any other one replaced.
    Raises `InvalidRequestError`, and `NotFoundError` when the collection has just been deleted.
    """
    packed = await asyncio.to_thread(_pack_all, documents, collection, mode)
    await check_languages(
        database,
        {f"/documents/{at}/language": one.language for at, one in enumerate(documents)},
    )
    return await commit(database, collection, packed)


async def commit(database: Database, collection: Collection, packed: Sequence[Packed]) -> int:
    """Store packed documents with their job, whose id it returns."""
    warnings = [CLEANED.format(doc_id=one.doc_id) for one in packed if one.cleaned]
    async with database.write(collection.team_id) as connection:
        await hold_generation(connection, collection.id)
        rows = await accept_documents(
            connection, collection.team_id, collection.id, [one.doc_id for one in packed]
        )
        job_id = await insert_job(
            connection,
            collection.team_id,
            collection.id,
            documents=len(packed),
            warnings=warnings,
        )
        ingests = [NewIngest(rows[one.doc_id], one.mode, one.payload) for one in packed]
        await insert_ingests(connection, collection.team_id, job_id, ingests)
        await enqueue(connection, collection.team_id, job_id)
    return job_id


async def check_languages(database: Database, given: Mapping[str, str | None]) -> None:
    """Refuse the languages, by pointer, that the server has no configuration for."""
    if not any(given.values()):
        return
    known = await text_search_configurations(database)
    for pointer, language in given.items():
        if language is not None and language not in known:
            raise InvalidRequestError.at(pointer, f"must be one of: {', '.join(sorted(known))}")


def _pack_all(
    documents: Sequence[IncomingDocument], collection: Collection, mode: IngestMode | None
) -> list[Packed]:
    validate_documents(documents, collection.generation)
    return [_pack(document, mode) for document in documents]


def _pack(document: IncomingDocument, mode: IngestMode | None) -> Packed:
    cleaner = Cleaner()
    pending = PendingDocument(
        text=cleaner.text(document.text),
        title=cleaner.text(document.title),
        source=cleaner.text(document.source),
        metadata=cleaner.value(document.metadata),
        summary=cleaner.text(document.summary),
        chunks=[_pack_chunk(chunk, cleaner) for chunk in document.chunks or []],
        language=document.language,
        chunking=_chunking(document.chunking),
    )
    if mode is None:
        mode = "upsert" if document.chunks else "replace"
    return Packed(document.doc_id, mode, pack(pending), cleaner.changed)


def _chunking(given: DocumentChunking | None) -> tuple[int, int] | None:
    if given is None:
        return None
    overlap = given.size // OVERLAP_PART if given.overlap is None else given.overlap
    return given.size, overlap


def _pack_chunk(chunk: IncomingChunk, cleaner: Cleaner) -> PendingChunk:
    return PendingChunk(
        id=chunk.id,
        text=cleaner.text(chunk.text) or "",
        vector=None if chunk.vector is None else pack_vector(chunk.vector),
        metadata=cleaner.value(chunk.metadata),
        position=chunk.position,
    )
