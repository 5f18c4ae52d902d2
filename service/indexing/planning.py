"""Turns an accepted document into the records it shall have; and records into lexemes."""

from collections.abc import Mapping
from hashlib import blake2b
from itertools import islice

import msgspec

from service.indexing.chunking import Chunking, split_text
from service.indexing.payload import PendingChunk, PendingDocument, unpack_vector
from service.indexing.reconcile import PlannedRecord
from service.models import Generation
from service.text import Analyzer, prepare, tsvector_literal

HASH_VERSION = 1
"""To be raised when equal text gets other lexemes than before."""


class UnfitDocumentError(Exception):
    """Nothing of this document can be indexed; says why."""


class Lexemes(msgspec.Struct, frozen=True):
    """A text as the lexical index takes it."""

    exact: Mapping[str, int]
    """Lexemes that no configuration may touch, and how often each occurs."""
    words: str

    @property
    def literal(self) -> str:
        """The exact lexemes as a tsvector literal."""
        return tsvector_literal(self.exact)

    @property
    def bytes(self) -> int:
        """A rough measure of what the tsvector may take."""
        return len(self.words.encode()) + sum(len(lexeme.encode()) for lexeme in self.exact)

    def half(self) -> "Lexemes":
        """The first half of the words and of the exact lexemes."""
        words = self.words[: len(self.words) // 2].rpartition(" ")[0]
        return Lexemes(dict(islice(self.exact.items(), len(self.exact) // 2)), words)


def plan_records(
    doc_id: str, document: PendingDocument, generation: Generation, chunking: Chunking
) -> list[PlannedRecord]:
    """The records of a document, its chunks in reading order and then its summary.

    Raises `UnfitDocumentError` for a document without anything to index.
    """
    hashes = _Hashes(generation)
    if document.chunks:
        records = [_client_chunk(chunk, at, hashes) for at, chunk in enumerate(document.chunks)]
    else:
        records = _raw_chunks(doc_id, document, hashes, chunking)
    if document.summary is not None and document.summary.strip():
        content_hash = hashes.of(document.summary)
        records.append(PlannedRecord("summary", doc_id, document.summary, content_hash, position=0))
    if not records:
        raise UnfitDocumentError("nothing to index: the text is blank")
    return records


def lexemes_of(text: str, analyzer: Analyzer) -> Lexemes:
    """Prepare a text for the lexical index."""
    prepared = prepare(text, analyzer)
    return Lexemes({**prepared.stop_pairs, **prepared.exact}, prepared.words)


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
    doc_id: str, document: PendingDocument, hashes: "_Hashes", chunking: Chunking
) -> list[PlannedRecord]:
    if document.text is None:
        return []
    name = document.source or doc_id
    return [
        PlannedRecord(
            type="chunk",
            chunk_id=f"{doc_id}::{ordinal}",
            text=chunk.text,
            content_hash=hashes.of(chunk.text),
            position=ordinal,
            start=chunk.start,
            end=chunk.end,
        )
        for ordinal, chunk in enumerate(split_text(document.text, chunking, name=name))
    ]


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
