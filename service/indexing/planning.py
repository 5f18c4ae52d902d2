"""Turns an accepted document into the records it shall have; and records into lexemes."""

from hashlib import blake2b

import msgspec

from service.indexing.abandon import Checkpoint
from service.indexing.chunking import Chunking, iter_chunks
from service.indexing.payload import PendingChunk, PendingDocument, unpack_vector
from service.indexing.reconcile import PlannedRecord
from service.models import Generation
from service.text import Analyzer, prepare, tsvector_literal

HASH_VERSION = 2
"""To be raised when equal text gets other lexemes than before."""


class UnfitDocumentError(Exception):
    """Nothing of this document can be indexed; says why."""


class Lexemes(msgspec.Struct, frozen=True):
    """A text as the lexical index takes it."""

    exact: str
    """A tsvector literal of lexemes that no configuration may touch."""
    words: str
    complete: bool
    """False when the end of the text went beyond what one tsvector holds."""


def plan_records(
    doc_id: str,
    document: PendingDocument,
    generation: Generation,
    chunking: Chunking,
    checkpoint: Checkpoint,
) -> list[PlannedRecord]:
    """The records of a document, its chunks in reading order and then its summary.

    Raises `UnfitDocumentError` for a document without anything to index.
    """
    hashes = _Hashes(generation)
    if document.chunks:
        records = [_client_chunk(chunk, at, hashes) for at, chunk in enumerate(document.chunks)]
    else:
        records = _raw_chunks(doc_id, document, hashes, chunking, checkpoint)
    if document.summary is not None and document.summary.strip():
        content_hash = hashes.of(document.summary)
        records.append(PlannedRecord("summary", doc_id, document.summary, content_hash, position=0))
    if not records:
        raise UnfitDocumentError("nothing to index: the text is blank")
    return records


def lexemes_of(text: str, analyzer: Analyzer) -> Lexemes:
    """Prepare a text for the lexical index."""
    prepared = prepare(text, analyzer)
    literal = tsvector_literal({**prepared.stop_pairs, **prepared.exact})
    return Lexemes(literal, prepared.words, prepared.complete)


def _client_chunk(chunk: PendingChunk, at: int, hashes: "_Hashes") -> PlannedRecord:
    if chunk.vector is None and not chunk.text.strip():
        raise UnfitDocumentError(f"nothing to index: the text of chunk {at} is blank")
    return PlannedRecord(
        type="chunk",
        chunk_id=chunk.id,
        text=chunk.text,
        content_hash=hashes.of(chunk.text, chunk.vector),
        position=chunk.position,
        metadata=chunk.metadata,
        vector=None if chunk.vector is None else unpack_vector(chunk.vector),
    )


def _raw_chunks(
    doc_id: str,
    document: PendingDocument,
    hashes: "_Hashes",
    chunking: Chunking,
    checkpoint: Checkpoint,
) -> list[PlannedRecord]:
    records: list[PlannedRecord] = []
    if document.text is None:
        return records
    for chunk in iter_chunks(document.text, chunking, name=document.source or doc_id):
        checkpoint()
        ordinal = len(records)
        record = PlannedRecord(
            type="chunk",
            chunk_id=f"{doc_id}::{ordinal}",
            text=chunk.text,
            content_hash=hashes.of(chunk.text),
            position=ordinal,
            start=chunk.start,
            end=chunk.end,
        )
        records.append(record)
    return records


class _Hashes:
    """16 bytes that are equal when text, model and analyzer are: then a row need not change."""

    def __init__(self, generation: Generation) -> None:
        facts = (
            HASH_VERSION,
            generation.provider,
            generation.model,
            generation.dim,
            generation.language,
            generation.analyzer,
        )
        self._start = blake2b(repr(facts).encode(), digest_size=16)

    def of(self, text: str, vector: bytes | None = None) -> bytes:
        digest = self._start.copy()
        digest.update(text.encode())
        if vector is not None:
            digest.update(b"\0" + vector)
        return digest.digest()
