import asyncio
import contextlib
import itertools
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest
from litestar import Litestar
from support.api import client_of, problem, serving
from support.locks import locked_chunks, until_waiting
from support.searching import chunk, document, filled, ids, search

from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate
from service.db.pool import Database, open_database
from service.errors import UnavailableError

EVENTUALLY_SECONDS = 60
FAST = {"fsync": "off", "full_page_writes": "off"}
BODY = {"query": {"text": "green tea"}, "mode": "text"}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def mortal() -> Iterator[EmbeddedPostgres]:
    """A server that tests may stop and kill."""
    with tempfile.TemporaryDirectory(prefix="braid-mortal-", ignore_cleanup_errors=True) as folder:
        server = EmbeddedPostgres(Path(folder), settings=FAST)
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="module")
async def schema(mortal: EmbeddedPostgres) -> str:
    await execute(mortal.dsn(), "CREATE DATABASE migrated")
    await migrate(mortal.dsn("migrated"))
    return "migrated"


@pytest.fixture
async def address(mortal: EmbeddedPostgres, schema: str) -> str:
    name = f"faults_{next(_numbers)}"
    await execute(mortal.dsn(), f"CREATE DATABASE {name} TEMPLATE {schema}")
    return mortal.dsn(name)


@pytest.fixture
async def app(address: str) -> AsyncIterator[Litestar]:
    async with serving(address) as app:
        yield app


@pytest.fixture
async def client(app: Litestar) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        await filled(client, "teas", [document("a", chunk("a-0", "green tea", [1, 0, 0]))])
        yield client


async def execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def kill(server: EmbeddedPostgres) -> None:
    lines = (server.root / "postgres/postmaster.pid").read_text().splitlines()
    os.kill(int(lines[0]), signal.SIGKILL)


async def first_answer(client: httpx.AsyncClient, status: int) -> httpx.Response:
    async with asyncio.timeout(EVENTUALLY_SECONDS):
        while True:
            response = await client.post("/v1/collections/teas/search", json=BODY)
            if response.status_code == status:
                return response
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_searches_go_on_by_themselves_when_the_server_is_back(
    end: str, mortal: EmbeddedPostgres, client: httpx.AsyncClient
) -> None:
    over = asyncio.Event()

    async def keep_asking() -> list[int]:
        seen = []
        while not over.is_set():
            response = await client.post("/v1/collections/teas/search", json=BODY)
            seen.append(response.status_code)
            if response.status_code == 200:
                assert ids(response.json()) == ["a-0"]
            else:
                assert int(response.headers["retry-after"]) >= 1
            await asyncio.sleep(0.001)
        return seen

    askers = [asyncio.create_task(keep_asking()) for _ in range(3)]
    await asyncio.to_thread(mortal.stop if end == "stop" else lambda: kill(mortal))
    await first_answer(client, 503)
    await asyncio.to_thread(mortal.start)
    found = await first_answer(client, 200)
    over.set()
    seen = [status for statuses in await asyncio.gather(*askers) for status in statuses]
    assert ids(found.json()) == ["a-0"]
    assert set(seen) <= {200, 503}


async def test_sessions_that_the_server_ends_are_replaced(
    address: str, client: httpx.AsyncClient
) -> None:
    await execute(
        address,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    found = await first_answer(client, 200)
    assert ids(found.json()) == ["a-0"]


async def test_a_server_that_only_reads_goes_on_answering_searches(
    address: str, client: httpx.AsyncClient
) -> None:
    name = address.rpartition("?")[0].rpartition("/")[2]
    await execute(
        address,
        f"ALTER DATABASE {name} SET default_transaction_read_only = on",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    await first_answer(client, 200)
    answer = await search(client, "teas", **BODY)
    assert ids(answer) == ["a-0"]
    body = {"documents": [document("b", chunk("b-0", "black tea", [0, 1, 0]))]}
    refused = await client.post("/v1/collections/teas/documents", json=body)
    assert problem(refused, 503)["detail"]


async def test_a_server_that_stands_still_holds_no_request(
    mortal: EmbeddedPostgres, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.api.access_cache.LOOK_UP_SECONDS", 0.1)
    with frozen(mortal):
        unknown = await client.get("/v1/collections/none")
        assert problem(unknown, 503)["detail"] != "the request took too long"
        body = {**BODY, "timeout_ms": 100}
        problem(await client.post("/v1/collections/teas/search", json=body), 503)
        assert (await client.get("/livez")).status_code == 200
    assert ids((await first_answer(client, 200)).json()) == ["a-0"]


@contextlib.contextmanager
def frozen(server: EmbeddedPostgres) -> Iterator[None]:
    """Every process of the server stands still: it takes connections and never answers."""
    first = int((server.root / "postgres/postmaster.pid").read_text().splitlines()[0])
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    pids = [first, *map(int, children)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "sqlstate", ["53100", "55P03", "57014", "40001", "40P01", "58030", "53200", "25006"]
)
async def test_what_the_server_cannot_do_at_the_moment_is_unavailable(
    sqlstate: str, database: Database
) -> None:
    raising = f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}'; END $$"
    with pytest.raises(UnavailableError):
        async with database.administer() as connection:
            await connection.execute(raising)


async def test_a_pool_without_a_free_connection_never_hangs(dsn: str) -> None:
    database = await open_database(dsn, size=2, acquire_seconds=0.01)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        for _ in range(2):
            await stack.enter_async_context(database.read(1))
        with pytest.raises(UnavailableError):
            async with database.read(1):
                pass


async def test_a_search_that_is_cancelled_leaves_no_statement_behind(
    address: str, client: httpx.AsyncClient
) -> None:
    async with locked_chunks(address):
        asked = asyncio.create_task(client.post("/v1/collections/teas/search", json=BODY))
        await until_waiting(address, 1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await until_waiting(address, 0)
