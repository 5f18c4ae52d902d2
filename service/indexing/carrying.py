"""Decides what becomes of a document's rows in a new generation. Pure."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from service.db.carry import CarriedChunk, SourceDocument, SourceRow
from service.indexing.abandon import Checkpoint
from service.indexing.chunking import Chunking, iter_chunks
from service.indexing.planning import Hashes, UnfitDocumentError
from service.models import Generation, RecordType

NOT_EMBEDDABLE = (
    "chunk {!r} came with a vector and without text: no other model can make its vector"
)


class Change(msgspec.Struct, frozen=True):
    """What differs between the active generation and the one that is built."""

    same_model: bool
    resplit: bool
    """Raw text is split anew: sizes or the tokens that they count are others."""
    embeds: bool
    """The new generation has a model."""
    keeps_own: bool
    """A client's vector stays, although the model is another one."""


class CarriedRecord(CarriedChunk, frozen=True):
    """A chunk or summary that a document shall have in the new generation."""

    type: RecordType
    to_embed: bool

    @property
    def indexed_text(self) -> str:
        """What is embedded and lexically indexed."""
        return contextualized(self.context, self.text)


class Rules(msgspec.Struct, frozen=True):
    """How rows are carried over into one generation."""

    change: Change
    hashes: Hashes
    chunking: Chunking


def change_between(active: Generation, wanted: Generation) -> Change:
    """What building `wanted` from the rows of `active` means."""

    def model(generation: Generation) -> tuple[str, str | None, int | None]:
        return generation.provider, generation.model, generation.dim

    def split(generation: Generation) -> tuple[str, str | None, int, int]:
        return (
            generation.provider,
            generation.model,
            generation.chunk_size,
            generation.chunk_overlap,
        )

    return Change(
        same_model=model(active) == model(wanted),
        resplit=split(active) != split(wanted),
        embeds=wanted.provider != "none",
        keeps_own=wanted.provider == "none" and wanted.dim == active.dim,
    )


def contextualized(context: str | None, text: str) -> str:
    """The text with the header that situates it."""
    return f"{context}\n\n{text}" if context else text


def plan_carried(
    document: SourceDocument,
    rows: Sequence[SourceRow],
    rules: Rules,
    checkpoint: Checkpoint,
) -> list[CarriedRecord]:
    """The records of a document in the new generation, in reading order, its summary last.

    Raises `UnfitDocumentError` when one of them cannot exist there.
    """
    pieces, change, hashes = None, rules.change, rules.hashes
    if change.resplit and document.text is not None:
        pieces = _resplit(document, document.text, rows, rules.chunking, checkpoint)
    kept = [row for row in rows if pieces is None or not _is_raw(row)]
    records = [_carry(row, change, hashes) for row in kept]
    if pieces is not None:
        raw = {row.text: row for row in rows if _is_raw(row)}
        records = [*(_place(piece, raw, change, hashes) for piece in pieces), *records]
    return sorted(records, key=lambda record: (record.type, record.position))


class _Piece(msgspec.Struct, frozen=True):
    chunk_id: str
    position: int
    text: str
    start: int
    end: int


def _is_raw(row: SourceRow) -> bool:
    return row.type == "chunk" and row.start is not None


def _resplit(
    document: SourceDocument,
    text: str,
    rows: Sequence[SourceRow],
    chunking: Chunking,
    checkpoint: Checkpoint,
) -> list[_Piece] | None:
    """The document's text split anew.

    None when it was not split before, or when the client has replaced chunks of the split by its
    own: their ids name pieces of the old split, so the rows stay as they are.
    """
    if not any(map(_is_raw, rows)):
        return None
    pieces = list(_pieces(document, text, chunking, checkpoint))
    own = {row.chunk_id for row in rows if row.type == "chunk" and not _is_raw(row)}
    return None if any(piece.chunk_id in own for piece in pieces) else pieces


def _pieces(
    document: SourceDocument, text: str, chunking: Chunking, checkpoint: Checkpoint
) -> Iterator[_Piece]:
    chunks = iter_chunks(text, chunking, name=document.source or document.doc_id)
    for ordinal, chunk in enumerate(chunks):
        checkpoint()
        chunk_id = f"{document.doc_id}::{ordinal}"
        yield _Piece(chunk_id, ordinal, chunk.text, chunk.start, chunk.end)


def _carry(row: SourceRow, change: Change, hashes: Hashes) -> CarriedRecord:
    keeps_vector = row.embedded and (change.same_model or (row.own_vector and change.keeps_own))
    own = row.own_vector and keeps_vector
    if not keeps_vector and not row.text.strip():
        raise UnfitDocumentError(NOT_EMBEDDABLE.format(row.chunk_id))
    vector = row.vector.astype("<f2").tobytes() if own and row.vector is not None else None
    return CarriedRecord(
        type=row.type,
        like=row.id,
        vector_of=row.id if keeps_vector else None,
        chunk_id=row.chunk_id,
        position=row.position,
        text=row.text,
        context=row.context,
        start=row.start,
        end=row.end,
        own_vector=own,
        content_hash=hashes.of(contextualized(row.context, row.text), vector),
        to_embed=change.embeds and not keeps_vector,
    )


def _place(
    piece: _Piece, raw: Mapping[str, SourceRow], change: Change, hashes: Hashes
) -> CarriedRecord:
    """A new piece; one with the text of an old piece takes over what was made for that."""
    same = raw.get(piece.text)
    vector_of = same.id if same is not None and same.embedded and change.same_model else None
    context = same.context if same is not None else None
    return CarriedRecord(
        type="chunk",
        like=next(iter(raw.values())).id,
        vector_of=vector_of,
        chunk_id=piece.chunk_id,
        position=piece.position,
        text=piece.text,
        context=context,
        start=piece.start,
        end=piece.end,
        own_vector=False,
        content_hash=hashes.of(contextualized(context, piece.text)),
        to_embed=change.embeds and vector_of is None,
    )
