"""Takes jobs from the queue until it is told to stop."""

import asyncio
import contextlib
import random
import time

from service.db.audit_log import expire_entries
from service.db.disposal import discard_expired, remove_leftovers, remove_old_jobs
from service.db.partitions import drop_orphan_partitions
from service.db.pool import Database
from service.db.prepared import expire_prepared
from service.db.queue import Queue, QueuedJob, measure_queue, open_queue, tidy_queue
from service.errors import ProviderError, UnavailableError
from service.indexing.conversion import Limits
from service.indexing.job import retry_seconds, run_job
from service.indexing.mishaps import error_site
from service.indexing.services import HeadersAllowed, IndexingServices
from service.indexing.turns import Turns
from service.indexing.vector_index import IndexBuilds
from service.instruments import JOB_RUNS
from service.models import Generation
from service.providers.base import (
    BulkContextualizer,
    Contextualizer,
    ContextualizerSource,
    EmbedderSource,
)
from service.telemetry import log

LEASE_SECONDS = 4.0
TIDY_SECONDS = 60.0
MEASURE_SECONDS = 15.0
GRACE_SECONDS = 10.0
KEEP_SECONDS = 86_400.0
AUDIT_DAYS = 365
KEEP_JOBS_SECONDS = 30 * 86_400.0
RECONNECT_SECONDS = 1.0


class NoContextualizers:
    """Of a worker that makes no headers."""

    async def get(self, _generation: Generation) -> Contextualizer:
        """Raises `ProviderError`."""
        raise ProviderError("this worker makes no headers")

    async def bulk(self, _generation: Generation) -> BulkContextualizer | None:
        """None."""
        return None


async def always(_team_id: int) -> bool:
    """Headers are allowed to every team."""
    return True


class Worker:
    """Runs indexing jobs; any number of workers share one database.

    `dsn` leads straight to the server, not through a pooler: the worker listens on it.
    A worker that dies leaves its jobs to others after `lease_seconds`. A generation that was
    replaced can be returned to for `keep_seconds`, and a job that ended is shown for
    `keep_jobs_seconds`.
    """

    def __init__(
        self,
        database: Database,
        dsn: str,
        embedders: EmbedderSource,
        *,
        contextualizers: ContextualizerSource | None = None,
        headers_allowed: HeadersAllowed = always,
        concurrency: int = 2,
        lease_seconds: float = LEASE_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
        index_memory_mb: int | None = None,
        keep_seconds: float = KEEP_SECONDS,
        audit_days: int = AUDIT_DAYS,
        keep_jobs_seconds: float = KEEP_JOBS_SECONDS,
        conversion: Limits | None = None,
    ) -> None:
        self._services = IndexingServices(
            database=database,
            embedders=embedders,
            contextualizers=contextualizers or NoContextualizers(),
            headers_allowed=headers_allowed,
            turns=Turns(builds=max(1, concurrency - 1)),
            index_builds=IndexBuilds(dsn, index_memory_mb),
            keep_seconds=keep_seconds,
            conversion=conversion or Limits(),
        )
        self._dsn = dsn
        self._audit_days = audit_days
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._grace_seconds = grace_seconds
        self._keep_jobs_seconds = keep_jobs_seconds
        self._slots = asyncio.Semaphore(concurrency)
        self._stopping = asyncio.Event()
        self._at_work: set[asyncio.Task[float | None]] = set()

    async def run(self) -> None:
        """Work until `stop`, or until cancelled, which stops just as gracefully."""
        serving = asyncio.ensure_future(self._serve())
        tidying = asyncio.ensure_future(self._tidy())
        measuring = asyncio.ensure_future(self._measure())
        try:
            await self._stopping.wait()
        finally:
            self.stop()
            await self._let_go(serving)
            await asyncio.gather(tidying, measuring)

    def stop(self) -> None:
        """Take no more jobs; those at work end after their current batch or are handed back."""
        self._stopping.set()

    async def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                async with open_queue(self._dsn, lease_seconds=self._lease_seconds) as queue:
                    await self._work(queue)
            except UnavailableError as error:
                log.warning("the worker has no database, trying again", reason=error.detail)
            except Exception as error:  # noqa: BLE001 - a worker never dies of one bad moment
                log.error("the worker lost its queue, trying again", **error_site(error))
            else:
                continue
            await self._pause(RECONNECT_SECONDS)

    async def _work(self, queue: Queue) -> None:
        running = asyncio.ensure_future(queue.run(self._handle, concurrency=self._concurrency))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            queue.stop()
        await running

    async def _handle(self, job: QueuedJob) -> float | None:
        # Building an index is the server's work: it takes no place from documents.
        async with contextlib.nullcontext() if job.kind == "index" else self._slots:
            if self._stopping.is_set():
                return 0.0
            work = asyncio.ensure_future(self._run_job(job))
            self._at_work.add(work)
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                # Handed back: a job that was cancelled would count as done.
                work.cancel()
                await asyncio.wait([work])
                return 0.0
            finally:
                self._at_work.discard(work)

    async def _run_job(self, job: QueuedJob) -> float | None:
        began, outcome = time.perf_counter(), "error"
        try:
            wait = await run_job(self._services, job, stopping=self._stopping.is_set)
            outcome = "finished" if wait is None else "postponed"
        except UnavailableError as error:
            log.warning("job interrupted", job=job.job_id, reason=error.detail)
        except Exception as error:  # noqa: BLE001 - the job goes on later, its attempts counted
            log.error("job interrupted", job=job.job_id, **error_site(error))
        else:
            return wait
        finally:
            JOB_RUNS.record(time.perf_counter() - began, job.kind, outcome)
        return retry_seconds(job.retries)

    async def _tidy(self) -> None:
        while not self._stopping.is_set():
            try:
                database = self._services.database
                if lost := await tidy_queue(database):
                    log.warning("jobs had lost their place in the queue", jobs=lost)
                await discard_expired(database)
                async with database.administer() as connection:
                    await expire_prepared(connection)
                    await expire_entries(connection, self._audit_days)
                await drop_orphan_partitions(database)
                await remove_leftovers(database)
                await remove_old_jobs(database, self._keep_jobs_seconds)
            except UnavailableError:
                pass  # the queue itself complains
            except Exception as error:  # noqa: BLE001 - it is tried again
                log.error("the worker could not tidy up", **error_site(error))
            await self._pause(TIDY_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311

    async def _measure(self) -> None:
        while not self._stopping.is_set():
            try:
                await measure_queue(self._services.database)
            except UnavailableError:
                pass  # the queue itself complains
            except Exception as error:  # noqa: BLE001 - it is tried again
                log.error("the worker could not measure its queue", **error_site(error))
            await self._pause(MEASURE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _let_go(self, serving: "asyncio.Future[None]") -> None:
        """Give the jobs at work their grace, then hand them back as they are."""
        await asyncio.wait([serving], timeout=self._grace_seconds)
        for work in list(self._at_work):
            work.cancel()
        await serving
