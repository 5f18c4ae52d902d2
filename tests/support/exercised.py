"""Puts a service through all that is measured, with names and texts that must not leave it."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import asyncpg
import httpx
from support.api import ROOT, ROOT_KEY
from support.credentials import LOOPBACK, SECRET_KEY
from support.fake_embeddings import KEY, FakeVoyage
from support.fake_http import Call, refusal, running
from support.served import Served, served

from service.db.embedded import EmbeddedPostgres

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
COLLECTION, OUTSIDE, TEAM = "plantedcollection", "plantedoutside", "plantedteam"
DOCUMENT, TEXT, QUERY = "planteddocument", "plantedtext", "plantedquery"
PROVIDER = "plantedprovider"
PLANTED = (COLLECTION, OUTSIDE, TEAM, DOCUMENT, TEXT, QUERY, PROVIDER, ROOT_KEY, KEY, SECRET_KEY)
PRICE = 0.5
SETTINGS = {
    "allowed_base_urls": LOOPBACK,
    "secret_key": SECRET_KEY,
    "token_prices": f"voyage:embedding={PRICE}, voyage:rerank={PRICE}",
}
MOST_FAILURES = 10
QUESTION: dict[str, Any] = {"query": {"text": f"{QUERY} {TEXT}"}, "expand": {"neighbours": 1}}


class Exercised(NamedTuple):
    """A service that runs, and what it was asked."""

    service: Served
    client: httpx.AsyncClient
    answer: dict[str, Any]
    """To the search that has the trace `TRACE`."""
    provider_calls: list[Call]


@contextlib.asynccontextmanager
async def exercised(
    server: EmbeddedPostgres, template: str, name: str, **settings: str
) -> AsyncIterator[Exercised]:
    """A service on a new database `name`, put through all and still running."""
    connection = await asyncpg.connect(server.dsn())
    await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    await connection.close()
    voyage = FakeVoyage()
    with served(server.dsn(name), **SETTINGS, **settings) as service:
        async with (
            running(voyage),
            httpx.AsyncClient(base_url=service.url, headers=ROOT, timeout=60) as client,
        ):
            answer = await _exercise(client, voyage)
            yield Exercised(service, client, answer, voyage.calls)


async def _exercise(client: httpx.AsyncClient, voyage: FakeVoyage) -> dict[str, Any]:
    """Index and search, well and badly; the answer to the search that has the trace `TRACE`."""
    (await client.post("/v1/teams", json={"name": TEAM})).raise_for_status()
    client.headers["X-Team"] = TEAM
    body = {"name": PROVIDER, "kind": "voyage", "api_key": KEY, "base_url": voyage.url}
    (await client.post("/v1/providers", json=body)).raise_for_status()
    await _fill(client, COLLECTION)
    await _fill(
        client,
        OUTSIDE,
        embedding={"provider": PROVIDER, "model": "voyage-4"},
        rerank={"enabled": True, "provider": PROVIDER, "timeout_ms": 20_000},
    )
    traced = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=state"}
    answer = await _search(client, COLLECTION, QUESTION, headers=traced)
    for mode in ("text", "vector"):
        await _search(client, COLLECTION, QUESTION | {"mode": mode})
    assert not (await _search(client, OUTSIDE, QUESTION))["degraded"]
    voyage.always = refusal(500, {"detail": KEY})
    for _ in range(MOST_FAILURES + 1):
        degraded = (await _search(client, OUTSIDE, QUESTION))["degraded"]
    assert {"stage": "rerank", "reason": "circuit open"} in degraded
    await _fail(client)
    return answer


async def _fill(client: httpx.AsyncClient, name: str, **fields: Any) -> None:
    created = await client.post("/v1/collections", json={"name": name, **fields})
    assert created.status_code == 201, created.text
    documents = [{"doc_id": f"{DOCUMENT}-{n}", "text": f"{TEXT} number {n}"} for n in range(3)]
    ingested = await client.post(
        f"/v1/collections/{name}/documents", json={"documents": documents}, params={"wait": "true"}
    )
    assert ingested.json()["status"] == "done", ingested.text


async def _search(
    client: httpx.AsyncClient, name: str, body: dict[str, Any], **given: Any
) -> dict[str, Any]:
    found = await client.post(f"/v1/collections/{name}/search", json=body, **given)
    assert found.status_code == 200, found.text
    answer: dict[str, Any] = found.json()
    return answer


async def _fail(client: httpx.AsyncClient) -> None:
    """Requests that are refused, and documents that cannot be indexed."""
    path = f"/v1/collections/{COLLECTION}/search"
    for bad in ({"query": {"text": ""}}, QUESTION | {"mode": QUERY}, QUESTION | {QUERY: 1}):
        assert (await client.post(path, json=bad)).status_code == 400
    await client.post(f"/v1/collections/other{COLLECTION}/search", json=QUESTION)
    await client.get("/" + QUERY)
    empty = {"documents": [{"doc_id": DOCUMENT, "text": " "}]}
    await client.post(
        f"/v1/collections/{COLLECTION}/documents", json=empty, params={"wait": "true"}
    )
