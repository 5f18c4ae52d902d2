"""The processes that an operator runs apart: migrate, serve by role, worker."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest
from support.embedded_processes import eventually
from support.indexing import finished, make_collection, submit

from service.cli import main
from service.db.embedded import EmbeddedPostgres
from service.db.migrate import newest_revision

ROOT = Path(__file__).parents[2]
BRAID = [sys.executable, "-m", "service.cli"]
ROOT_KEY = "root-key-of-a-test"
SECONDS = 60
HEADERS = {"x-api-key": ROOT_KEY}


def environment(dsn: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BRAID_")}
    return kept | {"BRAID_DATABASE_URL": dsn, "BRAID_ROOT_API_KEY": ROOT_KEY}


def braid(dsn: str, *words: str) -> tuple[int, str]:
    ended = subprocess.run(
        [*BRAID, *words],
        cwd=ROOT,
        env=environment(dsn),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    return ended.returncode, ended.stderr


@contextlib.contextmanager
def running(dsn: str, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [*BRAID, *words], cwd=ROOT, env=environment(dsn), stdout=subprocess.DEVNULL
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@contextlib.contextmanager
def serving(dsn: str, role: str) -> Iterator[httpx.Client]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with (
        running(dsn, "serve", "--role", role, "--port", str(port)) as process,
        httpx.Client(base_url=url, headers=HEADERS, trust_env=False) as client,
    ):
        eventually(lambda: is_ready(client) or process.poll() is not None, SECONDS)
        yield client


def is_ready(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/readyz").is_success
    return False


@pytest.fixture
async def empty_dsn(server: EmbeddedPostgres) -> str:
    """A database that was never migrated."""
    connection = await asyncpg.connect(server.dsn())
    await connection.execute("DROP DATABASE IF EXISTS never_migrated WITH (FORCE)")
    await connection.execute("CREATE DATABASE never_migrated")
    await connection.close()
    return server.dsn("never_migrated")


def test_a_server_waits_for_its_schema_and_migrate_brings_it(empty_dsn):
    revision = newest_revision()
    for words in (("serve", "--role", "all"), ("worker",)):
        status, said = braid(empty_dsn, *words)
        assert status == 1
        assert said == (
            f"braid: the schema is missing, {revision} is needed: run `braid migrate` first\n"
        )
    for _ in range(2):
        assert braid(empty_dsn, "migrate") == (0, f"the schema is at revision {revision}\n")
    with serving(empty_dsn, "all") as client:
        assert client.get("/readyz").json()["revision"] == revision


@pytest.mark.parametrize("words", [["migrate"], ["serve", "--role", "all"], ["worker"]])
def test_a_database_that_cannot_be_reached_is_one_line(server, words, monkeypatch, capsys):
    refusing = re.sub(r"postgres:[^@]*@", "postgres:wrong@", server.dsn())
    for dsn in (
        refusing,
        "postgresql://postgres:wrong@127.0.0.1:9/none",
        "postgresql://no.such.host.invalid/none",
        "mysql://wrong",
    ):
        monkeypatch.setenv("BRAID_DATABASE_URL", dsn)
        assert main(words) == 1
        said = capsys.readouterr().err
        assert said.startswith("braid: cannot connect to the database: ")
        assert said.count("\n") == 1
        assert "wrong" not in said


def test_roles_apart_do_what_they_are_for_and_a_worker_works(dsn):
    collection = {"name": "notes", "embedding": {"provider": "none"}, "search": {"mode": "text"}}
    document = {"doc_id": "a", "text": "the kettle is empty"}
    with serving(dsn, "index") as indexing:
        assert indexing.post("/v1/collections", json=collection).status_code == 201
        posted = indexing.post("/v1/collections/notes/documents", json={"documents": [document]})
        assert posted.status_code == 202
        job = f"/v1/collections/notes/jobs/{posted.json()['job_id']}"
        eventually(lambda: indexing.get(job).json()["status"] == "done", SECONDS)
        assert indexing.post("/v1/collections/notes/search", json={}).status_code == 404
    with serving(dsn, "search") as searching:
        query = {"query": {"text": "kettle"}}
        found = searching.post("/v1/collections/notes/search", json=query).json()
        assert [hit["doc_id"] for hit in found["hits"]] == ["a"]
        assert searching.post("/v1/collections", json={"name": "b"}).status_code in (404, 405)


async def test_a_worker_alone_finishes_what_was_accepted(dsn, database):
    collection = await make_collection(database, dim=None, provider="none", model=None)
    job_id = await submit(database, collection, {"doc_id": "a", "text": "the kettle is empty"})
    with running(dsn, "worker"):
        job = await finished(database, collection, job_id)
    assert (job.status, job.counts.indexed) == ("done", 1)
