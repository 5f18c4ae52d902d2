"""Makes up for headers that could not be had: the chunks are found without them meanwhile."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from service.db.analyzers import load_analyzer
from service.db.contexts import (
    DueDocument,
    DueRow,
    RowContext,
    any_due,
    due_documents,
    end_context_job,
    finish_context_job,
    open_context_job,
    rows_of,
    set_contexts,
    touch_documents,
    versions_of,
)
from service.db.documents import hold_generation, lock_documents
from service.db.jobs import (
    JobProgress,
    add_progress,
    fail_job,
    insert_job,
    postpone_job,
)
from service.db.pool import Database
from service.db.prepared import (
    PreparedByHash,
    forget_prepared,
    prepared_for,
)
from service.db.queue import QueuedJob, enqueue
from service.errors import ProviderError
from service.indexing.abandon import in_thread
from service.indexing.context import contextualized, whole_text
from service.indexing.headers import HeaderStage, Unsituated, as_allowed
from service.indexing.planning import lexemes_by_key
from service.indexing.services import IndexingServices
from service.indexing.vectors import Unembedded, VectorStage
from service.models import Generation
from service.telemetry import log

DOCUMENTS = 8
SLICE_SECONDS, GAP_SECONDS = 10.0, 0.5
"""Then other jobs have a turn."""
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 2.0, 300.0
PATIENCE_SECONDS = 86_400.0


async def request_headers_if_due(database: Database, generation: Generation) -> None:
    """Have a job make the headers that are missing, if any are and no such job waits."""
    if not generation.contextual.by_model:
        return
    team, collection = generation.team_id, generation.collection_id
    async with database.write(team) as connection:
        if not await any_due(connection, generation.id):
            return
        if await open_context_job(connection, collection) is not None:
            return
        job_id = await insert_job(connection, team, collection, kind="context")
        await enqueue(connection, team, job_id, "context")


class Backfill:
    """One turn of a worker at the headers of a collection that are missing."""

    def __init__(
        self,
        services: IndexingServices,
        job: QueuedJob,
        collection_id: int,
        age_seconds: float,
        stopping: Callable[[], bool],
    ) -> None:
        self._services = services
        self._database = services.database
        self._job = job
        self._collection_id = collection_id
        self._age_seconds = age_seconds
        self._stopping = stopping
        self._until = time.monotonic() + SLICE_SECONDS

    async def run(self) -> float | None:
        """None when every header is there, or seconds until it should go on."""
        after, made = 0, 0
        while not self._stopping() and time.monotonic() < self._until:
            generation = await self._generation()
            documents = await self._next(generation, after)
            if not documents:
                return await self._end(generation, made)
            try:
                made += await self._fill(generation, documents)
            except ProviderError as error:
                return await self._wait(str(error), error.retry_after)
            after = documents[-1].id
        return GAP_SECONDS

    async def _generation(self) -> Generation:
        async with self._database.write(self._job.team_id) as connection:
            generation = await hold_generation(connection, self._collection_id)
        return await as_allowed(self._services, generation)

    async def _next(self, generation: Generation, after: int) -> list[DueDocument]:
        if not generation.contextual.by_model:
            return []
        async with self._database.write(self._job.team_id) as connection:
            return await due_documents(connection, generation.id, after, DOCUMENTS)

    async def _end(self, generation: Generation, made: int) -> float | None:
        """Nothing is left, or what is left could not be made this time either."""
        async with self._database.write(self._job.team_id) as connection:
            if not generation.contextual.by_model:
                await end_context_job(connection, self._job.job_id)
                return None
            if await finish_context_job(connection, self._job.job_id, generation.id):
                log.info("headers made up for", job=self._job.job_id)
                return None
        return GAP_SECONDS if made else await self._wait("the model that writes headers", None)

    async def _wait(self, reason: str, seconds: float | None) -> float | None:
        async with self._database.write(self._job.team_id) as connection:
            if self._age_seconds > PATIENCE_SECONDS:
                await fail_job(connection, self._job.job_id, f"gave up waiting for {reason}")
                return None
            await postpone_job(connection, self._job.job_id, f"waiting for {reason}")
        growing = FIRST_RETRY_SECONDS * 2.0 ** min(self._job.retries, 16)
        return seconds or min(growing, LAST_RETRY_SECONDS)

    async def _fill(self, generation: Generation, documents: Sequence[DueDocument]) -> int:
        """Make headers for documents; how many were made. Raises `ProviderError`."""
        ids = [document.id for document in documents]
        async with self._database.write(generation.team_id) as connection:
            rows = await rows_of(connection, generation.id, ids)
            prepared = await prepared_for(connection, generation.id, ids)
        stage = HeaderStage(self._services, generation, self._job.job_id)
        headers = await stage.make([_unsituated(one, rows[one.id]) for one in documents], prepared)
        due = {row.row: row for found in rows.values() for row in found if row.due}
        contexts = {due[row]: context for row, context in _numbered(headers.by_key) if row in due}
        if contexts:
            vectors = await self._embed(generation, contexts, prepared)
            await self._write(generation, documents, contexts, vectors)
        return len(contexts)

    async def _embed(
        self,
        generation: Generation,
        contexts: Mapping[DueRow, str | None],
        prepared: PreparedByHash,
    ) -> dict[DueRow, NDArray[np.float16]]:
        embedder = await self._services.embedders.get(generation)
        rows = [row for row, context in contexts.items() if row.embedded and context]
        if embedder is None or not rows:
            return {}
        texts = {
            row: Unembedded(row.document, row.content_hash, contextualized(contexts[row], row.text))
            for row in rows
        }
        stage = VectorStage(self._database, generation, self._job.job_id)
        made = await stage.make(embedder, texts, prepared)
        async with self._database.write(generation.team_id) as connection:
            spent = JobProgress(usage={"embedding_tokens": made.tokens})
            await add_progress(connection, self._job.job_id, spent)
        vectors = {}
        for row in rows:
            vector = made.by_key[row]
            if isinstance(vector, ProviderError):
                raise vector
            vectors[row] = vector
        return vectors

    async def _write(
        self,
        generation: Generation,
        documents: Sequence[DueDocument],
        contexts: Mapping[DueRow, str | None],
        vectors: Mapping[DueRow, NDArray[np.float16]],
    ) -> None:
        async with self._database.write(generation.team_id) as connection:
            analyzer = await load_analyzer(connection, generation)
        texts = {row: contextualized(context, row.text) for row, context in contexts.items()}
        lexemes = await in_thread(lambda checkpoint: lexemes_by_key(texts, analyzer, checkpoint))
        async with self._database.write(generation.team_id) as connection:
            current = await hold_generation(connection, generation.collection_id)
            if current.id != generation.id:
                return
            locked = await lock_documents(connection, [document.id for document in documents])
            versions = await versions_of(connection, list(locked))
            same = [one.id for one in documents if versions.get(one.id) == one.version]
            rows = [
                RowContext(
                    row.row,
                    context,
                    vectors.get(row),
                    lexemes[row].exact,
                    lexemes[row].words,
                )
                for row, context in contexts.items()
                if row.document in same
            ]
            await set_contexts(connection, current, analyzer.configuration, rows)
            written = sorted({row.document for row in contexts if row.document in same})
            await touch_documents(connection, written)
            await forget_prepared(connection, generation.id, written)
            await add_progress(connection, self._job.job_id, JobProgress(indexed=len(written)))


def _unsituated(document: DueDocument, rows: Sequence[DueRow]) -> Unsituated:
    return Unsituated(
        id=document.id,
        doc_id=document.doc_id,
        title=document.title,
        text=whole_text(document.text, rows),
        chunks={row.row: row for row in rows if row.due},
    )


def _numbered(by_key: Mapping[Hashable, str | None]) -> list[tuple[int, str | None]]:
    return [(key, context) for key, context in by_key.items() if isinstance(key, int)]
