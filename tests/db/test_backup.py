"""What docs/how-to/kubernetes.md says of backups: a dump that is restored is the same service."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from support.api import client_of, serving
from support.schema import describe
from support.searching import fill, filled, search

from service.db.embedded import EmbeddedPostgres, find_tree

WHALE = {"id": "whale", "text": "the white whale", "vector": [1, 0, 0]}
QUESTION = {"query": {"text": "white whale", "vector": [0.9, 0.1, 0]}, "mode": "hybrid"}


@pytest.fixture
async def empty(server: EmbeddedPostgres) -> AsyncIterator[str]:
    """A database without a schema, on a server that has the roles."""
    connection = await asyncpg.connect(server.dsn())
    await connection.execute("CREATE DATABASE restored TEMPLATE template0")
    yield server.dsn("restored")
    await connection.execute("DROP DATABASE restored WITH (FORCE)")
    await connection.close()


def run(program: str, *words: str) -> None:
    command = [find_tree(None).bindir / program, *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


async def test_a_restored_dump_answers_as_before_and_takes_documents(
    dsn: str, empty: str, tmp_path: Path
) -> None:
    async with serving(dsn) as app, client_of(app) as client:
        await filled(client, "books", [{"doc_id": "moby", "chunks": [WHALE]}])
        before = await search(client, "books", **QUESTION)
    assert [hit["id"] for hit in before["hits"]] == ["whale"]

    dump = str(tmp_path / "braid.dump")
    run("pg_dump", "--format=custom", f"--file={dump}", dsn)
    run("pg_restore", f"--dbname={empty}", "--exit-on-error", dump)
    assert await describe(empty) == await describe(dsn)

    async with serving(empty) as app, client_of(app) as client:
        assert (await client.get("/readyz")).status_code == 200
        after = await search(client, "books", **QUESTION)
        assert after["hits"] == before["hits"]
        second = {"id": "crew", "text": "the crew of the white whale", "vector": [0, 1, 0]}
        await fill(client, "books", [{"doc_id": "crew", "chunks": [second]}])
        found = await search(client, "books", **QUESTION)
        assert {hit["id"] for hit in found["hits"]} == {"whale", "crew"}
