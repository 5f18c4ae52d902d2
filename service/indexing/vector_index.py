"""Keeps the approximate index of a generation as its collection wants it."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from service.db.catalog import CollectionRecord, describe_collections
from service.db.dense import EXACT_COMPONENTS
from service.db.jobs import (
    JobProgress,
    add_progress,
    begin_job,
    fail_job,
    finish_job,
    insert_job,
    postpone_job,
    set_progress,
    waiting_job,
)
from service.db.partitions import drop_orphan_partitions
from service.db.pool import Database
from service.db.queue import QueuedJob, enqueue
from service.db.upkeep import analyze_if_grown
from service.db.vector_index import (
    MAX_DIMENSIONS,
    IndexBuilder,
    IndexBuildError,
    IndexProgress,
    forget_index,
    index_is_due,
    index_name,
    index_progress,
    is_there,
    open_builder,
    publish_index,
    set_index_policy,
)
from service.errors import ConflictError, NotFoundError
from service.indexing.recall import measure_index
from service.models import Collection, Generation, IndexPolicy, Quantization
from service.telemetry import log

PROGRESS_SECONDS = 0.5
BUSY_SECONDS = 2.0

Report = Callable[[IndexProgress], Awaitable[None]]


class IndexBuilds:
    """How this process builds indexes: one at a time, on a session straight to the server."""

    def __init__(self, dsn: str, memory_mb: int | None) -> None:
        self.dsn = dsn
        self.memory_mb = memory_mb
        self.turn = asyncio.Lock()


class Wish(msgspec.Struct, frozen=True):
    """The index that a generation should have, and when it is good enough."""

    quantization: Quantization
    target_recall: float


class InterruptedBuildError(Exception):
    """The worker stops; the index is built later."""


async def request_index(
    database: Database, collection: Collection, policy: IndexPolicy | None = None
) -> int:
    """Queue a job that brings the index to what the collection wants; the job's id.

    Raises `ConflictError` when the collection can have no such index.
    """
    if policy == "hnsw":
        _check_dimensions(collection)
    async with database.write(collection.team_id) as connection:
        if policy is not None:
            await set_index_policy(connection, collection.id, policy)
        job_id = await waiting_job(connection, collection.id, "index")
        if job_id is None:
            team_id = collection.team_id
            job_id = await insert_job(connection, team_id, collection.id, kind="index")
            await enqueue(connection, team_id, job_id, "index")
    return job_id


def _check_dimensions(collection: Collection) -> None:
    dim, quantization = collection.generation.dim, collection.search.quantization
    if dim is None:
        raise ConflictError("the collection holds no vectors")
    if dim > MAX_DIMENSIONS[quantization]:
        raise ConflictError(_too_wide(quantization))


def _too_wide(quantization: Quantization) -> str:
    return (
        f"an index without quantization holds at most {MAX_DIMENSIONS[quantization]} dimensions:"
        " set search.quantization to binary"
    )


async def request_index_if_due(database: Database, generation: Generation) -> bool:
    """Queue an index job for a generation that outgrew exact search, or what was measured."""
    async with database.administer() as connection:
        if not await index_is_due(connection, generation):
            return False
        team_id = generation.team_id
        job_id = await insert_job(connection, team_id, generation.collection_id, kind="index")
        await enqueue(connection, team_id, job_id, "index")
    return True


async def run_index_job(
    database: Database, builds: IndexBuilds, job: QueuedJob, stopping: Callable[[], bool]
) -> float | None:
    """Do an index job; None when it has ended, or seconds until it should be tried again."""
    if builds.turn.locked():
        return BUSY_SECONDS
    async with builds.turn:
        return await _IndexJob(database, builds, job, stopping).run()


class _IndexJob:
    def __init__(
        self,
        database: Database,
        builds: IndexBuilds,
        job: QueuedJob,
        stopping: Callable[[], bool],
    ) -> None:
        self._database = database
        self._builds = builds
        self._job = job
        self._stopping = stopping

    async def run(self) -> float | None:
        async with self._database.write(self._job.team_id) as connection:
            begun = await begin_job(connection, self._job.job_id)
        if begun is None:
            return None
        record = await self._record(begun.collection_id)
        generation = record.collection.generation
        builds = self._builds
        async with open_builder(builds.dsn, memory_mb=builds.memory_mb) as builder:
            if not await builder.claim(generation.id):
                return await self._postpone("another worker is at this index", BUSY_SECONDS)
            index = _GenerationIndex(self._database, builder, generation, self._stopping)
            try:
                await index.become(wish_of(record), self._report)
            except InterruptedBuildError:
                return await self._postpone(None, 0.0)
            except IndexBuildError as error:
                await self._fail(str(error))
                return None
            except NotFoundError:
                # The table could not be dropped while its index was being built.
                await drop_orphan_partitions(self._database)
                raise
        await self._finish(builder.notices)
        await analyze_if_grown(self._database, generation.id)
        await request_index_if_due(self._database, generation)
        return None

    async def _record(self, collection_id: int) -> CollectionRecord:
        async with self._database.administer() as connection:
            records = await describe_collections(
                connection, self._job.team_id, only=[collection_id]
            )
        if not records:
            raise NotFoundError("unknown collection")
        return records[0]

    async def _report(self, progress: IndexProgress) -> None:
        async with self._database.write(self._job.team_id) as connection:
            await set_progress(connection, self._job.job_id, msgspec.to_builtins(progress))

    async def _postpone(self, reason: str | None, seconds: float) -> float:
        async with self._database.write(self._job.team_id) as connection:
            await postpone_job(connection, self._job.job_id, reason)
        return seconds

    async def _fail(self, reason: str) -> None:
        async with self._database.write(self._job.team_id) as connection:
            await fail_job(connection, self._job.job_id, reason)

    async def _finish(self, notices: list[str]) -> None:
        async with self._database.write(self._job.team_id) as connection:
            if notices:
                warnings = JobProgress(warnings=notices)
                await add_progress(connection, self._job.job_id, warnings)
            await finish_job(connection, self._job.job_id)


async def index_before_use(
    database: Database,
    builds: IndexBuilds,
    generation: Generation,
    stopping: Callable[[], bool],
) -> None:
    """Give a generation that is about to become active the index that its collection wants.

    One that the server cannot build is left to the job that follows. Raises `NotFoundError` when
    the generation was given up, `InterruptedBuildError`.
    """
    async with database.administer() as connection:
        only = [generation.collection_id]
        records = await describe_collections(connection, generation.team_id, only=only)
    if not records:
        raise NotFoundError("unknown collection")
    collection = msgspec.structs.replace(records[0].collection, generation=generation)
    wish = wish_of(msgspec.structs.replace(records[0], collection=collection))
    if wish is None or generation.vector_index is not None:
        return
    async with builds.turn, open_builder(builds.dsn, memory_mb=builds.memory_mb) as builder:
        if not await builder.claim(generation.id):
            raise InterruptedBuildError
        index = _GenerationIndex(database, builder, generation, stopping)
        try:
            await index.become(wish, _tell_nobody)
        except IndexBuildError as error:
            log.warning("no index before the swap", generation=generation.id, reason=str(error))


async def _tell_nobody(_progress: IndexProgress) -> None:
    """The job counts documents."""


def wish_of(record: CollectionRecord) -> Wish | None:
    """The index that a collection should have; None for exact search."""
    search, generation = record.collection.search, record.collection.generation
    policy, dim = record.index.policy, generation.dim
    if policy == "exact" or dim is None:
        return None
    small = (record.chunks + record.summaries) * dim <= EXACT_COMPONENTS
    if policy == "auto" and small and not record.index.built:
        return None
    return Wish(search.quantization, search.target_recall)


class _GenerationIndex:
    """The indexes of one generation, in the hands of this worker."""

    def __init__(
        self,
        database: Database,
        builder: IndexBuilder,
        generation: Generation,
        stopping: Callable[[], bool],
    ) -> None:
        self._database = database
        self._builder = builder
        self._generation = generation
        self._stopping = stopping

    async def become(self, wish: Wish | None, report: Report) -> None:
        """Have exactly the index that is wanted, complete and measured."""
        generation = self._generation
        if wish is not None and (generation.dim or 0) > MAX_DIMENSIONS[wish.quantization]:
            await self._forget(_too_wide(wish.quantization))
            wish = None
        present = await self._builder.indexes(generation.id)
        wanted = wish and index_name(generation.id, wish.quantization)
        if wish is None:
            await self._forget(None)
        for name, valid in present.items():
            if not valid:
                log.warning("incomplete index found, dropped", generation=generation.id)
                await self._builder.drop(name)
        if wish is not None:
            if not present.get(index_name(generation.id, wish.quantization)):
                await self._build(wish.quantization, report)
            await report(IndexProgress("measuring recall", None))
            await self._measure(wish)
        for name, valid in present.items():
            if valid and name != wanted:
                await self._builder.drop(name)

    async def _forget(self, note: str | None) -> None:
        async with self._database.administer() as connection:
            await forget_index(connection, self._generation.id, note)

    async def _measure(self, wish: Wish) -> None:
        found = await measure_index(
            self._database, self._generation, wish.quantization, wish.target_recall
        )
        async with self._database.administer() as connection:
            await publish_index(connection, self._generation.id, wish.quantization, found)
        log.info(
            "vector index measured",
            generation=self._generation.id,
            rows=found.rows,
            recall=found.recall,
            ef_search=found.ef_search,
        )

    async def _build(self, quantization: Quantization, report: Report) -> None:
        building = asyncio.ensure_future(self._builder.build(self._generation, quantization))
        try:
            while not building.done():
                await asyncio.wait([building], timeout=PROGRESS_SECONDS)
                await self._watch(report)
            await building
        except IndexBuildError:
            await self._builder.drop(index_name(self._generation.id, quantization))
            raise
        finally:
            if not building.done():
                building.cancel()
                await asyncio.wait([building])

    async def _watch(self, report: Report) -> None:
        """Tell how far the server is; a build that nobody needs any more ends here."""
        if self._stopping():
            raise InterruptedBuildError
        if not await is_there(self._database, self._generation.id):
            raise NotFoundError("unknown collection")
        progress = await index_progress(self._database, self._generation.id)
        if progress is not None:
            await report(progress)
