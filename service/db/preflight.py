"""Looks at a database before a process relies on it; what is wrong is one clear line."""

import contextlib
from collections.abc import AsyncIterator

import asyncpg
from sqlalchemy.exc import DBAPIError

from service.db.catalog import REVISION
from service.db.hosts import connect
from service.db.migrate import migrate, newest_revision
from service.errors import ConfigurationError

CONNECT_SECONDS = 10.0


async def check_schema(dsn: str) -> None:
    """Raise `ConfigurationError` unless the database has the schema of this version or a later one.

    A migration leaves the schema usable by the version before it: an upgrade can be undone.
    """
    async with _connected(dsn) as connection:
        try:
            found = await connection.fetchval(REVISION)
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            found = None
    needed = newest_revision()
    if found is None or found < needed:
        state = f"at revision {found}" if found else "missing"
        raise ConfigurationError(
            f"the schema is {state}, {needed} is needed: run `braid migrate` first"
        )


async def migrate_or_explain(dsn: str) -> None:
    """Migrate; a server that cannot be reached or refuses is a `ConfigurationError`."""
    async with _connected(dsn):
        pass
    try:
        await migrate(dsn)
    except DBAPIError as error:
        why = str(error.orig).partition(": ")[2] or str(error.orig)
        raise ConfigurationError(f"the database refused to be migrated: {why}") from error


@contextlib.asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    try:
        connection = await connect(dsn, timeout=CONNECT_SECONDS, statement_cache_size=0)
    except TimeoutError as error:
        raise ConfigurationError("the database does not answer in time") from error
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ConfigurationError(f"cannot connect to the database: {_reason(error)}") from error
    try:
        yield connection
    finally:
        await connection.close()


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
