import asyncio
import contextlib

import httpx
import pytest
from litestar import Litestar
from support.api import ROOT, client_of, new_collection, problem, serving

from service.api.admission import ACTIVE_SECONDS, Gate
from service.errors import OverloadedError


async def test_a_full_gate_lets_half_as_many_wait_and_refuses_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.api.admission.WAIT_SECONDS", 60)
    gate = Gate(4)
    leave = asyncio.Event()
    inside = 0

    async def caller() -> None:
        nonlocal inside
        async with gate.place(1):
            inside += 1
            await leave.wait()

    callers = [asyncio.create_task(caller()) for _ in range(6)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert inside == 4
    with pytest.raises(OverloadedError):
        async with gate.place(1):
            pass
    leave.set()
    await asyncio.gather(*callers)
    assert inside == 6
    async with gate.place(1):
        pass


async def test_who_waits_in_vain_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.admission.WAIT_SECONDS", 0.01)
    gate = Gate(1)
    async with gate.place(1):
        with pytest.raises(OverloadedError):
            async with gate.place(1):
                pass
    async with gate.place(1):
        pass


async def test_who_leaves_while_waiting_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(1)
    async with gate.place(1):
        waiting = asyncio.create_task(gate.place(1).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with gate.place(1):
        pass


async def test_a_search_past_the_limit_is_429_and_told_when_to_come_back(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.api.admission.WAIT_SECONDS", 0.01)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> None:
        entered.set()
        await leave.wait()
        raise OverloadedError("only to end the test", retry_after=2.2)

    monkeypatch.setattr("service.api.search.search_collection", slow)
    async with serving(dsn, max_concurrent_searches=1) as app, client_of(app) as client:
        await new_collection(client, "docs")
        first = asyncio.create_task(_search(client))
        await entered.wait()
        refused = await _search(client)
        leave.set()
        ended = await first
    problem(refused, 429)
    assert refused.headers["retry-after"] == "1"
    assert ended.headers["retry-after"] == "3"


async def _search(client: httpx.AsyncClient) -> httpx.Response:
    return await client.post("/v1/collections/docs/search", json={"query": {"text": "a"}})


async def test_other_routes_are_not_held_up(app: Litestar, client: httpx.AsyncClient) -> None:
    gate: Gate = app.state.services.gate
    async with gate.place(1):
        assert (await client.get("/v1/collections")).status_code == 200


HEAVY, LIGHT = 1, 2


async def test_a_team_alone_may_hold_every_place() -> None:
    async with contextlib.AsyncExitStack() as held:
        gate = Gate(4)
        for _ in range(4):
            await held.enter_async_context(gate.place(HEAVY))
        assert not gate.busy


async def test_where_teams_share_none_holds_more_than_its_part() -> None:
    now = 0.0
    async with contextlib.AsyncExitStack() as held:
        gate = Gate(4, clock=lambda: now)
        async with gate.place(LIGHT):
            pass
        for _ in range(2):
            await held.enter_async_context(gate.place(HEAVY))
        with pytest.raises(OverloadedError):
            await held.enter_async_context(gate.place(HEAVY))
        await held.enter_async_context(gate.place(LIGHT))
        # The other one has gone, so the places are the team's again.
    now = ACTIVE_SECONDS + 1
    async with contextlib.AsyncExitStack() as held:
        for _ in range(4):
            await held.enter_async_context(gate.place(HEAVY))


async def test_a_full_gate_lets_another_team_in_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.admission.WAIT_SECONDS", 60)
    gate, leave, inside = Gate(4), asyncio.Event(), list[int]()

    async def caller(team: int) -> None:
        async with gate.place(team):
            inside.append(team)
            await leave.wait()

    heavy = [asyncio.create_task(caller(HEAVY)) for _ in range(6)]
    await asyncio.sleep(0)
    light = asyncio.create_task(caller(LIGHT))
    await asyncio.sleep(0)
    assert (inside, gate.refuses(HEAVY), gate.refuses(LIGHT)) == ([HEAVY] * 4, True, False)
    heavy[0].cancel()
    await asyncio.gather(heavy[0], return_exceptions=True)
    await asyncio.sleep(0)
    assert inside == [HEAVY] * 4 + [LIGHT]
    leave.set()
    await asyncio.gather(*heavy[1:], light)
    assert sorted(inside) == [HEAVY] * 6 + [LIGHT]


async def test_an_operator_sets_the_share() -> None:
    async with contextlib.AsyncExitStack() as held:
        gate = Gate(8, share=1)
        await held.enter_async_context(gate.place(HEAVY))
        await held.enter_async_context(gate.place(LIGHT))
        with pytest.raises(OverloadedError):
            await held.enter_async_context(gate.place(HEAVY))


async def test_a_team_that_fills_the_gate_keeps_no_other_out(dsn: str) -> None:
    async with serving(dsn, max_concurrent_searches=4) as app, client_of(app) as client:
        await client.post("/v1/teams", json={"name": "other"})
        await new_collection(client, "docs")
        gate: Gate = app.state.services.gate
        theirs = {**ROOT, "X-Team": "other"}
        body = {"name": "docs", "embedding": {"provider": "none", "dim": 3}}
        await client.post("/v1/collections", json=body, headers=theirs)
        async with contextlib.AsyncExitStack() as held:
            for _ in range(3):
                await held.enter_async_context(gate.place(HEAVY))
            # What is remembered of the keys is what a refusal at the door goes by.
            answers = [await _search(client) for _ in range(2)]
            query = {"query": {"text": "a"}}
            other = await client.post("/v1/collections/docs/search", json=query, headers=theirs)
            refused = await _search(client)
    assert [one.status_code for one in (*answers, other)] == [200] * 3
    problem(refused, 429)
    assert refused.headers["retry-after"] == "1"


async def test_a_team_that_asks_too_often_is_told_when_to_come_back(dsn: str) -> None:
    async with (
        serving(dsn, team_requests_per_second=0.001) as app,
        client_of(app) as client,
    ):
        await client.post("/v1/teams", json={"name": "other"})
        assert (await client.get("/v1/collections")).status_code == 200
        refused = await client.get("/v1/collections")
        assert "too many requests" in problem(refused, 429)["detail"]
        assert 900 < int(refused.headers["retry-after"]) <= 1000
        other = await client.get("/v1/collections", headers={"X-Team": "other"})
        assert other.status_code == 200
        assert (await client.get("/livez")).status_code == 200


async def test_a_team_waits_for_its_own_searches_longer_than_for_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.api.admission.WAIT_SECONDS", 0)
    monkeypatch.setattr("service.api.admission.SHARE_WAIT_SECONDS", 60)
    gate, leave = Gate(8, share=1), asyncio.Event()

    async def caller(team: int) -> None:
        async with gate.place(team):
            await leave.wait()

    async with gate.place(LIGHT):
        callers = [asyncio.create_task(caller(HEAVY)) for _ in range(3)]
        await asyncio.sleep(0)
        leave.set()
        await asyncio.gather(*callers)
