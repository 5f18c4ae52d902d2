"""Works through a job: claims its documents in small batches and indexes each batch."""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from service.db.builds import is_ingest_held
from service.db.documents import hold_generation
from service.db.ingests import ALONE_AFTER, ClaimedIngest, claim, give_back, ingests_left
from service.db.jobs import BegunJob, begin_job, finish_job, postpone_job
from service.db.queue import QueuedJob
from service.db.upkeep import analyze_if_grown, refresh_average_length
from service.errors import NotFoundError, ProviderError
from service.indexing.backfill import Backfill, request_headers_if_due
from service.indexing.batch import Batch
from service.indexing.bulk_headers import BulkHeaders
from service.indexing.headers import as_allowed
from service.indexing.packing import pack_if_grown
from service.indexing.rebuild import Rebuild
from service.indexing.services import IndexingServices
from service.indexing.vector_index import request_index_if_due, run_index_job
from service.indexing.writing import GenerationChangedError
from service.instruments import INDEXING_STAGE_DURATION
from service.models import Generation
from service.telemetry import log, stage

MAX_ATTEMPTS = 12
"""Times that a document is begun before it is taken for what stops the worker.

Workers are also killed for other reasons, and an innocent document must survive many of them.
"""
ABANDONED = f"gave up: the worker stopped {MAX_ATTEMPTS} times while it indexed this document"
PATIENCE_SECONDS = 86_400.0
"""Age of a job after which a provider that does not answer fails its documents."""

FIRST_EFFORT, LEAST_EFFORT, MOST_EFFORT = 2**15, 2**14, 2**23
SHORT_SECONDS, LONG_SECONDS = 1.0, 4.0

ORDER_SECONDS, ORDER_TURNS = 0.02, 50
HELD_SECONDS = 0.25
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 300.0


class BatchSize(msgspec.Struct):
    """How much a batch takes on, adapted so that it lasts about a second.

    What a killed worker has to do again, and how long a stop takes, is one batch.
    """

    effort: int = FIRST_EFFORT

    def adapt(self, seconds: float) -> None:
        """Learn from the time that a batch took."""
        if seconds > LONG_SECONDS:
            self.effort = max(self.effort // 2, LEAST_EFFORT)
        elif seconds < SHORT_SECONDS:
            growth = 4 if seconds < SHORT_SECONDS / 4 else 2
            self.effort = min(self.effort * growth, MOST_EFFORT)


def retry_seconds(retries: int) -> float:
    """How long to wait before a job is tried again: doubled each time, bounded."""
    return min(FIRST_RETRY_SECONDS * 2.0 ** min(retries, 16), LAST_RETRY_SECONDS)


async def run_job(
    services: IndexingServices, job: QueuedJob, *, stopping: Callable[[], bool]
) -> float | None:
    """Index what a job has left; None when it is finished, or seconds until it should go on."""
    try:
        if job.kind == "index":
            with stage("index", INDEXING_STAGE_DURATION):
                return await run_index_job(services.database, services.index_builds, job, stopping)
        async with services.database.write(job.team_id) as connection:
            begun = await begin_job(connection, job.job_id)
        if begun is None:
            return None
        if begun.kind == "reindex":
            return await Rebuild(services, job, begun.collection_id, stopping).run()
        if begun.kind == "context":
            with stage("backfill", INDEXING_STAGE_DURATION):
                age = begun.age_seconds
                return await Backfill(services, job, begun.collection_id, age, stopping).run()
        with stage("ingest", INDEXING_STAGE_DURATION):
            return await _Run(services, job, begun, stopping).run()
    except NotFoundError:
        return None  # the collection was deleted, and its jobs with it


class _Run:
    def __init__(
        self,
        services: IndexingServices,
        job: QueuedJob,
        begun: BegunJob,
        stopping: Callable[[], bool],
    ) -> None:
        self._services = services
        self._database = services.database
        self._turns = services.turns
        self._job = job
        self._begun = begun
        self._stopping = stopping
        self._size = BatchSize()
        self._records = 0
        self._headers_ahead = False
        self._started = time.perf_counter()

    async def run(self) -> float | None:
        patient = self._begun.age_seconds < PATIENCE_SECONDS
        blocked, wait = 0, None
        while wait is None and not self._stopping():
            if await self._is_held():
                return await self._postpone(None, HELD_SECONDS)
            if (seconds := await self._await_headers()) is not None:
                return await self._postpone("waiting for a batch of headers", seconds)
            generation, ingests, left = await self._claim(self._begun.collection_id)
            if ingests:
                blocked, wait = 0, await self._index(generation, ingests, patient=patient)
            elif left:
                blocked, wait = blocked + 1, await self._let_older_versions_pass(blocked)
            else:
                await self._finish(generation)
                return None
        return await self._postpone(None, 0.0) if wait is None else wait

    async def _claim(self, collection_id: int) -> tuple[Generation, list[ClaimedIngest], bool]:
        """The generation to write, the next documents, and whether any are left."""
        async with self._database.write(self._job.team_id) as connection:
            generation = await hold_generation(connection, collection_id)
            ingests = await claim(connection, self._job.job_id, effort=self._size.effort)
            left = bool(ingests) or await ingests_left(connection, self._job.job_id)
        return await as_allowed(self._services, generation), ingests, left

    async def _is_held(self) -> bool:
        """Whether a re-index of the collection asks to be let finish."""
        async with self._database.write(self._job.team_id) as connection:
            return await is_ingest_held(connection, self._begun.collection_id)

    async def _await_headers(self) -> float | None:
        """Seconds to wait for headers that come by batches, None without any."""
        if self._headers_ahead or self._begun.age_seconds > PATIENCE_SECONDS:
            return None
        async with self._database.write(self._job.team_id) as connection:
            generation = await hold_generation(connection, self._begun.collection_id)
        generation = await as_allowed(self._services, generation)
        try:
            wait = await BulkHeaders(self._services, generation, self._job.job_id).step()
        except ProviderError as error:
            wait = error.retry_after or retry_seconds(self._job.retries)
        self._headers_ahead = wait is None
        return wait

    async def _let_older_versions_pass(self, times: int) -> float | None:
        """Another job has the older versions: it is nearly done, or it needs this one's place."""
        if times >= ORDER_TURNS:
            return await self._postpone(None, 0.0)
        await asyncio.sleep(ORDER_SECONDS)
        return None

    async def _index(
        self, generation: Generation, claimed: Sequence[ClaimedIngest], *, patient: bool
    ) -> float | None:
        """Index a batch; seconds to wait if the embedder has to recover first."""
        batch = Batch(self._services, generation, self._job.job_id)
        ingests = [ingest for ingest in claimed if ingest.attempts <= MAX_ATTEMPTS]
        await batch.fail([(ingest, ABANDONED) for ingest in claimed if ingest not in ingests])
        try:
            await self._take_turn(batch, ingests)
        except GenerationChangedError:
            await self._give_back(ingests)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back(ingests))
            raise
        except ProviderError as error:
            await self._give_back(ingests)
            if patient:
                seconds = error.retry_after or retry_seconds(self._job.retries)
                return await self._postpone(f"waiting for the embedder: {error}", seconds)
            await batch.fail([(ingest, str(error)) for ingest in ingests])
        return None

    async def _take_turn(self, batch: Batch, ingests: Sequence[ClaimedIngest]) -> None:
        suspicious = any(ingest.attempts > ALONE_AFTER for ingest in ingests)
        async with self._turns.take(alone=suspicious):
            began = time.perf_counter()
            self._records += await batch.index(ingests)
            self._size.adapt(time.perf_counter() - began)

    async def _give_back(self, ingests: Sequence[ClaimedIngest]) -> None:
        async with self._database.write(self._job.team_id) as connection:
            await give_back(connection, [ingest.id for ingest in ingests])

    async def _postpone(self, reason: str | None, seconds: float) -> float:
        async with self._database.write(self._job.team_id) as connection:
            await postpone_job(connection, self._job.job_id, reason)
        return seconds

    async def _finish(self, generation: Generation) -> None:
        async with self._turns.upkeep:
            await refresh_average_length(self._database, generation)
        async with self._database.write(self._job.team_id) as connection:
            totals = await finish_job(connection, self._job.job_id)
        if totals is not None:
            log.info(
                "job finished",
                job=self._job.job_id,
                indexed=totals.indexed,
                failed=totals.failed,
                records=self._records,
                seconds=round(time.perf_counter() - self._started, 3),
            )
        await analyze_if_grown(self._database, generation.id)
        await pack_if_grown(self._database, generation)
        await request_index_if_due(self._database, generation)
        await request_headers_if_due(self._database, generation)
