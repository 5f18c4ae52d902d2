"""Pooled connections: every unit of work is one transaction with a role, a team and a deadline."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Literal, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from pgvector.asyncpg import register_vector

from service.errors import UnavailableError

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"
Role = Literal["braid_search", "braid_index"]

# A generic plan over skewed collections cost 50 times the custom one; see docs/adr/0002.
PLANNER_SETTINGS = {"plan_cache_mode": "force_custom_plan", "jit": "off"}
ROLLBACK_SECONDS = 2.0
LOST_CONNECTION = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
)


class _Connection(asyncpg.Connection):
    """Only `SET LOCAL` is ever used, so a released connection has nothing to reset."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """A pool and the transactions taken from it."""

    def __init__(
        self, pool: "asyncpg.Pool[asyncpg.Record]", *, acquire_seconds: float, pgbouncer: bool
    ) -> None:
        self._pool = pool
        self._acquire_seconds = acquire_seconds
        # PgBouncer in transaction mode refuses start-up settings; they travel with each BEGIN.
        settings = PLANNER_SETTINGS if pgbouncer else {}
        self._prelude = "".join(f"; SET LOCAL {name} = '{on}'" for name, on in settings.items())

    @contextlib.asynccontextmanager
    async def read(self, team_id: int) -> AsyncIterator[Connection]:
        """A read-only transaction that sees the searchable rows of one team."""
        begin = (
            f"BEGIN READ ONLY; SET LOCAL ROLE braid_search; SET LOCAL braid.team = '{team_id:d}'"
        )
        async with self._transaction(begin) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def write(self, team_id: int) -> AsyncIterator[Connection]:
        """A transaction that reads and writes the rows of one team."""
        begin = f"BEGIN; SET LOCAL ROLE braid_index; SET LOCAL braid.team = '{team_id:d}'"
        async with self._transaction(begin) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def administer(self) -> AsyncIterator[Connection]:
        """A transaction as the schema's owner: teams, keys, statistics, health."""
        async with self._transaction("BEGIN") as connection:
            yield connection

    async def fetch_row(self, statement: str, *arguments: object) -> asyncpg.Record | None:
        """First row of one statement that commits by itself, as the schema's owner."""
        async with self._acquire() as connection:
            return await connection.fetchrow(statement, *arguments)

    @contextlib.asynccontextmanager
    async def _transaction(self, begin: str) -> AsyncIterator[Connection]:
        async with self._acquire() as connection:
            await connection.execute(begin + self._prelude)
            try:
                yield connection
            except BaseException:
                await _roll_back(connection)
                raise
            await connection.execute("COMMIT")

    @contextlib.asynccontextmanager
    async def _acquire(self) -> AsyncIterator[Connection]:
        try:
            async with self._pool.acquire(timeout=self._acquire_seconds) as connection:
                yield connection
        except LOST_CONNECTION as error:
            raise UnavailableError("the database does not answer") from error

    async def close(self) -> None:
        """Close the pool; connections that do not come back in time are cut."""
        try:
            async with asyncio.timeout(5):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()


async def _roll_back(connection: Connection) -> None:
    # After a cancelled statement this also waits until the server has let go of it.
    with contextlib.suppress(*LOST_CONNECTION, asyncpg.PostgresError, TimeoutError):
        async with asyncio.timeout(ROLLBACK_SECONDS):
            await asyncio.shield(asyncio.ensure_future(connection.execute("ROLLBACK")))


async def open_database(
    dsn: str, *, size: int, acquire_seconds: float = 2.0, pgbouncer: bool = False
) -> Database:
    """Connect a pool of `size` connections; the vector extension must exist already."""
    try:
        pool = await asyncpg.create_pool(
            dsn,
            min_size=min(2, size),
            max_size=size,
            init=register_vector,
            connection_class=_Connection,
            statement_cache_size=0 if pgbouncer else 1000,
            server_settings=None if pgbouncer else PLANNER_SETTINGS,
        )
    except (*LOST_CONNECTION, asyncpg.PostgresError) as error:
        raise UnavailableError(f"cannot connect to the database: {error}") from error
    return Database(pool, acquire_seconds=acquire_seconds, pgbouncer=pgbouncer)
