"""Decides what becomes of a document's rows in a new generation. Pure."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from service.db.carry import CarriedChunk, SourceDocument, SourceRow
from service.indexing.abandon import Checkpoint
from service.indexing.chunking import iter_placed
from service.indexing.context import Headings, contextualized, embedded_text, recipe
from service.indexing.planning import Hashes, UnfitDocumentError
from service.indexing.splitting import Chunking
from service.models import Contextual, Generation, RecordType

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
    same_headers: bool
    """The headers of chunks are made in the same way."""
    keeps_own: bool
    """A client's vector stays, although the model is another one."""


class CarriedRecord(CarriedChunk, frozen=True):
    """A chunk or summary that a document shall have in the new generation."""

    type: RecordType
    to_embed: bool
    situate: bool = False
    """A model is to write the header."""

    @property
    def indexed_text(self) -> str:
        """What is lexically indexed."""
        return contextualized(self.context, self.text)


class Rules(msgspec.Struct, frozen=True):
    """How rows are carried over into one generation."""

    change: Change
    hashes: Hashes
    chunking: Chunking
    active: Contextual
    """How the headers of the rows were made."""


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
        same_headers=recipe(active.contextual) == recipe(wanted.contextual),
        keeps_own=wanted.provider == "none" and wanted.dim == active.dim,
    )


def plan_carried(
    document: SourceDocument,
    rows: Sequence[SourceRow],
    rules: Rules,
    checkpoint: Checkpoint,
) -> list[CarriedRecord]:
    """The records of a document in the new generation, in reading order, its summary last.

    Raises `UnfitDocumentError` when one of them cannot exist there.
    """
    pieces, change = None, rules.change
    headings = Headings(document.title, document.source or document.doc_id)
    if change.resplit and document.text is not None:
        chunking = rules.chunking
        if document.chunk_size is not None:
            chunking = chunking.resized(document.chunk_size, document.chunk_overlap or 0)
        pieces = _resplit(document, document.text, rows, chunking, checkpoint)
    kept = [row for row in rows if pieces is None or not _is_raw(row)]
    records = [_carry(row, rules, headings) for row in kept]
    if pieces is not None:
        raw = {row.text: row for row in rows if _is_raw(row)}
        records = [*(_place(piece, raw, rules, headings) for piece in pieces), *records]
    return sorted(records, key=lambda record: (record.type, record.position))


class _Piece(msgspec.Struct, frozen=True):
    chunk_id: str
    position: int
    text: str
    start: int
    end: int
    headings: Sequence[str]


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
    name = document.source or document.doc_id
    for ordinal, (chunk, above) in enumerate(iter_placed(text, chunking, name=name)):
        checkpoint()
        chunk_id = f"{document.doc_id}::{ordinal}"
        yield _Piece(chunk_id, ordinal, chunk.text, chunk.start, chunk.end, above)


class _Header(msgspec.Struct, frozen=True):
    context: str | None
    situate: bool = False


def _header(
    row: SourceRow | None, piece: SourceRow | _Piece, rules: Rules, headings: Headings
) -> _Header:
    """The header of a chunk in the new generation; `row` had the same text in the old one."""
    contextual = rules.hashes.contextual
    if contextual.enabled and not contextual.by_model:
        return _Header(headings.of(piece.text, piece.headings) if piece.text else None)
    if row is not None and rules.change.same_headers:
        return _Header(row.context, row.context_due)
    return _Header(None, situate=contextual.by_model and bool(piece.text))


def _carry(row: SourceRow, rules: Rules, headings: Headings) -> CarriedRecord:
    change = rules.change
    given = row.embedded and row.own_vector and (change.same_model or change.keeps_own)
    header = _Header(None)
    if row.type == "chunk":
        header = _header(row, row, rules, headings)
        header = msgspec.structs.replace(header, situate=header.situate and not given)
    keeps_vector = given or _keeps_vector(row, header, rules)
    if not keeps_vector and not row.text.strip():
        raise UnfitDocumentError(NOT_EMBEDDABLE.format(row.chunk_id))
    vector = row.vector.astype("<f2").tobytes() if given and row.vector is not None else None
    return CarriedRecord(
        type=row.type,
        like=row.id,
        vector_of=row.id if keeps_vector else None,
        chunk_id=row.chunk_id,
        position=row.position,
        text=row.text,
        context=header.context,
        situate=header.situate,
        start=row.start,
        end=row.end,
        headings=row.headings,
        own_vector=given,
        content_hash=rules.hashes.of_chunk(row.text, header.context, vector)
        if row.type == "chunk"
        else rules.hashes.of(row.text, vector),
        to_embed=change.embeds and not keeps_vector,
    )


def _keeps_vector(row: SourceRow, header: _Header, rules: Rules) -> bool:
    """Whether the vector of a row was made from the same text by the same model."""
    if not row.embedded or not rules.change.same_model or header.situate:
        return False
    before = embedded_text(rules.active, row.context, row.text)
    return before == embedded_text(rules.hashes.contextual, header.context, row.text)


def _place(
    piece: _Piece, raw: Mapping[str, SourceRow], rules: Rules, headings: Headings
) -> CarriedRecord:
    """A new piece; one with the text of an old piece takes over what was made for that."""
    same = raw.get(piece.text)
    header = _header(same, piece, rules, headings)
    keeps_vector = same is not None and _keeps_vector(same, header, rules)
    return CarriedRecord(
        type="chunk",
        like=next(iter(raw.values())).id,
        vector_of=same.id if same is not None and keeps_vector else None,
        chunk_id=piece.chunk_id,
        position=piece.position,
        text=piece.text,
        context=header.context,
        situate=header.situate,
        start=piece.start,
        end=piece.end,
        headings=piece.headings,
        own_vector=False,
        content_hash=rules.hashes.of_chunk(piece.text, header.context),
        to_embed=rules.change.embeds and not keeps_vector,
    )
