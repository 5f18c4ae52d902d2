"""Changes to documents that need no indexing: their metadata, and their end."""

from typing import Any

import msgspec

from service.db.chunks import (
    RecordMetadata,
    delete_records,
    hold_generations,
    record_metadata,
    set_record_metadata,
)
from service.db.documents import delete_row, hold_generation, lock_document, set_metadata
from service.db.ingests import pending_payloads, replace_payload
from service.db.pool import Database
from service.db.prepared import forget_document
from service.errors import InvalidRequestError
from service.indexing.bounds import check_metadata
from service.indexing.cleaning import Cleaner
from service.indexing.payload import PendingChunk, PendingDocument, pack, unpack
from service.models import Collection, IngestMode, Metadata


async def patch_metadata(
    database: Database,
    collection: Collection,
    doc_id: str,
    patch: Metadata,
    *,
    apply_to_chunks: bool = True,
) -> int:
    """Apply a merge patch (RFC 7396) to a document's metadata; how many records changed theirs.

    Nothing is embedded again. Versions that wait for the worker are patched too. What cannot be
    stored is removed from the values. Raises `NotFoundError`, and `InvalidRequestError` when the
    result breaks a bound.
    """
    _check(patch)
    patch = Cleaner().value(patch)
    async with database.write(collection.team_id) as connection:
        active = await hold_generation(connection, collection.id)
        document = await lock_document(connection, collection.id, doc_id)
        generations = await hold_generations(connection, collection.id)
        await set_metadata(connection, document.id, _merged(document.metadata, patch))
        records = [
            msgspec.structs.replace(record, metadata=_merged(record.metadata, patch))
            for record in await record_metadata(connection, generations, document.id)
            if apply_to_chunks or record.type == "summary"
        ]
        await set_record_metadata(connection, generations, records)
        for ingest in await pending_payloads(connection, document.id):
            waiting = _as_written(unpack(ingest.payload), ingest.mode)
            waiting = _patched(waiting, patch, apply_to_chunks=apply_to_chunks)
            await replace_payload(connection, ingest.id, pack(waiting))
    return _count(records, active.id)


async def delete_document(database: Database, collection: Collection, doc_id: str) -> int:
    """Delete a document, its records and the versions that wait; how many records there were.

    Raises `NotFoundError`.
    """
    async with database.write(collection.team_id) as connection:
        active = await hold_generation(connection, collection.id)
        document = await lock_document(connection, collection.id, doc_id)
        generations = await hold_generations(connection, collection.id)
        deleted = await delete_records(connection, generations, document.id)
        await forget_document(connection, document.id)
        await delete_row(connection, document.id)
    return deleted.get(active.id, 0)


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _merged(metadata: Metadata, patch: Metadata) -> Metadata:
    merged: Metadata = merge_patch(metadata, patch)
    _check(merged)
    return merged


def _check(metadata: Metadata) -> None:
    for violation in check_metadata(metadata, "/metadata"):
        raise InvalidRequestError.of((violation,))


def _as_written(document: PendingDocument, mode: IngestMode) -> PendingDocument:
    """Without metadata an upsert keeps what there is, while a replacement has none."""
    if mode == "upsert" or document.metadata is not None:
        return document
    return msgspec.structs.replace(document, metadata={})


def _patched(
    document: PendingDocument, patch: Metadata, *, apply_to_chunks: bool
) -> PendingDocument:
    def patched(metadata: Metadata | None) -> Metadata | None:
        return None if metadata is None else _merged(metadata, patch)

    def patched_chunk(chunk: PendingChunk) -> PendingChunk:
        return msgspec.structs.replace(chunk, metadata=patched(chunk.metadata))

    return msgspec.structs.replace(
        document,
        metadata=patched(document.metadata),
        chunks=[patched_chunk(chunk) for chunk in document.chunks]
        if apply_to_chunks
        else document.chunks,
    )


def _count(records: list[RecordMetadata], generation_id: int) -> int:
    return sum(record.generation == generation_id for record in records)
