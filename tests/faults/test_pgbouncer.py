import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from litestar import Litestar
from support.api import client_of, new_key, serving
from support.pgbouncer import pgbouncer, through
from support.searching import chunk, document, filled, ids, search

from service.api import access
from service.db.embedded import EmbeddedPostgres
from service.errors import ConfigurationError

EVENTUALLY_SECONDS = 30


@pytest.fixture(scope="module")
def port(server: EmbeddedPostgres) -> Iterator[int]:
    with pgbouncer(server) as port:
        yield port


@pytest.fixture
async def pooled(port: int, dsn: str) -> AsyncIterator[Litestar]:
    given = {"db_pgbouncer": True, "database_direct_url": dsn, "db_pool_size": 10}
    async with serving(through(port, dsn), **given) as app:
        yield app


@pytest.fixture
async def client(pooled: Litestar) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(pooled) as client:
        yield client


async def test_teams_stay_apart_on_sessions_that_belong_to_nobody(
    pooled: Litestar, client: httpx.AsyncClient
) -> None:
    assert (await client.post("/v1/teams", json={"name": "other"})).status_code == 201
    other = client_of(pooled)
    other.headers["X-Team"] = "other"
    async with other:
        for who, name in ((client, "green"), (other, "black")):
            chunks = [chunk(f"{name}-{at}", f"{name} tea {at}", [1, at, 0]) for at in range(3)]
            await filled(who, "teas", [document(name, *chunks)])

        async def ask(who: httpx.AsyncClient, name: str, mode: str) -> None:
            query = {"text": "tea"} if mode == "text" else {"text": "tea", "vector": [1, 0, 0]}
            answer = await search(who, "teas", query=query, mode=mode, timeout_ms=60_000)
            assert answer["degraded"] == []
            assert sorted(ids(answer)) == [f"{name}-{at}" for at in range(3)]

        asked = [(client, "green"), (other, "black")] * 10
        for mode in ("text", "hybrid"):
            await asyncio.gather(*(ask(who, name, mode) for who, name in asked[:8]))


async def test_keys_are_remembered_because_changes_are_heard_past_the_pooler(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_ups = 0
    find = access.find_access

    async def counting(*given: Any) -> Any:
        nonlocal look_ups
        look_ups += 1
        return await find(*given)

    monkeypatch.setattr(access, "find_access", counting)
    await filled(client, "teas", [document("a", chunk("a-0", "green tea", [1, 0, 0]))])
    client.headers.update(await new_key(client, "search"))
    async with asyncio.timeout(EVENTUALLY_SECONDS):
        while True:
            before = look_ups
            answer = await search(client, "teas", query={"text": "tea"}, mode="text")
            assert ids(answer) == ["a-0"]
            if look_ups == before:
                return
            await asyncio.sleep(0.02)


async def test_a_worker_behind_a_pooler_needs_a_direct_address(port: int, dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="BRAID_DATABASE_DIRECT_URL"):
        async with serving(through(port, dsn), db_pgbouncer=True):
            pass
    async with (
        serving(through(port, dsn), "search", db_pgbouncer=True) as app,
        client_of(app) as client,
    ):
        assert (await client.get("/readyz")).status_code == 200
