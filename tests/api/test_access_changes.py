"""Keys and collections are remembered, yet what one process changes the others obey at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest
from litestar import Litestar
from support.api import client_of, new_collection, new_key, serving

from service.api import access
from service.db.changes import DEAF_SECONDS

SEARCH = "/v1/collections/docs/search"
QUERY = {"query": {"text": "anything"}, "mode": "text"}


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a second process on the same database."""
    async with serving(dsn) as app, client_of(app) as client:
        yield client


@pytest.fixture
def look_ups(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each key was looked up in the database."""
    counted: Counter[str] = Counter()
    find = access.find_access

    async def counting(database: Any, key_hash: bytes, name: str | None) -> Any:
        counted[name or ""] += 1
        return await find(database, key_hash, name)

    monkeypatch.setattr(access, "find_access", counting)
    return counted


async def until_remembered(
    client: httpx.AsyncClient, key: dict[str, str], look_ups: Counter[str]
) -> None:
    """Search until an answer needed no look-up."""
    async with asyncio.timeout(10):
        while True:
            before = look_ups["docs"]
            assert (await client.post(SEARCH, json=QUERY, headers=key)).status_code == 200
            if look_ups["docs"] == before:
                return
            await asyncio.sleep(0.02)


async def becomes(client: httpx.AsyncClient, key: dict[str, str], status: int) -> None:
    """Search until the status is the one that a change elsewhere must bring."""
    async with asyncio.timeout(DEAF_SECONDS):
        while True:
            if (await client.post(SEARCH, json=QUERY, headers=key)).status_code == status:
                return
            await asyncio.sleep(0.005)


async def test_a_key_revoked_in_one_process_ends_in_all(
    client: httpx.AsyncClient, other: httpx.AsyncClient, look_ups: Counter[str]
) -> None:
    await new_collection(client, "docs")
    key = await new_key(client, "search")
    await until_remembered(client, key, look_ups)
    await until_remembered(other, key, look_ups)
    (listed,) = (await client.get("/v1/keys")).json()["keys"]
    await client.delete(f"/v1/keys/{listed['id']}")
    assert (await client.post(SEARCH, json=QUERY, headers=key)).status_code == 401
    await becomes(other, key, 401)


async def test_a_collection_deleted_in_one_process_is_gone_in_all(
    client: httpx.AsyncClient, other: httpx.AsyncClient, look_ups: Counter[str]
) -> None:
    await new_collection(client, "docs")
    key = await new_key(client, "search")
    await until_remembered(other, key, look_ups)
    await client.delete("/v1/collections/docs")
    await becomes(other, key, 404)


async def test_new_defaults_of_a_collection_are_obeyed_in_the_same_process_at_once(
    client: httpx.AsyncClient, look_ups: Counter[str]
) -> None:
    await new_collection(client, "docs")
    key = await new_key(client, "search")
    await until_remembered(client, key, look_ups)
    await client.patch("/v1/collections/docs", json={"search": {"mode": "text"}})
    answer = await client.post(SEARCH, json={"query": {"text": "anything"}}, headers=key)
    assert answer.json()["mode"] == "text"


async def test_a_process_that_hears_nothing_looks_up_each_time_and_recovers(
    app: Litestar, client: httpx.AsyncClient, dsn: str, look_ups: Counter[str]
) -> None:
    await new_collection(client, "docs")
    key = await new_key(client, "search")
    await until_remembered(client, key, look_ups)
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND query IN ('SELECT 1', 'LISTEN braid_changes')"
    )
    await connection.execute("UPDATE braid.api_keys SET revoked_at = now()")
    await connection.close()
    await becomes(client, key, 401)
    fresh = await new_key(client, "search")
    await until_remembered(client, fresh, look_ups)
