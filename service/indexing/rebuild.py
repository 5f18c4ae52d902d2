"""Works through a re-index: builds a generation beside the active one, then swaps them.

The build goes through the documents in the order of their versions, so how far it is is one
number, and whatever is published meanwhile comes last. It is repeated until nothing is newer.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec

from service.db.builds import (
    Build,
    advance,
    count_attempt,
    count_behind,
    due_documents,
    end_job,
    failures_of,
    find_build,
    forgive_attempts,
    hold_ingest,
    settle_versions,
    swap,
)
from service.db.documents import hold_generation
from service.db.ingests import ALONE_AFTER
from service.db.jobs import job_status, postpone_job
from service.db.pool import Connection
from service.db.queue import QueuedJob
from service.db.upkeep import analyze_if_grown, refresh_average_length
from service.errors import ProviderError, UnavailableError
from service.indexing.backfill import request_headers_if_due
from service.indexing.carried_batch import CarriedBatch, GoneError
from service.indexing.headers import as_allowed
from service.indexing.packing import pack_if_grown
from service.indexing.services import IndexingServices
from service.indexing.vector_index import InterruptedBuildError, index_before_use
from service.instruments import INDEXING_STAGE_DURATION
from service.models import Generation
from service.telemetry import log, stage

MAX_ATTEMPTS = 12
ABANDONED = f"gave up: the worker stopped {MAX_ATTEMPTS} times while it carried this document over"
MAX_FAILURES = 100
"""More than these and the job ends early: what is wrong is not the documents."""

FIRST_ROWS, LEAST_ROWS, MOST_ROWS = 128, 64, 1024
MOST_DOCUMENTS = 256
SHORT_SECONDS, LONG_SECONDS = 0.25, 1.0
REST = 0.5
"""Rest after a batch as a share of its time: searches and documents come first."""
SLICE_SECONDS, GAP_SECONDS = 10.0, 1.5
"""Then other jobs, and re-indexes that wait, have a turn."""
BUSY_SECONDS = 0.5
TROUBLE_SECONDS = 2.0
PROVIDER_SECONDS = 15.0
FEW_DOCUMENTS = 100
HOLD_SECONDS = 10.0
SWAP_AGAIN_SECONDS = 0.2


class _InterruptedError(Exception):
    """The run ends here; `seconds` until it goes on, None when it does not."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__()
        self.seconds = seconds


class Rebuild:
    """One turn of a worker at a re-index."""

    def __init__(
        self,
        services: IndexingServices,
        job: QueuedJob,
        collection_id: int,
        stopping: Callable[[], bool],
    ) -> None:
        self._services = services
        self._database = services.database
        self._job = job
        self._collection_id = collection_id
        self._stopping = stopping
        self._until = time.monotonic() + SLICE_SECONDS
        self._rows = FIRST_ROWS

    async def run(self) -> float | None:
        """Build until the swap; None when it is over, or seconds until it should go on."""
        if self._services.turns.builds.locked():
            return BUSY_SECONDS
        async with self._services.turns.builds:
            try:
                with stage("reindex", INDEXING_STAGE_DURATION):
                    await self._run()
            except _InterruptedError as interrupted:
                return interrupted.seconds
            except GoneError:
                return None
            except UnavailableError as error:
                # Not the queue's growing pause: it counts the turns of a long job as well.
                log.warning("re-index interrupted", job=self._job.job_id, reason=error.detail)
                return TROUBLE_SECONDS
        return None

    async def _run(self) -> None:
        await self._follow()
        while await self._behind() > FEW_DOCUMENTS:
            await self._follow()
        await self._upkeep()
        # From here on documents are taken in, but wait: what is behind only gets less.
        while not await self._swap():
            await self._follow(hold=True)
        async with self._database.write(self._job.team_id) as connection:
            active = await hold_generation(connection, self._collection_id)
        await request_headers_if_due(self._database, await as_allowed(self._services, active))

    async def _follow(self, *, hold: bool = False) -> None:
        """Carry over all documents that are published by now; ends the job if some cannot be."""
        boundary = await self._settle(hold=hold)
        while await self._batch(boundary, hold=hold):
            pass
        async with self._database.write(self._job.team_id) as connection:
            build, _ = await self._open(connection)
            await advance(connection, build, boundary - 1)
        await self._end_if_failed(at_least=1)

    async def _open(self, connection: Connection) -> tuple[Build, Generation]:
        """The build and the active generation, if the job is still to go on."""
        active = await hold_generation(connection, self._collection_id)
        build = await find_build(connection, self._job.job_id)
        status = await job_status(connection, self._job.job_id)
        if build is None or status != "processing":
            raise GoneError
        generation = await as_allowed(self._services, build.generation)
        return msgspec.structs.replace(build, generation=generation), active

    async def _settle(self, *, hold: bool) -> int:
        while True:
            async with self._database.write(self._job.team_id) as connection:
                build, active = await self._open(connection)
                if hold:
                    await hold_ingest(connection, build, HOLD_SECONDS)
            try:
                async with self._database.write(self._job.team_id) as connection:
                    return await settle_versions(connection, build, active.id)
            except UnavailableError:
                hold = True  # so many publish that no moment is free of them

    async def _batch(self, boundary: int, *, hold: bool) -> bool:
        """Carry over the next documents; whether there were any."""
        if self._stopping() or time.monotonic() > self._until:
            raise _InterruptedError(GAP_SECONDS)
        async with self._database.write(self._job.team_id) as connection:
            build, active = await self._open(connection)
            alone = build.attempts >= ALONE_AFTER
            limit = 1 if alone else MOST_DOCUMENTS
            due, again = await due_documents(connection, build, active.id, boundary, limit)
            if not due:
                return False
            attempts = await count_attempt(connection, build)
            if hold:
                await hold_ingest(connection, build, HOLD_SECONDS)
        batch = CarriedBatch(self._services, build, active, self._job.job_id)
        batch.take(due, self._rows, again=again)
        if attempts > MAX_ATTEMPTS:
            batch.give_up(ABANDONED)
        await self._carry(batch, build, alone=alone)
        if batch.failed:
            await self._end_if_failed(at_least=MAX_FAILURES)
        return True

    async def _carry(self, batch: CarriedBatch, build: Build, *, alone: bool) -> None:
        began = time.monotonic()
        try:
            async with self._services.turns.take(alone=alone):
                began = time.monotonic()
                await batch.carry()
        except (asyncio.CancelledError, UnavailableError):
            await asyncio.shield(self._forgive(build))
            raise
        except ProviderError as error:
            await self._forgive(build)
            await self._wait_for_provider(error)
        spent = time.monotonic() - began
        if spent > LONG_SECONDS:
            self._rows = max(self._rows // 2, LEAST_ROWS)
        elif spent < SHORT_SECONDS:
            self._rows = min(self._rows * 2, MOST_ROWS)
        await asyncio.sleep(min(spent, 1.0) * REST)

    async def _forgive(self, build: Build) -> None:
        async with self._database.write(self._job.team_id) as connection:
            await forgive_attempts(connection, build)

    async def _wait_for_provider(self, error: ProviderError) -> None:
        reason = f"waiting for the provider: {error}"
        async with self._database.write(self._job.team_id) as connection:
            await postpone_job(connection, self._job.job_id, reason)
        raise _InterruptedError(error.retry_after or PROVIDER_SECONDS)

    async def _end_if_failed(self, *, at_least: int) -> None:
        async with self._database.write(self._job.team_id) as connection:
            build, _ = await self._open(connection)
            failures = await failures_of(connection, build)
            if failures.count < at_least:
                return
            reason = f"documents that could not be carried over: {failures.count}, {failures.first}"
            await end_job(connection, self._job.job_id, "error", reason)
        log.warning("re-index blocked", job=self._job.job_id, failures=failures.count)
        raise _InterruptedError(None)

    async def _behind(self) -> int:
        async with self._database.write(self._job.team_id) as connection:
            build, _ = await self._open(connection)
            return await count_behind(connection, build, FEW_DOCUMENTS + 1)

    async def _upkeep(self) -> None:
        """What the generation needs to answer as fast as the one before it."""
        async with self._services.turns.upkeep:
            await refresh_average_length(self._database, await self._generation())
        generation = await self._generation()
        await analyze_if_grown(self._database, generation.id)
        await pack_if_grown(self._database, generation)
        services = self._services
        try:
            await index_before_use(
                services.database, services.index_builds, generation, self._stopping
            )
        except InterruptedBuildError as error:
            raise _InterruptedError(BUSY_SECONDS) from error

    async def _generation(self) -> Generation:
        async with self._database.write(self._job.team_id) as connection:
            return (await self._open(connection))[0].generation

    async def _swap(self) -> bool:
        try:
            async with self._database.write(self._job.team_id) as connection:
                swapped = await swap(
                    connection,
                    self._collection_id,
                    self._job.job_id,
                    keep_seconds=self._services.keep_seconds,
                )
        except UnavailableError:
            await asyncio.sleep(SWAP_AGAIN_SECONDS)
            return False
        if swapped:
            log.info("generations swapped", job=self._job.job_id)
        return swapped
