"""Pooled connections: every unit of work has a role, a team and a bounded wait."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, TypeAlias, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from pgvector.asyncpg import register_vector

from service.db.hosts import connect
from service.errors import UnavailableError
from service.instruments import POOL_CONNECTIONS, POOL_LIMIT, POOL_WAIT, POOL_WAITING
from service.telemetry import log

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

# A generic plan over skewed collections cost 50 times the custom one; see docs/adr/0002.
PLANNER_SETTINGS = {"plan_cache_mode": "force_custom_plan", "jit": "off"}
# Dead rows and filters never end an approximate search early; see docs/adr/0012.
ITERATIVE_SCAN = "hnsw.iterative_scan = relaxed_order"
BEGIN_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
ROLLBACK_SECONDS = 2.0
CLOSE_SECONDS = 5.0
PRIMARY = "primary"
LOST_CONNECTION = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
)
# The same statement may succeed a moment later.
PASSING_TROUBLE = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,
)


class _Writer(asyncpg.Connection):
    """Only `SET LOCAL` is ever used, so a released connection has nothing to reset."""

    server = PRIMARY

    def get_reset_query(self) -> str:
        return ""


class _Reader(_Writer):
    """A session of the read role, which names its team when it changes hands."""

    team_id: int | None = None
    ef_search: int | None = None

    async def act_for(self, team_id: int, ef_search: int | None = None) -> None:
        """Let the session see the rows of this team only, and HNSW search as widely as said."""
        changes = []
        if self.team_id != team_id:
            changes.append(f"SET braid.team = '{team_id:d}'")
        if ef_search not in (None, self.ef_search):
            changes.append(f"SET hnsw.ef_search = {ef_search:d}")
        if changes:
            kept = ef_search or self.ef_search
            self.team_id = self.ef_search = None
            await self.execute("; ".join(changes))
            self.team_id, self.ef_search = team_id, kept


def server_of(connection: Connection) -> str:
    """Which server a connection leads to: what was read of one may not be on another yet."""
    return cast(_Writer, connection).server


class Database:
    """Two pools: sessions that only read, and transactions that write or administer."""

    def __init__(
        self, readers: Pool, writers: Pool, *, acquire_seconds: float, pgbouncer: bool
    ) -> None:
        self._readers = readers
        self._writers = writers
        self._acquire_seconds = acquire_seconds
        self._pgbouncer = pgbouncer
        settings = PLANNER_SETTINGS if pgbouncer else {}
        self._waiting = {readers: 0, writers: 0}
        self._names = {readers: "read", writers: "write"}
        self._prelude = "".join(f"; SET LOCAL {name} = '{on}'" for name, on in settings.items())

    def observe(self) -> None:
        """Set the gauges of the pools."""
        for pool, name in self._names.items():
            idle = pool.get_idle_size()
            POOL_CONNECTIONS.set(pool.get_size() - idle, name, "used")
            POOL_CONNECTIONS.set(idle, name, "idle")
            POOL_LIMIT.set(pool.get_max_size(), name)
            POOL_WAITING.set(self._waiting[pool], name)

    @property
    def readers(self) -> int:
        """Statements that can read at the same time."""
        return self._readers.get_max_size()

    @contextlib.asynccontextmanager
    async def read(
        self, team_id: int, *, snapshot: bool = False, ef_search: int | None = None
    ) -> AsyncIterator[Connection]:
        """Read-only statements that see the searchable rows of one team.

        With `snapshot` they all see the rows as of one moment. `ef_search` is how many candidates
        an approximate search keeps. Behind PgBouncer a session belongs to nobody, so there they
        always share a transaction.
        """
        begin = BEGIN_SNAPSHOT if snapshot else "BEGIN READ ONLY"
        if self._pgbouncer:
            begin = f"{begin}; SET LOCAL ROLE braid_search; {_of_team(team_id)}"
            if ef_search is not None:
                begin += f"; SET LOCAL {ITERATIVE_SCAN}; SET LOCAL hnsw.ef_search = {ef_search:d}"
            async with self._transaction(self._readers, begin) as connection:
                yield connection
            return
        async with self._acquire(self._readers) as connection:
            await cast(_Reader, connection).act_for(team_id, ef_search)
            if snapshot:
                async with _transaction(connection, begin):
                    yield connection
            else:
                yield connection

    @contextlib.asynccontextmanager
    async def write(self, team_id: int) -> AsyncIterator[Connection]:
        """A transaction that reads and writes the rows of one team."""
        begin = f"BEGIN; SET LOCAL ROLE braid_index; {_of_team(team_id)}"
        async with self._transaction(self._writers, begin) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def administer(self) -> AsyncIterator[Connection]:
        """A transaction as the schema's owner: teams, keys, statistics, health."""
        async with self._transaction(self._writers, "BEGIN") as connection:
            yield connection

    async def fetch_row(self, statement: str, *arguments: object) -> asyncpg.Record | None:
        """First row of one statement that commits by itself, as the schema's owner."""
        async with self._acquire(self._writers) as connection:
            return await connection.fetchrow(statement, *arguments)

    async def execute_unless(
        self, refusals: tuple[type[asyncpg.PostgresError], ...], statement: str
    ) -> bool:
        """Run a statement that commits by itself, as the schema's owner; whether it was done.

        One of the refusals is an answer, not a failure.
        """
        async with self._acquire(self._writers) as connection:
            try:
                await connection.execute(statement)
            except refusals:
                return False
        return True

    @contextlib.asynccontextmanager
    async def _transaction(self, pool: Pool, begin: str) -> AsyncIterator[Connection]:
        async with (
            self._acquire(pool) as connection,
            _transaction(connection, begin + self._prelude),
        ):
            yield connection

    @contextlib.asynccontextmanager
    async def _acquire(self, pool: Pool) -> AsyncIterator[Connection]:
        began = time.perf_counter()
        self._waiting[pool] += 1
        acquired = False
        try:
            async with pool.acquire(timeout=self._acquire_seconds) as connection:
                acquired = self._arrived(pool, began)
                yield connection
        except LOST_CONNECTION as error:
            raise UnavailableError("the database does not answer") from error
        except PASSING_TROUBLE as error:
            log.warning("database in trouble", error=type(error).__name__)
            raise UnavailableError("the database cannot do this at the moment") from error
        except asyncpg.PostgresError as error:
            log.error("statement failed", error=type(error).__name__, sqlstate=error.sqlstate)
            if pool is self._writers:
                raise
            raise UnavailableError("the database refused a query") from error
        finally:
            if not acquired:
                self._arrived(pool, began)

    def _arrived(self, pool: Pool, began: float) -> bool:
        """Write down a wait for a connection that is over."""
        self._waiting[pool] -= 1
        POOL_WAIT.record(time.perf_counter() - began, self._names[pool])
        return True

    async def close(self) -> None:
        """Close the pools; connections that do not come back in time are cut."""
        for pool in (self._readers, self._writers):
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await pool.close()
            except TimeoutError:
                pool.terminate()


@contextlib.asynccontextmanager
async def _transaction(connection: Connection, begin: str) -> AsyncIterator[None]:
    try:
        await connection.execute(begin)
        yield
    except BaseException:
        await _roll_back(connection)
        raise
    await connection.execute("COMMIT")


async def _roll_back(connection: Connection) -> None:
    # After a cancelled statement this also waits until the server has let go of it.
    with contextlib.suppress(*LOST_CONNECTION, asyncpg.PostgresError, TimeoutError):
        async with asyncio.timeout(ROLLBACK_SECONDS):
            await asyncio.shield(asyncio.ensure_future(connection.execute("ROLLBACK")))


async def open_database(
    dsn: str, *, size: int, acquire_seconds: float = 2.0, pgbouncer: bool = False
) -> Database:
    """Connect `size` readers and half as many writers; the schema must exist already."""
    reader = _Writer if pgbouncer else _Reader
    try:
        readers = await open_pool(dsn, size, reader, pgbouncer=pgbouncer)
        writers = await open_pool(dsn, max(2, size // 2), _Writer, pgbouncer=pgbouncer)
    except (*LOST_CONNECTION, asyncpg.PostgresError) as error:
        raise UnavailableError(f"cannot connect to the database: {error}") from error
    return Database(readers, writers, acquire_seconds=acquire_seconds, pgbouncer=pgbouncer)


async def open_replica_pool(dsn: str, server: str, size: int, *, pgbouncer: bool) -> Pool:
    """Sessions on a server that only reads, which say that they are on it."""
    base = _Writer if pgbouncer else _Reader
    kind = type(base.__name__, (base,), {"server": server})
    return await open_pool(dsn, size, kind, pgbouncer=pgbouncer)


async def open_pool(dsn: str, size: int, kind: type[_Writer], *, pgbouncer: bool) -> Pool:
    """Up to `size` sessions of a kind."""
    # PgBouncer in transaction mode refuses start-up settings and knows no prepared statements.
    return await asyncpg.create_pool(
        dsn,
        connect=cast(Any, connect),
        min_size=min(2, size),
        max_size=size,
        init=_become_reader if issubclass(kind, _Reader) else register_vector,
        connection_class=kind,
        statement_cache_size=0 if pgbouncer else 1000,
        server_settings=None if pgbouncer else PLANNER_SETTINGS,
    )


async def _become_reader(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    await register_vector(connection)
    await connection.execute(
        f"SET ROLE braid_search; SET default_transaction_read_only = on; SET {ITERATIVE_SCAN}"
    )


def _of_team(team_id: int) -> str:
    return f"SET LOCAL braid.team = '{team_id:d}'"
