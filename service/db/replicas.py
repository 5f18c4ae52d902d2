"""Streaming replicas that answer searches: which of them are well and fresh enough."""

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import asyncpg
import msgspec

from service.db.hosts import connect
from service.db.pool import LOST_CONNECTION, Connection, Database, Pool, open_replica_pool
from service.errors import UnavailableError
from service.instruments import REPLICAS
from service.models import Collection
from service.telemetry import log

PROBE_SECONDS = 0.4
ANSWER_SECONDS = 1.0
ACQUIRE_SECONDS = 2.0
SAMPLES = 4096
"""At one a probe, some twenty minutes: who is further behind is as old as nobody knows."""
FAILURES = (*LOST_CONNECTION, asyncpg.PostgresError, UnavailableError, TimeoutError)

POSITION = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"
REPLAYED = """
SELECT pg_is_in_recovery(), pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint
"""
ACTIVE = "SELECT active_generation_id FROM braid.collections WHERE active_generation_id = ANY($1)"
BEGIN_AS_OWNER = "BEGIN READ ONLY; SET LOCAL ROLE NONE"

_BETWEEN = re.compile(r"[,\s]+(?=postgres(?:ql)?://)")


class ReplicaLostError(Exception):
    """A replica gave no answer; another server can be asked."""


class Replica(Database):
    """Sessions on a replica: whatever fails on it may succeed elsewhere."""

    def __init__(self, pool: Pool, *, pgbouncer: bool) -> None:
        super().__init__(pool, pool, acquire_seconds=ACQUIRE_SECONDS, pgbouncer=pgbouncer)
        self._names = {pool: "replica"}
        self.usable = False
        self._active: set[int] = set()

    async def has(self, collections: Sequence[Collection]) -> bool:
        """Whether it knows these generations as the active ones: it may not have got so far.

        Raises `ReplicaLostError`. Once seen they need not be asked for: no replica goes back.
        """
        wanted = {collection.generation.id for collection in collections}
        if unseen := wanted - self._active:
            async with self.administer() as connection:
                found = await connection.fetch(ACTIVE, list(unseen))
            self._active.update(row[0] for row in found)
        return wanted <= self._active

    @contextlib.asynccontextmanager
    async def administer(self) -> AsyncIterator[Connection]:
        """A transaction that reads as the schema's owner."""
        async with self._transaction(self._readers, BEGIN_AS_OWNER) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def _acquire(self, pool: Pool) -> AsyncIterator[Connection]:
        try:
            async with super()._acquire(pool) as connection:
                yield connection
        except (UnavailableError, asyncpg.PostgresError) as error:
            # Until it is looked at again; a pool that is merely full says nothing of the server.
            self.usable = isinstance(error.__cause__, TimeoutError)
            raise ReplicaLostError("a replica gave no answer") from error

    def cut(self) -> None:
        """End all sessions: statements that hang on it fail at once."""
        self.usable = False
        self._readers.terminate()


class _Sample(msgspec.Struct):
    position: int
    until: float
    """When the primary was last seen there."""


class PrimaryLog:
    """Where the primary's log ended at which time: it turns a replica's position into seconds."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)

    def note(self, position: int, at: float) -> None:
        """The log ended at `position` (bytes) at time `at`."""
        last = self._samples[-1] if self._samples else None
        if last is not None and position == last.position:
            last.until = at
            return
        if last is not None and position < last.position:
            self._samples.clear()  # another server is the primary now
        self._samples.append(_Sample(position, at))

    def lag(self, replayed: int, now: float) -> float:
        """Seconds that a replica is behind at most; infinite when nobody knows."""
        if self._samples and replayed >= self._samples[-1].position:
            return 0.0
        reached = (one for one in reversed(self._samples) if one.position <= replayed)
        return now - next((one.until for one in reached), float("-inf"))


class _Probe:
    """One connection that asks one server how it is."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def ask(self, statement: str) -> asyncpg.Record:
        """The row of a statement; raises one of `FAILURES` after a second at most."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if self._connection is None:
                    self._connection = await connect(self._dsn, statement_cache_size=0)
                row = await self._connection.fetchrow(statement)
        except BaseException:
            self.close()
            raise
        assert row is not None
        return row

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None


class _Place:
    """One replica's address and, while it answers, its sessions."""

    def __init__(self, dsn: str, name: str) -> None:
        self.dsn = dsn
        self.name = name
        self.probe = _Probe(dsn)
        self.replica: Replica | None = None

    def leave_out(self, reason: str) -> None:
        if self.replica is not None and self.replica.usable:
            log.warning("replica left out", replica=self.name, reason=reason)
            self.replica.usable = False

    def cut(self, reason: str) -> None:
        self.leave_out(reason)
        if self.replica is not None:
            self.replica.cut()
            self.replica = None


class Replicas:
    """The replicas of one primary, looked at all the time, taken in turn."""

    def __init__(
        self,
        primary: str,
        addresses: Sequence[str],
        *,
        size: int,
        max_lag: float,
        pgbouncer: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._primary = _Probe(primary)
        self._places = [_Place(dsn, f"replica-{at}") for at, dsn in enumerate(addresses, 1)]
        self._size = size
        self._max_lag = max_lag
        self._pgbouncer = pgbouncer
        self._clock = clock
        self._log = PrimaryLog()
        self._turn = 0

    @property
    def usable(self) -> list[str]:
        """Names of the replicas that searches are sent to."""
        return [one.name for one in self._places if one.replica and one.replica.usable]

    def observe(self) -> None:
        """Set the gauges of the replicas."""
        usable = len(self.usable)
        REPLICAS.set(usable, "in use")
        REPLICAS.set(len(self._places) - usable, "left out")

    async def choose(self, collections: Sequence[Collection]) -> Replica | None:
        """The next replica that has what a search needs; None when only the primary has."""
        self._turn += 1
        for at in range(len(self._places)):
            replica = self._places[(self._turn + at) % len(self._places)].replica
            if replica is None or not replica.usable:
                continue
            with contextlib.suppress(ReplicaLostError, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    if await replica.has(collections):
                        return replica
        return None

    async def watch(self) -> None:
        """Look at all servers until cancelled."""
        try:
            async with asyncio.TaskGroup() as watching:
                watching.create_task(self._repeat(self._look_at_primary))
                for place in self._places:
                    watching.create_task(self._repeat(partial(self._look_at, place)))
        finally:
            self._primary.close()
            for place in self._places:
                place.probe.close()
                if place.replica is not None:
                    place.replica.cut()

    async def _repeat(self, look: Callable[[], Awaitable[None]]) -> None:
        while True:
            await look()
            await asyncio.sleep(PROBE_SECONDS)

    async def _look_at_primary(self) -> None:
        asked = self._clock()
        with contextlib.suppress(*FAILURES):
            self._log.note((await self._primary.ask(POSITION))[0], asked)

    async def _look_at(self, place: _Place) -> None:
        try:
            recovering, replayed = await place.probe.ask(REPLAYED)
            lag = self._log.lag(replayed or 0, self._clock())
            if not recovering:
                place.cut("not a replica")
            elif lag > self._max_lag:
                place.leave_out("lag")
            else:
                await self._take_in(place)
        except FAILURES as error:
            place.cut(type(error).__name__)

    async def _take_in(self, place: _Place) -> None:
        if place.replica is None:
            pool = await open_replica_pool(
                place.dsn, place.name, self._size, pgbouncer=self._pgbouncer
            )
            place.replica = Replica(pool, pgbouncer=self._pgbouncer)
        if not place.replica.usable:
            log.info("replica in use", replica=place.name)
            place.replica.usable = True


def parse_addresses(given: str) -> list[str]:
    """The addresses of a list; a comma inside one separates its hosts."""
    return [one for one in _BETWEEN.split(given.strip().strip(",")) if one]
