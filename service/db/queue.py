"""The durable queue: pgqueuer inside the `braid` schema, fed in the caller's transaction."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import asyncpg
import msgspec
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver
from pgqueuer.adapters.persistence.qb import (
    QueryBuilderEnvironment,
    QueryQueueBuilder,
    QuerySchedulerBuilder,
)
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.core.qm import QueueManager
from pgqueuer.domain.errors import RetryRequested
from pgqueuer.domain.models import Job
from pgqueuer.domain.settings import DBSettings
from pgqueuer.domain.types import Channel

from service.db.hosts import connect
from service.db.pool import LOST_CONNECTION, Connection, Database
from service.errors import UnavailableError
from service.instruments import DOCUMENTS_WAITING, JOBS_OLDEST, JOBS_UNFINISHED
from service.models import JobKind

SETTINGS = DBSettings(db_schema="braid")
KINDS: tuple[JobKind, ...] = ("ingest", "reindex", "index", "context")
INDEX_BUILDS = 1
"""Beside the jobs that a worker takes at once: it mostly waits for the server."""
STATEMENT_SECONDS = 30.0
CONNECT_SECONDS = 10.0
POLLS_PER_LEASE = 3

# A cancelled handler or a lost row must not strand a job: whoever starts looks for such jobs.
LOST_JOBS = """
SELECT j.team_id, j.id, j.kind FROM braid.jobs j
WHERE j.status IN ('pending', 'processing') AND NOT EXISTS (
    SELECT FROM braid.pgqueuer q
    WHERE q.dedupe_key = 'job:' || j.id AND q.status IN ('queued', 'picked'))
"""
# What is worth keeping of a job is in braid.jobs and braid.ingests.
PRUNE_LOG = "DELETE FROM braid.pgqueuer_log WHERE created < now() - interval '1 day'"
PRUNE_HELD = "DELETE FROM braid.pgqueuer WHERE status = 'failed'"


# Of the whole database, whichever worker counts.
UNFINISHED = """
SELECT kind, status, count(*) AS jobs,
    coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS age
FROM braid.jobs WHERE status IN ('pending', 'processing') GROUP BY kind, status
"""
WAITING = "SELECT count(*) FROM braid.ingests WHERE status = 'pending'"


class QueuedJob(msgspec.Struct, frozen=True):
    """A job that the queue hands out."""

    team_id: int
    job_id: int
    retries: int = 0
    kind: JobKind = "ingest"


Handler = Callable[[QueuedJob], Awaitable[float | None]]
"""Works on a job; returns None when it is finished, or seconds until it should be tried again."""


class Queue:
    """One worker's place at the queue; a job whose worker dies goes to another one."""

    def __init__(self, manager: QueueManager, lease_seconds: float) -> None:
        self._manager = manager
        self._lease = timedelta(seconds=lease_seconds)

    async def run(self, handler: Handler, *, concurrency: int) -> None:
        """Hand out jobs until `stop`; raises `UnavailableError` when the database is lost."""

        async def execute(job: Job) -> None:
            seconds = await handler(_queued(job))
            if seconds is not None:
                raise RetryRequested(timedelta(seconds=seconds))

        for kind in KINDS:
            self._manager.entrypoint(kind, on_failure="hold")(execute)
        try:
            await self._manager.run(
                dequeue_timeout=self._lease / POLLS_PER_LEASE,
                batch_size=1,
                max_concurrent_tasks=max(2, concurrency) + INDEX_BUILDS,
                heartbeat_timeout=self._lease,
                log_aggregation_interval=timedelta(0),
            )
        except (*LOST_CONNECTION, TimeoutError) as error:
            raise UnavailableError("the queue lost its connection to the database") from error

    def stop(self) -> None:
        """Take no more jobs; `run` returns when those at work are done."""
        self._manager.shutdown.set()


@contextlib.asynccontextmanager
async def open_queue(dsn: str, *, lease_seconds: float) -> AsyncIterator[Queue]:
    """A place at the queue on a connection of its own, which must not lead through a pooler."""
    try:
        connection = await connect(dsn, timeout=CONNECT_SECONDS, command_timeout=STATEMENT_SECONDS)
    except (*LOST_CONNECTION, TimeoutError) as error:
        raise UnavailableError("cannot connect to the database") from error
    try:
        manager = QueueManager(_queries(connection), channel=Channel(SETTINGS.channel))
        yield Queue(manager, lease_seconds)
    finally:
        connection.terminate()


async def enqueue(
    connection: Connection, team_id: int, job_id: int, kind: JobKind = "ingest"
) -> None:
    """Put a job into the queue, in the transaction of the caller; once is enough."""
    await _queries(connection).enqueue(
        kind,
        msgspec.json.encode(QueuedJob(team_id, job_id, kind=kind)),
        dedupe_key=f"job:{job_id}",
        on_conflict="skip",
    )


async def tidy_queue(database: Database) -> int:
    """Queue the jobs that lost their place and prune the queue's log; how many there were."""
    async with database.administer() as connection:
        lost = await connection.fetch(LOST_JOBS)
        for row in lost:
            await enqueue(connection, row["team_id"], row["id"], row["kind"])
        await connection.execute(PRUNE_LOG)
        await connection.execute(PRUNE_HELD)
    return len(lost)


async def measure_queue(database: Database) -> None:
    """Set the gauges of the jobs and documents that are not finished."""
    async with database.administer() as connection:
        rows = {(row["kind"], row["status"]): row for row in await connection.fetch(UNFINISHED)}
        documents = await connection.fetchval(WAITING)
    for kind in KINDS:
        for status in ("pending", "processing"):
            row = rows.get((kind, status))
            JOBS_UNFINISHED.set(row["jobs"] if row else 0, kind, status)
            if status == "pending":
                JOBS_OLDEST.set(row["age"] if row else 0.0, kind)
    DOCUMENTS_WAITING.set(documents)


def _queued(job: Job) -> QueuedJob:
    known = msgspec.json.decode(job.payload or b"", type=QueuedJob)
    return msgspec.structs.replace(known, retries=job.attempts)


def _queries(connection: "Connection | asyncpg.Connection[asyncpg.Record]") -> Queries:
    return Queries(
        AsyncpgDriver(connection),  # type: ignore[arg-type]
        QueryBuilderEnvironment(SETTINGS),
        QueryQueueBuilder(SETTINGS),
        QuerySchedulerBuilder(SETTINGS),
    )
