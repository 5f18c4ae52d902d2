"""Flags change searches and headers at run time: in every process, and for the teams meant."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar import Litestar
from support.api import client_of, new_key, pointers, problem, serving
from support.searching import chunk, document, filled, ids, search

from service.db.flags import place_of

HYBRID = "/v1/flags/hybrid_search"
TWO_SECONDS = 2.0
DOCUMENTS = [
    document("d1", chunk("a", "red apple pie", [1, 0, 0])),
    document("d2", chunk("b", "green apple", [0.8, 0.6, 0])),
    document("d3", chunk("c", "yellow banana", [0, 1, 0])),
]
BOTH = {"text": "banana", "vector": [1, 0, 0]}
LEXICAL_LEFT_OUT = [{"stage": "lexical", "reason": "off by flag"}]


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a second process on the same database."""
    async with serving(dsn) as app, client_of(app) as client:
        yield client


@pytest.fixture
async def fruit(client: httpx.AsyncClient) -> httpx.AsyncClient:
    await filled(client, "fruit", DOCUMENTS)
    return client


async def put(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await client.put(path, json=body)
    assert response.status_code == 200, response.text
    flag: dict[str, Any] = response.json()
    return flag


async def becomes(client: httpx.AsyncClient, mode: str) -> None:
    """Search until the default mode is the one that a change elsewhere must bring."""
    async with asyncio.timeout(TWO_SECONDS):
        while True:
            if (await search(client, "fruit", query=BOTH))["mode"] == mode:
                return
            await asyncio.sleep(0.01)


async def test_both_flags_are_on_until_they_are_set(client: httpx.AsyncClient) -> None:
    on = {"default": True, "percentage": 100, "teams": {}}
    listed = (await client.get("/v1/flags")).json()["flags"]
    assert listed == [{"name": "contextual_retrieval", **on}, {"name": "hybrid_search", **on}]
    flag = await put(client, HYBRID, percentage=5, teams={"default": False})
    assert flag == {
        "name": "hybrid_search",
        "default": True,
        "percentage": 5,
        "teams": {"default": False},
    }
    assert (await client.get("/v1/flags")).json()["flags"][1] == flag
    assert await put(client, HYBRID) == {"name": "hybrid_search", **on}


async def test_only_the_root_key_sets_flags_that_exist(client: httpx.AsyncClient) -> None:
    problem(await client.put("/v1/flags/teleport", json={}), 404)
    assert pointers(await client.put(HYBRID, json={"percentage": 101})) == ["/percentage"]
    assert pointers(await client.put(HYBRID, json={"teams": {"no": True}})) == ["/teams/no"]
    key = await new_key(client, "admin")
    problem(await client.put(HYBRID, json={}, headers=key), 403)
    problem(await client.get("/v1/flags", headers=key), 403)


async def test_off_is_exactly_the_plain_dense_search(fruit: httpx.AsyncClient) -> None:
    dense = await search(fruit, "fruit", query={"vector": [1, 0, 0]}, mode="vector")
    assert ids(await search(fruit, "fruit", query=BOTH)) != ids(dense)
    await put(fruit, HYBRID, default=False)
    by_default = await search(fruit, "fruit", query=BOTH)
    vector_only = await search(fruit, "fruit", query={"vector": [1, 0, 0]})
    for answer in (by_default, vector_only):
        assert answer["hits"] == dense["hits"]
        assert (answer["mode"], answer["degraded"]) == ("vector", [])
        assert set(answer["stages"]) == {"dense", "hydrate"}


async def test_who_asks_for_hybrid_by_name_is_told(fruit: httpx.AsyncClient) -> None:
    await put(fruit, HYBRID, default=False)
    for more in ({"mode": "hybrid"}, {"min_score": {"lexical": 0.1}}):
        answer = await search(fruit, "fruit", query=BOTH, **more)
        assert (answer["mode"], ids(answer)) == ("vector", ["a", "b", "c"])
        assert answer["degraded"] == LEXICAL_LEFT_OUT
    named = await fruit.post(
        "/v1/collections/fruit/search", json={"query": {"vector": [1, 0, 0]}, "mode": "hybrid"}
    )
    assert pointers(named) == ["/query/text"]
    text = await search(fruit, "fruit", query={"text": "banana"}, mode="text")
    assert (text["mode"], ids(text), text["degraded"]) == ("text", ["c"], [])


async def test_what_holds_no_vectors_is_searched_by_words(client: httpx.AsyncClient) -> None:
    await filled(client, "fruit", DOCUMENTS)
    await put(client, HYBRID, default=False)
    by_default = await search(client, "fruit", query={"text": "banana"})
    named = await search(client, "fruit", query={"text": "banana"}, mode="hybrid")
    assert (by_default["mode"], ids(by_default), by_default["degraded"]) == ("text", ["c"], [])
    assert (named["mode"], ids(named)) == ("text", ["c"])
    assert named["degraded"] == [{"stage": "dense", "reason": "off by flag"}]


async def test_a_search_over_several_collections_obeys_too(fruit: httpx.AsyncClient) -> None:
    await filled(fruit, "more", DOCUMENTS)
    await put(fruit, HYBRID, default=False)
    body = {"query": BOTH, "collections": ["fruit", "more"]}
    by_default = (await fruit.post("/v1/search", json=body)).json()
    named = (await fruit.post("/v1/search", json={**body, "mode": "hybrid"})).json()
    assert (by_default["mode"], by_default["degraded"]) == ("vector", [])
    assert (named["mode"], named["degraded"]) == ("vector", LEXICAL_LEFT_OUT)
    assert named["hits"] == by_default["hits"]


async def test_another_process_obeys_within_two_seconds(
    fruit: httpx.AsyncClient, other: httpx.AsyncClient
) -> None:
    await becomes(other, "hybrid")
    await put(fruit, HYBRID, teams={"default": False})
    assert (await search(fruit, "fruit", query=BOTH))["mode"] == "vector"
    await becomes(other, "vector")
    await put(other, HYBRID)
    await becomes(fruit, "hybrid")


async def test_a_process_that_hears_no_notices_asks_for_itself(
    fruit: httpx.AsyncClient, dsn: str
) -> None:
    direct = {"db_pgbouncer": True, "database_direct_url": None}
    async with serving(dsn, "search", **direct) as deaf, client_of(deaf) as client:
        assert not deaf.state.services.access._changes.current
        await becomes(client, "hybrid")
        await put(fruit, HYBRID, default=False)
        await becomes(client, "vector")


async def test_a_team_named_has_its_own_way(fruit: httpx.AsyncClient, app: Litestar) -> None:
    await fruit.post("/v1/teams", json={"name": "other"})
    flags = app.state.services.flags
    await put(fruit, HYBRID, default=False, teams={"other": True})
    assert [flags.on("hybrid_search", team) for team in (1, 2)] == [False, True]
    assert [flags.on("contextual_retrieval", team) for team in (1, 2)] == [True, True]
    await put(fruit, HYBRID, percentage=0, teams={"other": True})
    assert [flags.on("hybrid_search", team) for team in (1, 2)] == [False, True]


async def test_a_percentage_holds_for_the_same_teams_everywhere(
    client: httpx.AsyncClient, app: Litestar
) -> None:
    teams = range(1, 2001)
    flags = app.state.services.flags
    await put(client, HYBRID, percentage=30)
    on = {team for team in teams if flags.on("hybrid_search", team)}
    assert on == {team for team in teams if place_of("hybrid_search", team) < 30}
    assert len(on) / len(teams) == pytest.approx(0.3, abs=0.04)
    await put(client, HYBRID, percentage=60)
    assert on < {team for team in teams if flags.on("hybrid_search", team)}


@given(st.integers(1, 2**62))
def test_a_hundred_percent_is_everybody_and_none_nobody(team: int) -> None:
    assert 0 <= place_of("hybrid_search", team) < 100
    assert place_of("hybrid_search", team) == place_of("hybrid_search", team)


async def test_a_search_asks_the_database_nothing_about_flags(
    fruit: httpx.AsyncClient, dsn: str
) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("BEGIN; LOCK TABLE braid.flags IN ACCESS EXCLUSIVE MODE")
        assert (await search(fruit, "fruit", query=BOTH))["mode"] == "hybrid"
    finally:
        await connection.close()


async def test_headers_follow_their_flag(client: httpx.AsyncClient, app: Litestar) -> None:
    allowed = app.state.services.flags.headers_allowed
    assert await allowed(1)
    await put(client, "/v1/flags/contextual_retrieval", teams={"default": False})
    assert not await allowed(1)
