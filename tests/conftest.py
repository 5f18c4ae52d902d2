"""One embedded server a test session, one template database, one database a test that asks."""

import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate
from service.db.pool import Database, open_database

FAST_AND_UNSAFE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedPostgres]:
    # Not below pytest's own folder: the account that runs the server may not enter it.
    with tempfile.TemporaryDirectory(prefix="braid-tests-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder), settings=FAST_AND_UNSAFE)
        postgres.start()
        yield postgres
        postgres.stop()


@pytest.fixture(scope="session")
async def template(server: EmbeddedPostgres) -> str:
    await _execute(server.dsn(), "CREATE DATABASE braid_template")
    await migrate(server.dsn("braid_template"))
    return "braid_template"


@pytest.fixture
async def dsn(server: EmbeddedPostgres, template: str) -> AsyncIterator[str]:
    """A migrated database of the test's own."""
    name = f"test_{next(_numbers)}"
    await _execute(server.dsn(), f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    yield server.dsn(name)
    await _execute(server.dsn(), f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    opened = await open_database(dsn, size=6)
    yield opened
    await opened.close()


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
