"""Indexes a batch of claimed documents: plan, embed what is new, prepare, write."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.db.analyzers import load_analyzer
from service.db.chunks import RefusedRowsError, stored_rows
from service.db.ingests import ClaimedIngest, still_due
from service.db.jobs import JobProgress
from service.db.prepared import Prepared, PreparedByHash, prepared_for, vectors_of
from service.db.upkeep import is_empty, seed_average_length
from service.errors import ProviderError, UnavailableError
from service.indexing.abandon import AbandonedError, Checkpoint, in_thread, while_wanted
from service.indexing.chunking import chunking_of
from service.indexing.context import embedded_text, whole_text
from service.indexing.files import as_document
from service.indexing.headers import HeaderStage, Unsituated
from service.indexing.mishaps import error_site
from service.indexing.payload import PendingDocument, unpack
from service.indexing.persistence import persistently
from service.indexing.planning import (
    Lexemes,
    UnfitDocumentError,
    lexemes_by_key,
    plan_records,
)
from service.indexing.services import IndexingServices
from service.indexing.splitting import Chunking
from service.indexing.vectors import Unembedded, Vectors, VectorStage
from service.indexing.writing import (
    Material,
    PlannedDocument,
    WritableDocument,
    record_failures,
    write_documents,
)
from service.instruments import INDEXING_DOCUMENTS, INDEXING_RECORDS, INDEXING_STAGE_DURATION
from service.models import Generation
from service.providers.base import Embedder
from service.telemetry import log, stage
from service.text import Analyzer

PARTLY_EMBEDDED = (
    "document {!r}: chunk {!r} is longer than the embedder reads, its end has no vector"
)
PARTLY_LEXICAL = "document {!r}: chunk {!r} has too many words, its end is not found by text"

Failure = tuple[ClaimedIngest, str]
Key = tuple[int, int]
"""Number of a document in the batch and of a record in the document."""


class _New(msgspec.Struct, frozen=True):
    """The records of a batch that need a row, and those of them that need a vector."""

    keys: list[Key]
    to_embed: list[Key]
    analyzer: Analyzer
    first: bool
    """The generation has no rows yet."""
    prepared: PreparedByHash
    """What was made of them before and could not be written then."""


class Batch:
    """One batch of a job, against one generation."""

    def __init__(self, services: IndexingServices, generation: Generation, job_id: int) -> None:
        self._database = services.database
        self._embedders = services.embedders
        self._conversion = services.conversion
        self._headers = HeaderStage(services, generation, job_id)
        self._vectors = VectorStage(services.database, generation, job_id)
        self._generation = generation
        self._job_id = job_id
        self._failures: list[Failure] = []
        self._warnings: list[str] = []

    async def index(self, ingests: Sequence[ClaimedIngest]) -> int:
        """Index documents or record why not; the rows that those indexed have.

        Raises `ProviderError` when trying again later can help, `GenerationChangedError`.
        """
        if not ingests:
            return 0
        try:
            records = await self._index(ingests)
        except ProviderError as error:
            if error.transient:
                raise
            await self.fail([(ingest, str(error)) for ingest in ingests])
            return 0
        await self.fail(self._failures)
        return records

    async def fail(self, failures: Sequence[Failure]) -> None:
        """Record failures."""
        if failures:
            await record_failures(self._database, self._generation, self._job_id, failures)

    async def _index(self, ingests: Sequence[ClaimedIngest]) -> int:
        made = await while_wanted(self._make(ingests), lambda: self._are_due(ingests))
        if made is None:
            return 0
        with stage("write", INDEXING_STAGE_DURATION):
            return await self._write(*made)

    async def _make(
        self, ingests: Sequence[ClaimedIngest]
    ) -> tuple[list[WritableDocument], JobProgress]:
        embedder = await self._embedders.get(self._generation)
        documents = await self._read(ingests)
        with stage("chunk", INDEXING_STAGE_DURATION):
            chunking = chunking_of(self._generation, embedder)
            planned = await in_thread(
                lambda checkpoint: self._plan(documents, chunking, checkpoint)
            )
        new = await self._find_new(planned, embedder)
        with stage("context", INDEXING_STAGE_DURATION):
            due = await self._situate(planned, new)
        with stage("embed", INDEXING_STAGE_DURATION):
            vectors = await self._embed(planned, new, embedder, due)
        writable = await self._with_material(planned, new, vectors, due)
        usage = {"embedding_tokens": vectors.tokens}
        return writable, JobProgress(usage=usage, warnings=self._warnings)

    async def _are_due(self, ingests: Sequence[ClaimedIngest]) -> bool:
        """Whether any of the documents was neither deleted nor sent anew meanwhile."""
        try:
            async with self._database.write(self._generation.team_id) as connection:
                return bool(await still_due(connection, ingests))
        except UnavailableError:
            return True

    async def _read(
        self, ingests: Sequence[ClaimedIngest]
    ) -> list[tuple[ClaimedIngest, PendingDocument]]:
        """The documents of payloads, files among them as text."""
        read = []
        unpacked = await in_thread(lambda checkpoint: self._unpack(ingests, checkpoint))
        for ingest, packed in unpacked:
            document = packed
            try:
                if document.file is not None:
                    with stage("convert", INDEXING_STAGE_DURATION):
                        document = await as_document(document, self._conversion)
            except UnfitDocumentError as error:
                self._failures.append((ingest, str(error)))
            else:
                read.append((ingest, document))
        return read

    def _unpack(
        self, ingests: Sequence[ClaimedIngest], checkpoint: Checkpoint
    ) -> list[tuple[ClaimedIngest, PendingDocument]]:
        unpacked = []
        for ingest in ingests:
            checkpoint()
            with self._failing_alone(ingest):
                unpacked.append((ingest, unpack(ingest.payload)))
        return unpacked

    def _plan(
        self,
        documents: Sequence[tuple[ClaimedIngest, PendingDocument]],
        chunking: Chunking,
        checkpoint: Checkpoint,
    ) -> list[PlannedDocument]:
        planned = []
        for ingest, document in documents:
            with self._failing_alone(ingest):
                records = plan_records(
                    ingest.doc_id, document, self._generation, chunking, checkpoint
                )
                planned.append(PlannedDocument(ingest, document, records))
        return planned

    @contextlib.contextmanager
    def _failing_alone(self, ingest: ClaimedIngest) -> Iterator[None]:
        """One document never fails its batch."""
        try:
            yield
        except AbandonedError:
            raise
        except UnfitDocumentError as error:
            self._failures.append((ingest, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            self._failures.append((ingest, f"internal error ({type(error).__name__})"))
            log.error("document could not be planned", ingest=ingest.id, **error_site(error))

    async def _find_new(
        self, planned: Sequence[PlannedDocument], embedder: Embedder | None
    ) -> _New:
        async with self._database.write(self._generation.team_id) as connection:
            stored = await stored_rows(
                connection, self._generation.id, [one.ingest.document for one in planned]
            )
            analyzer = await load_analyzer(connection, self._generation)
            first = await is_empty(connection, self._generation.id)
            prepared = await prepared_for(
                connection, self._generation.id, [one.ingest.document for one in planned]
            )
            todo = [one.against(stored[one.ingest.document]) for one in planned]
            keys = [(number, at) for number, one in enumerate(todo) for at in one.added]
            if self._generation.contextual.enabled and not self._generation.contextual.embedded:
                removed = [row for one in todo for row in one.removed]
                vectors = await vectors_of(connection, self._generation.id, removed)
                prepared = {**prepared, **_with_vectors(planned, keys, vectors)}
        records = {(number, at): planned[number].records[at] for number, at in keys}
        to_embed = [
            key
            for key, record in records.items()
            if embedder is not None and record.vector is None and record.text
        ]
        return _New(keys, to_embed, analyzer, first, prepared)

    async def _situate(self, planned: Sequence[PlannedDocument], new: _New) -> set[Key]:
        """Give the new chunks their headers; those that have to wait for theirs."""
        keys = {key for key in new.keys if planned[key[0]].records[key[1]].situate}
        if not keys:
            return set()
        chosen: dict[int, list[Key]] = {}
        for key in sorted(keys):
            chosen.setdefault(key[0], []).append(key)
        documents = [_unsituated(planned[number], found) for number, found in chosen.items()]
        headers = await self._headers.make(documents, new.prepared)
        self._warnings += headers.warnings
        for place, context in headers.by_key.items():
            number, at = cast(Key, place)
            records = planned[number].records
            records[at] = msgspec.structs.replace(records[at], context=context)
        return keys - headers.by_key.keys()

    async def _embed(
        self,
        planned: Sequence[PlannedDocument],
        new: _New,
        embedder: Embedder | None,
        due: set[Key],
    ) -> Vectors[Key]:
        if embedder is None or not new.to_embed:
            return Vectors()
        texts = {}
        for key in new.to_embed:
            one, record = planned[key[0]], planned[key[0]].records[key[1]]
            text = embedded_text(self._generation.contextual, record.context, record.text)
            texts[key] = Unembedded(
                one.ingest.document, record.content_hash, text, final=key not in due
            )
        vectors = await self._vectors.make(embedder, texts, new.prepared)
        for key in vectors.truncated:
            self._warn(PARTLY_EMBEDDED, planned, key)
        return vectors

    async def _with_material(
        self,
        planned: Sequence[PlannedDocument],
        new: _New,
        vectors: Vectors[Key],
        due: set[Key],
    ) -> list[WritableDocument]:
        refused: dict[int, ProviderError] = {}
        for number, at in new.to_embed:
            vector = vectors.by_key.get((number, at))
            if isinstance(vector, ProviderError):
                refused.setdefault(number, vector)
        self._failures += [
            (planned[number].ingest, str(error)) for number, error in refused.items()
        ]
        keys = [key for key in new.keys if key[0] not in refused]
        lexemes = await self._lexemes(planned, keys, new.analyzer)
        if new.first and lexemes:
            await seed_average_length(
                self._database,
                self._generation,
                new.analyzer.configuration,
                [(one.exact, one.words) for one in lexemes.values()],
            )
        material: list[dict[int, Material]] = [{} for _ in planned]
        for number, at in keys:
            made, given = vectors.by_key.get((number, at)), planned[number].records[at].vector
            embedding = made if isinstance(made, np.ndarray) else given
            waits = (number, at) in due
            material[number][at] = Material(lexemes[number, at], embedding, waits)
        return [
            WritableDocument(one, material[number])
            for number, one in enumerate(planned)
            if number not in refused
        ]

    async def _lexemes(
        self, planned: Sequence[PlannedDocument], keys: Sequence[Key], analyzer: Analyzer
    ) -> Mapping[Key, Lexemes]:
        texts = {(number, at): planned[number].records[at].indexed_text for number, at in keys}
        lexemes = await in_thread(lambda checkpoint: lexemes_by_key(texts, analyzer, checkpoint))
        for key, one in lexemes.items():
            if not one.complete:
                self._warn(PARTLY_LEXICAL, planned, key)
        return lexemes

    async def _write(self, documents: Sequence[WritableDocument], spent: JobProgress) -> int:
        try:
            written = await persistently(
                lambda: write_documents(
                    self._database, self._generation, self._job_id, documents, spent
                )
            )
        except RefusedRowsError as error:
            if len(documents) == 1:
                self._failures.append((documents[0].planned.ingest, str(error)))
                return await self._write([], spent)
        else:
            INDEXING_DOCUMENTS.add(len(written), "indexed")
            INDEXING_RECORDS.add(sum(written.values()))
            return sum(written.values())
        # Together they are refused: one by one, only the culprits are.
        await self._write([], spent)
        return sum([await self._write([one], JobProgress()) for one in documents])

    def _warn(self, message: str, planned: Sequence[PlannedDocument], key: Key) -> None:
        document = planned[key[0]]
        record = document.records[key[1]]
        self._warnings.append(message.format(document.ingest.doc_id, record.chunk_id))


def _with_vectors(
    planned: Sequence[PlannedDocument],
    keys: Sequence[Key],
    vectors: Mapping[tuple[int, str], NDArray[np.float16]],
) -> PreparedByHash:
    """Where only the header is another, and no part of what is embedded, the vector is the same."""
    made = {}
    for number, at in keys:
        one = planned[number]
        vector = vectors.get((one.ingest.document, one.records[at].text))
        if vector is not None:
            place = (one.ingest.document, one.records[at].content_hash)
            made[place] = Prepared(embedding=vector)
    return made


def _unsituated(planned: PlannedDocument, keys: Sequence[Key]) -> Unsituated:
    document = planned.document
    return Unsituated(
        id=planned.ingest.document,
        doc_id=planned.ingest.doc_id,
        title=document.title,
        text=whole_text(document.text, document.chunks),
        chunks={key: planned.records[key[1]] for key in keys},
    )
