"""Contextual headers over the API: chosen, refused, changed by a re-index, shown in answers."""

from collections.abc import AsyncIterator

import httpx
import pytest
from litestar import Litestar
from support.api import client_of, pointers, problem, serving
from support.credentials import LOOPBACK, SECRET_KEY
from support.fake_anthropic import FakeAnthropic
from support.fake_embeddings import KEY
from support.fake_http import running
from support.indexing import eventually

GUIDE = "# Keys\n\nEvery caller has one.\n\n## Rotation\n\nAsk for another one before it ends.\n"


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Litestar]:
    async with serving(dsn, secret_key=SECRET_KEY, allowed_base_urls=LOOPBACK) as app:
        yield app


@pytest.fixture
async def client(app: Litestar) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        yield client


async def register(client: httpx.AsyncClient, kind: str, url: str | None = None) -> None:
    body = {"name": kind, "kind": kind, "api_key": KEY, "base_url": url}
    response = await client.post("/v1/providers", json=body)
    assert response.status_code == 201, response.text


@pytest.mark.parametrize(
    ("contextual", "pointer"),
    [
        ({"enabled": True}, "/contextual/provider"),
        ({"enabled": True, "provider": "voyage"}, "/contextual/model"),
        ({"enabled": True, "provider": "nobody", "model": "m"}, "/contextual/provider"),
        ({"enabled": True, "provider": "voyage", "model": "m"}, "/contextual/provider"),
        ({"enabled": True, "mode": "guess"}, "/contextual/mode"),
        ({"enabled": True, "mode": "heading", "concurrency": 0}, "/contextual/concurrency"),
    ],
)
async def test_a_choice_that_cannot_work_is_refused(
    client: httpx.AsyncClient, contextual: dict[str, object], pointer: str
) -> None:
    await register(client, "voyage")
    body = {"name": "docs", "contextual": contextual}
    response = await client.post("/v1/collections", json=body)
    assert pointers(response) == [pointer]


async def test_a_header_of_a_model_is_the_context_of_a_hit(client: httpx.AsyncClient) -> None:
    fake = FakeAnthropic()
    fake.context = lambda _: "Zanzibar handbook."
    async with running(fake):
        await register(client, "anthropic", fake.url)
        contextual = {"enabled": True, "provider": "anthropic", "model": "claude-test"}
        created = await client.post(
            "/v1/collections", json={"name": "docs", "contextual": contextual}
        )
        assert created.json()["contextual"]["version"] >= 1
        posted = await client.post(
            "/v1/collections/docs/documents?wait=true",
            json={"documents": [{"doc_id": "a", "text": "Every caller has a key."}]},
        )
        assert posted.json()["usage"]["context_output_tokens"] == 3
        found = await client.post(
            "/v1/collections/docs/search", json={"query": {"text": "zanzibar"}, "mode": "text"}
        )
    (hit,) = found.json()["hits"]
    assert (hit["context"], hit["text"]) == ("Zanzibar handbook.", "Every caller has a key.")


async def test_headers_of_an_index_are_changed_by_a_reindex(client: httpx.AsyncClient) -> None:
    body = {"name": "docs", "chunking": {"size": 16, "overlap": 0}}
    assert (await client.post("/v1/collections", json=body)).status_code == 201
    documents = {"documents": [{"doc_id": "a.md", "title": "Guide", "text": GUIDE}]}
    await client.post("/v1/collections/docs/documents?wait=true", json=documents)
    change = {"contextual": {"enabled": True, "mode": "heading"}}
    refused = problem(await client.patch("/v1/collections/docs", json=change), 409)
    plan = refused["plan"]
    assert (plan["changes"], plan["model_headers"], plan["embedded_chunks"]) == (
        ["contextual"],
        0,
        0,
    )
    started = await client.post("/v1/collections/docs/reindex", json=change)
    job = f"/v1/collections/docs/jobs/{started.json()['job_id']}"

    async def is_done() -> bool:
        return (await client.get(job)).json()["status"] == "done"

    await eventually(is_done, 60)
    found = await client.post(
        "/v1/collections/docs/search", json={"query": {"text": "rotation ask"}, "mode": "text"}
    )
    assert found.json()["hits"][0]["context"] == "Guide > Keys"
    info = (await client.get("/v1/collections/docs")).json()["contextual"]
    assert (info["enabled"], info["mode"]) == (True, "heading")
    same = await client.patch("/v1/collections/docs", json=change)
    assert same.status_code == 200
