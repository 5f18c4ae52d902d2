"""Too many searches, slow senders, idle connections and clients that leave, over real sockets."""

import asyncio
import contextlib
import json
import urllib.parse
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from litestar import Litestar
from support.api import ROOT, ROOT_KEY, client_of, new_collection, problem
from support.locks import locked_chunks, until_waiting
from support.searching import chunk, document, filled, ids
from support.served import Served, served

from service.api.admission import Gate

EVENTUALLY_SECONDS = 30
BODY = {"query": {"text": "green tea"}, "mode": "text", "timeout_ms": 60_000}


@pytest.fixture
async def running(dsn: str) -> AsyncIterator[Served]:
    with served(dsn) as running:
        async with httpx.AsyncClient(base_url=running.url, headers=ROOT) as client:
            await filled(client, "teas", [document("a", chunk("a-0", "green tea", [1, 0, 0]))])
        yield running


@pytest.fixture
def full(app: Litestar) -> Iterator[Gate]:
    """The gate of an app, with nobody let in any more and nobody to wait either."""
    gate: Gate = app.state.services.gate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gate, "busy", property(lambda _gate: True))
        patch.setattr(Gate, "refuses", lambda _gate, _team: True)
        yield gate


async def test_a_full_process_refuses_a_search_before_it_reads_anything(
    app: Litestar, full: Gate
) -> None:
    async with client_of(app) as client:
        await new_collection(client, "search")
        # By what is remembered of a key: to look it up would cost more than to search.
        for path in ("/v1/collections", "/v1/collections/search"):
            assert (await client.get(path)).status_code == 200
        for path in ("/v1/search", "/v1/collections/search/search"):
            refused = await client.post(path, content=b"nothing that could be parsed")
            body = problem(refused, 429)
            assert body["type"] == "urn:braid:problem:overloaded"
            assert refused.headers["retry-after"] == "1"
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/v1/collections/search")).status_code == 200


async def test_who_leaves_costs_nothing_more_and_slow_senders_hurt_nobody(
    running: Served, dsn: str
) -> None:
    async with locked_chunks(dsn):
        _, writer = await _connect(running, _request(json.dumps(BODY).encode()))
        await until_waiting(dsn, 1)
        writer.close()
        await until_waiting(dsn, 0)
    async with contextlib.AsyncExitStack() as stack:
        for request in [*[_request(b"{", length=1000)] * 50, *[b"GET /livez"] * 200]:
            _, writer = await _connect(running, request)
            stack.callback(writer.close)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=running.url, headers=ROOT, timeout=EVENTUALLY_SECONDS)
        )
        for _ in range(10):
            answer = await client.post("/v1/collections/teas/search", json=BODY)
            assert answer.status_code == 200, answer.text
            assert ids(answer.json()) == ["a-0"]
        assert (await client.get("/livez")).status_code == 200


async def _connect(running: Served, request: bytes) -> tuple[object, asyncio.StreamWriter]:
    address = urllib.parse.urlsplit(running.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(request)
    await writer.drain()
    return reader, writer


def _request(body: bytes, length: int | None = None) -> bytes:
    head = (
        "POST /v1/collections/teas/search HTTP/1.1\r\nHost: braid\r\n"
        f"X-API-Key: {ROOT_KEY}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return head.encode() + body
