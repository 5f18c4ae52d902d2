"""Decides which stored rows of a document stay, move or go, and which records are new. Pure."""

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.db.chunks import StoredRow
from service.indexing.context import contextualized
from service.models import Metadata, RecordType

LAST_POSITION = 2**31 - 1


class PlannedRecord(msgspec.Struct, frozen=True):
    """A chunk or summary that a document shall have."""

    type: RecordType
    chunk_id: str
    text: str
    content_hash: bytes
    position: int | None = None
    """None: where it is already, or behind the others."""
    metadata: Metadata | None = None
    """The chunk's own."""
    start: int | None = None
    end: int | None = None
    headings: Sequence[str] = ()
    """What it stands under in the document, outermost first."""
    vector: NDArray[np.float16] | None = None
    """Given by the client."""
    context: str | None = None
    """The header that situates it."""
    situate: bool = False
    """A model is to write the header."""

    @property
    def indexed_text(self) -> str:
        """What is lexically indexed."""
        return contextualized(self.context, self.text)


class Reconciliation(msgspec.Struct, frozen=True):
    """What to do; numbers are indexes into the planned records."""

    kept: dict[int, StoredRow]
    """Same content: the row keeps its vector and lexemes, whatever else changes."""
    added: list[int]
    removed: list[int]
    positions: list[int]
    """Where each planned record stands."""
    untouched: list[StoredRow]
    """Rows that this version of the document does not speak of."""


def reconcile(
    planned: Sequence[PlannedRecord], stored: Sequence[StoredRow], *, whole: bool, raw: bool
) -> Reconciliation:
    """Match planned records with stored rows.

    `whole`: the document becomes exactly what is planned. Otherwise rows of other ids stay, but
    for those split from an older text when a new one was split (`raw`).
    """
    named = {(record.type, record.chunk_id) for record in planned}
    touched: list[StoredRow] = []
    untouched: list[StoredRow] = []
    for row in stored:
        speaks = whole or (row.type, row.chunk_id) in named or (raw and row.raw)
        (touched if speaks else untouched).append(row)
    kept = _match(planned, touched)
    keeping = {row.row for row in kept.values()}
    return Reconciliation(
        kept=kept,
        added=[at for at in range(len(planned)) if at not in kept],
        removed=[row.row for row in touched if row.row not in keeping],
        positions=_positions(planned, touched, untouched),
        untouched=untouched,
    )


def _match(planned: Sequence[PlannedRecord], rows: Sequence[StoredRow]) -> dict[int, StoredRow]:
    """Rows of the same content for planned records, those of the same id first."""
    free: dict[tuple[RecordType, bytes], dict[str, StoredRow]] = defaultdict(dict)
    for row in rows:
        free[row.type, row.content_hash][row.chunk_id] = row
    kept: dict[int, StoredRow] = {}
    for at, record in enumerate(planned):
        same = free[record.type, record.content_hash].pop(record.chunk_id, None)
        if same is not None:
            kept[at] = same
    for at, record in enumerate(planned):
        candidates = free[record.type, record.content_hash]
        if at not in kept and candidates:
            kept[at] = candidates.pop(next(iter(candidates)))
    return kept


def _positions(
    planned: Sequence[PlannedRecord],
    touched: Sequence[StoredRow],
    untouched: Sequence[StoredRow],
) -> list[int]:
    known = {row.chunk_id: row.position for row in touched if row.type == "chunk"}
    others = [row.position for row in untouched if row.type == "chunk"]
    following = max([*others, *(known.values() if others else ())], default=-1) + 1
    positions = []
    for at, record in enumerate(planned):
        if record.position is not None or record.type == "summary":
            positions.append(record.position or 0)
        elif not others:
            positions.append(at)
        elif record.chunk_id in known:
            positions.append(known[record.chunk_id])
        else:
            positions.append(min(following, LAST_POSITION))
            following += 1
    return positions
