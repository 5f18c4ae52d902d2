"""Carries a batch of documents over into the generation that is built."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.db.analyzers import load_analyzer
from service.db.builds import (
    Build,
    DueDocument,
    advance,
    count_progress,
    hold_build,
    lock_versions,
    note_failures,
)
from service.db.carry import (
    CarriedRow,
    SourceDocument,
    SourceRow,
    made_before,
    replace_rows,
    source_documents,
    source_rows,
)
from service.db.chunks import RefusedRowsError
from service.db.documents import hold_generation
from service.db.jobs import JobProgress, add_progress
from service.db.pool import Connection
from service.db.prepared import (
    PreparedByHash,
    forget_prepared,
    prepared_for,
)
from service.db.upkeep import is_empty, seed_average_length
from service.errors import ProviderError
from service.indexing.abandon import AbandonedError, Checkpoint, in_thread
from service.indexing.batch import PARTLY_EMBEDDED, PARTLY_LEXICAL
from service.indexing.carrying import CarriedRecord, Rules, change_between, plan_carried
from service.indexing.chunking import chunking_of
from service.indexing.context import embedded_text, whole_text
from service.indexing.headers import HeaderStage, Unsituated
from service.indexing.mishaps import error_site
from service.indexing.planning import (
    Hashes,
    Lexemes,
    UnfitDocumentError,
    lexemes_by_key,
    title_lexemes,
)
from service.indexing.services import IndexingServices
from service.indexing.splitting import Chunking
from service.indexing.vectors import Unembedded, VectorStage
from service.instruments import INDEXING_STAGE_DURATION
from service.models import Generation
from service.providers.base import Embedder
from service.telemetry import log, stage
from service.text import Analyzer

_Key: TypeAlias = tuple[int, int]
"""A document and the number of its record."""


class GoneError(Exception):
    """The build was paused or given up, or its collection was deleted."""


class _Source(msgspec.Struct, frozen=True):
    documents: list[SourceDocument]
    rows: dict[int, list[SourceRow]]
    made: PreparedByHash
    """What the build holds or keeps already for texts of these documents."""
    analyzer: Analyzer
    first: bool


class _Planned(msgspec.Struct, frozen=True):
    document: SourceDocument
    records: list[CarriedRecord]


class _Carried(msgspec.Struct, frozen=True):
    version: int
    rows: list[CarriedRow]


class CarriedBatch:
    """Some documents of one build; whatever becomes of them is written in one transaction."""

    def __init__(
        self, services: IndexingServices, build: Build, active: Generation, job_id: int
    ) -> None:
        self._database = services.database
        self._embedders = services.embedders
        self._headers = HeaderStage(services, build.generation, job_id)
        self._vectors = VectorStage(services.database, build.generation, job_id)
        self._build = build
        self._generation = build.generation
        self._active = active
        self._job_id = job_id
        self._due: list[DueDocument] = []
        self._again = False
        self._failures: dict[int, str] = {}
        self._warnings: list[str] = []
        self._tokens = 0

    @property
    def failed(self) -> bool:
        """Whether some of the documents could not be carried over."""
        return bool(self._failures)

    def take(self, due: Sequence[DueDocument], rows: int, *, again: bool) -> None:
        """Take on the first of the due documents, at least one, up to a number of rows."""
        held = 0
        for document in due:
            if self._due and held + document.rows > rows:
                break
            self._due.append(document)
            held += document.rows
        self._again = again

    def give_up(self, reason: str) -> None:
        """Carry nothing over, but say why."""
        self._failures = {document.id: reason for document in self._due}

    async def carry(self) -> None:
        """Write the documents' rows, or why there are none, and how far the build is.

        Raises `ProviderError` when trying again later can help, `GoneError`.
        """
        carried: dict[int, _Carried] = {}
        if not self._failures:
            carried = await self._make(await self._read())
        try:
            with stage("write", INDEXING_STAGE_DURATION):
                await self._write(self._due, carried)
        except RefusedRowsError:
            for document in self._due:
                await self._write_alone(document, carried)

    async def _read(self) -> _Source:
        documents = [document.id for document in self._due]
        change = change_between(self._active, self._generation)
        async with self._database.write(self._generation.team_id) as connection:
            return _Source(
                documents=await source_documents(
                    connection, documents, texts=change.resplit or not change.same_headers
                ),
                rows=await source_rows(connection, self._active, documents),
                made={
                    **await prepared_for(connection, self._generation.id, documents),
                    **(
                        await made_before(connection, self._generation.id, documents)
                        if not (change.same_model and change.same_headers)
                        else {}
                    ),
                },
                analyzer=await load_analyzer(connection, self._generation),
                first=await is_empty(connection, self._generation.id),
            )

    async def _make(self, source: _Source) -> dict[int, _Carried]:
        embedder = await self._embedders.get(self._generation)
        with stage("chunk", INDEXING_STAGE_DURATION):
            chunking = chunking_of(self._generation, embedder)
            planned = await in_thread(lambda checkpoint: self._plan(source, chunking, checkpoint))
        with stage("context", INDEXING_STAGE_DURATION):
            due = await self._situate(planned, source)
        with stage("embed", INDEXING_STAGE_DURATION):
            vectors = await self._embed(planned, source, embedder, due)
        planned = [one for one in planned if one.document.id not in self._failures]
        lexemes = await in_thread(
            lambda checkpoint: self._lexemes(planned, source.analyzer, checkpoint)
        )
        if source.first and lexemes:
            await seed_average_length(
                self._database,
                self._generation,
                source.analyzer.configuration,
                [(one.exact, one.words) for one in lexemes.values()],
            )
        return {
            one.document.id: _carried(one, vectors, lexemes, source.analyzer, due)
            for one in planned
        }

    def _plan(self, source: _Source, chunking: Chunking, checkpoint: Checkpoint) -> list[_Planned]:
        change = change_between(self._active, self._generation)
        rules = Rules(change, Hashes(self._generation), chunking, self._active.contextual)
        planned = []
        for document in source.documents:
            rows = source.rows[document.id]
            try:
                records = plan_carried(document, rows, rules, checkpoint)
            except AbandonedError:
                raise
            except UnfitDocumentError as error:
                self._failures[document.id] = str(error)
            except Exception as error:  # noqa: BLE001 - one document never fails its batch
                self._failures[document.id] = f"internal error ({type(error).__name__})"
                log.error(
                    "document could not be carried over", row=document.id, **error_site(error)
                )
            else:
                planned.append(_Planned(document, records))
        return planned

    async def _situate(self, planned: Sequence[_Planned], source: _Source) -> set[_Key]:
        """Give chunks their headers; those that have to wait for theirs."""
        keys = {key for key, record in _keyed(planned).items() if record.situate}
        documents = [_unsituated(one, source.rows[one.document.id]) for one in planned]
        headers = await self._headers.make(
            [one for one in documents if one.chunks], source.made, insist=True
        )
        self._warnings += headers.warnings
        records = {one.document.id: one.records for one in planned}
        for key, context in headers.by_key.items():
            document, at = cast(_Key, key)
            found = records[document]
            found[at] = msgspec.structs.replace(found[at], context=context)
        return keys - headers.by_key.keys()

    async def _embed(
        self,
        planned: Sequence[_Planned],
        source: _Source,
        embedder: Embedder | None,
        due: set[_Key],
    ) -> dict[_Key, NDArray[np.float16]]:
        if embedder is None:
            return {}
        texts = {}
        for key, record in _keyed(planned).items():
            if record.to_embed:
                text = embedded_text(self._generation.contextual, record.context, record.text)
                texts[key] = Unembedded(key[0], record.content_hash, text, final=key not in due)
        made = await self._vectors.make(embedder, texts, source.made)
        self._tokens = made.tokens
        for key in made.truncated:
            self._warn(PARTLY_EMBEDDED, planned, key)
        vectors = {}
        for key in texts:
            vector = made.by_key[key]
            if isinstance(vector, ProviderError):
                self._failures.setdefault(key[0], str(vector))
            else:
                vectors[key] = vector
        return vectors

    def _lexemes(
        self, planned: Sequence[_Planned], analyzer: Analyzer, checkpoint: Checkpoint
    ) -> dict[_Key, Lexemes]:
        texts = {key: record.indexed_text for key, record in _keyed(planned).items()}
        lexemes = lexemes_by_key(texts, analyzer, checkpoint)
        for key, one in lexemes.items():
            if not one.complete:
                self._warn(PARTLY_LEXICAL, planned, key)
        return lexemes

    async def _write_alone(self, document: DueDocument, carried: dict[int, _Carried]) -> None:
        try:
            await self._write([document], carried)
        except RefusedRowsError as error:
            self._failures[document.id] = str(error)
            await self._write([document], {})

    async def _write(self, due: Sequence[DueDocument], carried: Mapping[int, _Carried]) -> None:
        async with self._database.write(self._generation.team_id) as connection:
            active = await hold_generation(connection, self._generation.collection_id)
            versions = await lock_versions(connection, [document.id for document in due])
            build = await hold_build(connection, self._job_id)
            if build is None or active.id != self._active.id:
                raise GoneError
            # What was published or deleted since it was read comes later, or not at all.
            whole = {
                document.id: carried[document.id]
                for document in due
                if document.id in carried
                and versions.get(document.id) == carried[document.id].version
            }
            analyzer = await load_analyzer(connection, build.generation)
            await replace_rows(
                connection,
                active,
                build.generation,
                configuration=analyzer.configuration,
                documents=list(whole),
                rows=[row for one in whole.values() for row in one.rows],
            )
            failed = {
                document.id: self._failures[document.id]
                for document in due
                if document.id in self._failures and versions.get(document.id) == document.version
            }
            await forget_prepared(connection, build.generation.id, list(whole))
            await note_failures(connection, build, list(whole), failed)
            await self._note_progress(connection, build, due, len(whole))

    async def _note_progress(
        self, connection: Connection, build: Build, due: Sequence[DueDocument], carried: int
    ) -> None:
        await advance(connection, build, 0 if self._again else due[-1].version)
        first = build.first_boundary or 0
        more = 0 if self._again else sum(document.version >= first for document in due)
        if not await count_progress(connection, build, self._job_id, more):
            raise GoneError
        progress = JobProgress(
            indexed=carried,
            usage={"embedding_tokens": self._tokens},
            warnings=self._warnings,
        )
        await add_progress(connection, self._job_id, progress)
        self._tokens, self._warnings = 0, []

    def _warn(self, message: str, planned: Sequence[_Planned], key: _Key) -> None:
        one = next(one for one in planned if one.document.id == key[0])
        self._warnings.append(message.format(one.document.doc_id, one.records[key[1]].chunk_id))


def _keyed(planned: Sequence[_Planned]) -> dict[_Key, CarriedRecord]:
    return {
        (one.document.id, at): record for one in planned for at, record in enumerate(one.records)
    }


def _unsituated(planned: _Planned, rows: Sequence[SourceRow]) -> Unsituated:
    document = planned.document
    return Unsituated(
        id=document.id,
        doc_id=document.doc_id,
        title=document.title,
        text=whole_text(document.text, [row for row in rows if row.type == "chunk"]),
        chunks={
            (document.id, at): record for at, record in enumerate(planned.records) if record.situate
        },
    )


def _carried(
    planned: _Planned,
    vectors: Mapping[_Key, NDArray[np.float16]],
    lexemes: Mapping[_Key, Lexemes],
    analyzer: Analyzer,
    due: set[_Key],
) -> _Carried:
    title = title_lexemes(planned.document.title, analyzer)
    rows = [
        CarriedRow(
            record, vectors.get(key), lexemes[key].exact, lexemes[key].words, title, key in due
        )
        for key, record in _keyed([planned]).items()
    ]
    return _Carried(planned.document.version, rows)
