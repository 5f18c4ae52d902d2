"""Writes planned documents: rows, `ready` and the job's counts in one transaction."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.db.analyzers import load_analyzer
from service.db.chunks import (
    NewRow,
    Placement,
    Shared,
    StoredRow,
    TitleLexemes,
    add_rows,
    keep_rows,
    remove_rows,
    retitle_rows,
    share_anew,
    stored_rows,
)
from service.db.documents import (
    DocumentVersion,
    LockedDocument,
    fail_documents,
    hold_generation,
    lock_documents,
    publish,
)
from service.db.ingests import ClaimedIngest, close_ingests, fail_ingests, still_due
from service.db.jobs import JobProgress, add_progress
from service.db.pool import Connection, Database
from service.db.prepared import forget_prepared
from service.indexing.payload import PendingDocument
from service.indexing.planning import Lexemes, title_lexemes
from service.indexing.reconcile import PlannedRecord, Reconciliation, reconcile
from service.instruments import INDEXING_DOCUMENTS
from service.models import Generation
from service.text import Analyzer


class Material(msgspec.Struct, frozen=True):
    """What a new row is made of besides its record."""

    lexemes: Lexemes
    embedding: NDArray[np.float16] | None
    context_due: bool = False
    """Its header could not be made yet."""


class PlannedDocument(msgspec.Struct, frozen=True):
    """A document on its way into the index."""

    ingest: ClaimedIngest
    document: PendingDocument
    records: list[PlannedRecord]

    @property
    def whole(self) -> bool:
        """Whether the document becomes exactly this."""
        return self.ingest.mode == "replace"

    def against(self, stored: Sequence[StoredRow]) -> Reconciliation:
        """What indexing means for the rows that are there."""
        raw = self.document.text is not None and not self.document.chunks
        return reconcile(self.records, stored, whole=self.whole, raw=raw)


class WritableDocument(msgspec.Struct, frozen=True):
    """A planned document with what its new rows are made of, by index of the record."""

    planned: PlannedDocument
    material: Mapping[int, Material]


class GenerationChangedError(Exception):
    """The active generation is another one than the documents were planned for."""


async def write_documents(
    database: Database,
    generation: Generation,
    job_id: int,
    documents: Sequence[WritableDocument],
    spent: JobProgress,
) -> dict[int, int]:
    """Index documents together; the rows each has now, by ingest.

    A document that was deleted, sent anew or changed by somebody else meanwhile is left out.
    Raises `RefusedRowsError`, which spoils all of them, and `GenerationChangedError`.
    """
    async with database.write(generation.team_id) as connection:
        current = await hold_generation(connection, generation.collection_id)
        if current.id != generation.id:
            raise GenerationChangedError
        locked = await lock_documents(
            connection, [one.planned.ingest.document for one in documents]
        )
        due = await still_due(connection, [one.planned.ingest for one in documents])
        stored = await stored_rows(connection, generation.id, list(locked))
        changes = list(_changes(documents, due, locked, stored))
        await _apply(connection, current, changes)
        await forget_prepared(connection, generation.id, [one.locked.id for one in changes])
        await close_ingests(connection, [one.planned.ingest.id for one in changes])
        progress = msgspec.structs.replace(spent, indexed=len(changes))
        await add_progress(connection, job_id, progress)
    return {one.planned.ingest.id: len(one.planned.records) for one in changes}


async def record_failures(
    database: Database,
    generation: Generation,
    job_id: int,
    failures: Sequence[tuple[ClaimedIngest, str]],
) -> None:
    """Mark documents as failed, each with its reason; what was visible of them stays visible."""
    async with database.write(generation.team_id) as connection:
        await hold_generation(connection, generation.collection_id)
        await lock_documents(connection, [ingest.document for ingest, _ in failures])
        failed = await fail_ingests(connection, {ingest.id: reason for ingest, reason in failures})
        reasons = {ingest.document: reason for ingest, reason in failures if ingest.id in failed}
        await fail_documents(connection, reasons)
        await add_progress(connection, job_id, JobProgress(failed=len(failed)))
    INDEXING_DOCUMENTS.add(len(failed), "failed")


class _Change(msgspec.Struct, frozen=True):
    planned: PlannedDocument
    material: Mapping[int, Material]
    locked: LockedDocument
    todo: Reconciliation

    @property
    def shared(self) -> Shared:
        """Title, source and metadata as they will be."""
        given, old, whole = self.planned.document, self.locked, self.planned.whole
        metadata = given.metadata
        if metadata is None:
            metadata = {} if whole else old.metadata
        return Shared(
            title=given.title if whole or given.title is not None else old.title,
            source=given.source if whole or given.source is not None else old.source,
            metadata=metadata,
            old_metadata=old.metadata,
        )

    def placement(self, at: int, shared: Shared) -> Placement:
        record = self.planned.records[at]
        return Placement(
            chunk_id=record.chunk_id,
            position=self.todo.positions[at],
            title=shared.title,
            source=shared.source,
            metadata={**shared.metadata, **(record.metadata or {})},
            start=record.start,
            end=record.end,
            headings=record.headings,
        )


def _changes(
    documents: Sequence[WritableDocument],
    due: set[int],
    locked: Mapping[int, LockedDocument],
    stored: Mapping[int, Sequence[StoredRow]],
) -> Iterator[_Change]:
    for one in documents:
        ingest = one.planned.ingest
        if ingest.id not in due or ingest.document not in locked:
            continue
        todo = one.planned.against(stored[ingest.document])
        # A row that was to be reused may be gone; then the document is planned again.
        if all(at in one.material for at in todo.added):
            yield _Change(one.planned, one.material, locked[ingest.document], todo)


async def _apply(
    connection: Connection, generation: Generation, changes: Sequence[_Change]
) -> None:
    removed = [row for change in changes for row in change.todo.removed]
    if removed:
        await remove_rows(connection, generation.id, removed)
    kept = [pair for change in changes for pair in _kept(change)]
    if kept:
        await keep_rows(connection, generation.id, kept)
    analyzer = await load_analyzer(connection, generation)
    added = [row for change in changes for row in _added(change, analyzer)]
    if added:
        await add_rows(connection, generation, analyzer.configuration, added)
    for change in changes:
        await _share(connection, generation.id, change)
    retitled = [row for change in changes for row in _retitled(change, analyzer)]
    if retitled:
        await retitle_rows(connection, generation, analyzer.configuration, retitled)
    if changes:
        await publish(connection, [_version(change) for change in changes])


def _kept(change: _Change) -> Iterator[tuple[StoredRow, Placement]]:
    shared = change.shared
    for at, row in change.todo.kept.items():
        yield row, change.placement(at, shared)


def _retitled(change: _Change, analyzer: Analyzer) -> Iterator[tuple[int, TitleLexemes]]:
    """Rows that stay while their document's title becomes another."""
    title = change.shared.title
    if title != change.locked.title:
        lexemes = title_lexemes(title, analyzer)
        for row in (*change.todo.kept.values(), *change.todo.untouched):
            yield row.row, lexemes


def _added(change: _Change, analyzer: Analyzer) -> Iterator[NewRow]:
    shared = change.shared
    title = title_lexemes(shared.title, analyzer)
    for at in change.todo.added:
        record, material = change.planned.records[at], change.material[at]
        yield NewRow(
            document=change.locked.id,
            doc_id=change.planned.ingest.doc_id,
            type=record.type,
            placement=change.placement(at, shared),
            text=record.text,
            content_hash=record.content_hash,
            exact=material.lexemes.exact,
            words=material.lexemes.words,
            title=title,
            embedding=material.embedding,
            own_vector=record.vector is not None,
            context=record.context,
            context_due=material.context_due,
        )


async def _share(connection: Connection, generation_id: int, change: _Change) -> None:
    """Rows that this version does not speak of still show the document's new fields."""
    shared, old = change.shared, change.locked
    same = (shared.title, shared.source, shared.metadata) == (old.title, old.source, old.metadata)
    if change.todo.untouched and not same:
        others = [row.row for row in change.todo.untouched]
        await share_anew(connection, generation_id, others, shared)


def _version(change: _Change) -> DocumentVersion:
    given = change.planned.document
    return DocumentVersion(
        id=change.locked.id,
        whole=change.planned.whole,
        title=given.title,
        source=given.source,
        metadata=given.metadata,
        language=given.language,
        summary=given.summary,
        text=given.text,
        chunking=given.chunking,
    )
