import asyncio

import httpx
import pytest
from litestar import Litestar
from support.api import client_of, new_collection, problem, serving

from service.api.admission import Gate
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
        async with gate.place():
            inside += 1
            await leave.wait()

    callers = [asyncio.create_task(caller()) for _ in range(6)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert inside == 4
    with pytest.raises(OverloadedError):
        async with gate.place():
            pass
    leave.set()
    await asyncio.gather(*callers)
    assert inside == 6
    async with gate.place():
        pass


async def test_who_waits_in_vain_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.admission.WAIT_SECONDS", 0.01)
    gate = Gate(1)
    async with gate.place():
        with pytest.raises(OverloadedError):
            async with gate.place():
                pass
    async with gate.place():
        pass


async def test_who_leaves_while_waiting_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(1)
    async with gate.place():
        waiting = asyncio.create_task(gate.place().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with gate.place():
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
    async with gate.place():
        assert (await client.get("/v1/collections")).status_code == 200
