"""Turns an accepted document into the records it shall have; and records into lexemes."""

from collections.abc import Hashable, Mapping
from hashlib import blake2b
from typing import TypeVar

import msgspec

from service.db.chunks import TitleLexemes
from service.indexing.abandon import Checkpoint
from service.indexing.chunking import iter_placed
from service.indexing.context import Headings, contextualized, recipe
from service.indexing.payload import PendingChunk, PendingDocument, unpack_vector
from service.indexing.reconcile import PlannedRecord
from service.indexing.splitting import Chunking
from service.models import Generation
from service.text import Analyzer, prepare, tsvector_literal

K = TypeVar("K", bound=Hashable)

HASH_VERSION = 5
"""To be raised when equal text gets other lexemes than before."""
TITLE_COUNT = 2
"""Times that each record of a document counts a word of its title (docs/adr/0004)."""


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
    hashes = Hashes(generation)
    if document.chunks:
        _check_dimensions(document.chunks, generation.dim)
        records = [_client_chunk(chunk, at) for at, chunk in enumerate(document.chunks)]
    else:
        records = _raw_chunks(doc_id, document, chunking, checkpoint)
    records = _situated(records, doc_id, document, hashes)
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


def lexemes_by_key(
    texts: Mapping[K, str], analyzer: Analyzer, checkpoint: Checkpoint
) -> dict[K, Lexemes]:
    """Prepare many texts for the lexical index."""
    lexemes = {}
    for key, text in texts.items():
        checkpoint()
        lexemes[key] = lexemes_of(text, analyzer)
    return lexemes


def title_lexemes(title: str | None, analyzer: Analyzer) -> TitleLexemes:
    """Prepare a title for the lexical index of each record of its document."""
    lexemes = lexemes_of("\n\n".join([title or ""] * TITLE_COUNT), analyzer)
    return TitleLexemes(lexemes.exact, lexemes.words)


def _check_dimensions(chunks: list[PendingChunk], dim: int | None) -> None:
    """The collection may have got another model since the document was accepted."""
    for at, chunk in enumerate(chunks):
        if chunk.vector is None:
            continue
        given = len(unpack_vector(chunk.vector))
        if given != dim:
            raise UnfitDocumentError(
                f"the vector of chunk {at} has {given} dimensions,"
                f" the collection has {dim or 'no vectors'}"
            )


def _client_chunk(chunk: PendingChunk, at: int) -> PlannedRecord:
    if chunk.vector is None and not chunk.text.strip():
        raise UnfitDocumentError(f"nothing to index: the text of chunk {at} is blank")
    return PlannedRecord(
        type="chunk",
        chunk_id=chunk.id,
        text=chunk.text,
        content_hash=b"",
        position=chunk.position,
        metadata=chunk.metadata,
        vector=None if chunk.vector is None else unpack_vector(chunk.vector),
    )


def _raw_chunks(
    doc_id: str,
    document: PendingDocument,
    chunking: Chunking,
    checkpoint: Checkpoint,
) -> list[PlannedRecord]:
    records: list[PlannedRecord] = []
    if document.text is None:
        return records
    name = document.source or doc_id
    if document.chunking is not None:
        chunking = chunking.resized(*document.chunking)
    for chunk, above in iter_placed(document.text, chunking, name=name):
        checkpoint()
        ordinal = len(records)
        record = PlannedRecord(
            type="chunk",
            chunk_id=f"{doc_id}::{ordinal}",
            text=chunk.text,
            content_hash=b"",
            position=ordinal,
            start=chunk.start,
            end=chunk.end,
            headings=above,
        )
        records.append(record)
    return records


def _situated(
    records: list[PlannedRecord], doc_id: str, document: PendingDocument, hashes: "Hashes"
) -> list[PlannedRecord]:
    """Chunks with their header, or the wish for one, and their hash."""
    contextual = hashes.contextual
    headings = None
    if contextual.enabled and not contextual.by_model:
        headings = Headings(document.title, document.source or doc_id)
    situated = []
    for record in records:
        context = None
        if headings is not None and record.text:
            context = headings.of(record.text, record.headings)
        vector = None if record.vector is None else record.vector.tobytes()
        situated.append(
            msgspec.structs.replace(
                record,
                context=context,
                situate=contextual.by_model and vector is None,
                content_hash=hashes.of_chunk(record.text, context, vector),
            )
        )
    return situated


class Hashes:
    """16 bytes that are equal when text, model and analyzer are: then a row need not change.

    A model's header is not in it, but what the header is made with: it is known only afterwards.
    """

    def __init__(self, generation: Generation) -> None:
        self.contextual = generation.contextual
        facts: tuple[object, ...] = (
            HASH_VERSION,
            generation.provider,
            generation.model,
            generation.dim,
            generation.language,
            generation.analyzer,
        )
        if self.contextual.enabled:
            facts = (*facts, recipe(self.contextual), self.contextual.embedded)
        self._start = blake2b(repr(facts).encode(), digest_size=16)

    def of_chunk(self, text: str, context: str | None, vector: bytes | None = None) -> bytes:
        """The hash of a chunk."""
        known = text if self.contextual.by_model else contextualized(context, text)
        return self.of(known, vector)

    def of(self, text: str, vector: bytes | None = None) -> bytes:
        """The hash of a text, and of its vector when that is the client's."""
        digest = self._start.copy()
        digest.update(text.encode())
        if vector is not None:
            digest.update(b"\0" + vector)
        return digest.digest()
