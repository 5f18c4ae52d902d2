"""Provider credentials over the API: registered, used, checked, never shown."""

import asyncio
import logging
from collections.abc import AsyncIterator

import asyncpg
import httpx
import pytest
from litestar import Litestar
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.api import ROOT, client_of, new_key, pointers, problem, serving
from support.credentials import LOOPBACK, SECRET_KEY
from support.dump import dump
from support.fake_anthropic import FakeAnthropic
from support.fake_embeddings import KEY, FakeCohere, FakeOpenAI, FakeVoyage
from support.fake_http import FakeServer, Hang, garbage, refusal, running
from support.searching import document, ids, search

from service.api import providers

EXAMPLE = "https://api.example.com/v1"


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Litestar]:
    allowed = f"{LOOPBACK}, {EXAMPLE}"
    async with serving(dsn, secret_key=SECRET_KEY, allowed_base_urls=allowed) as app:
        yield app


@pytest.fixture
async def client(app: Litestar) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        yield client


@pytest.fixture
async def voyage() -> AsyncIterator[FakeVoyage]:
    fake = FakeVoyage()
    async with running(fake):
        yield fake


async def register(client: httpx.AsyncClient, **fields: object) -> dict[str, object]:
    body = {"name": "mine", "kind": "voyage", "api_key": KEY, **fields}
    response = await client.post("/v1/providers", json=body)
    assert response.status_code == 201, response.text
    made: dict[str, object] = response.json()
    return made


async def test_a_key_is_stored_sealed_and_never_shown(client: httpx.AsyncClient, dsn: str) -> None:
    made = await register(client, base_url=EXAMPLE + "/")
    assert made | {"id": 0, "created_at": ""} == {
        "id": 0,
        "name": "mine",
        "kind": "voyage",
        "base_url": EXAMPLE,
        "has_key": True,
        "created_at": "",
    }
    listed = await client.get("/v1/providers")
    assert listed.json() == {"providers": [made], "total": 1}
    assert KEY not in listed.text
    connection = await asyncpg.connect(dsn)
    row = await connection.fetchrow("SELECT * FROM braid.provider_credentials")
    await connection.close()
    assert row is not None
    assert KEY.encode() not in bytes(row["sealed_secret"])
    assert KEY not in str(row)


async def test_a_name_is_taken_once_and_free_after_its_deletion(client: httpx.AsyncClient) -> None:
    made = await register(client)
    body = {"name": "mine", "kind": "cohere", "api_key": "other"}
    problem(await client.post("/v1/providers", json=body), 409)
    assert (await client.delete(f"/v1/providers/{made['id']}")).status_code == 204
    problem(await client.delete(f"/v1/providers/{made['id']}"), 404)
    assert (await client.get("/v1/providers")).json() == {"providers": [], "total": 0}
    assert (await client.post("/v1/providers", json=body)).status_code == 201


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"name": "local"}, "/name"),
        ({"name": "none"}, "/name"),
        ({"name": "a b"}, "/name"),
        ({"kind": "other"}, "/kind"),
        ({"api_key": None}, "/api_key"),
        ({"api_key": ""}, "/api_key"),
        ({"api_key": "two words"}, "/api_key"),
        ({"api_key": "line\nbreak"}, "/api_key"),
        ({"kind": "local"}, "/api_key"),
        ({"kind": "local", "api_key": None, "base_url": EXAMPLE}, "/base_url"),
        ({"base_url": ""}, "/base_url"),
        ({"base_url": "https://api.example.com"}, "/base_url"),
        ({"base_url": "https://api.example.com.evil.com/v1"}, "/base_url"),
        ({"base_url": "https://api.example.com@evil.com/v1"}, "/base_url"),
        ({"base_url": "https://api.example.com\\.evil.com/v1"}, "/base_url"),
        ({"base_url": "http://127.0.0.1\t:80/"}, "/base_url"),
        ({"base_url": "http://169.254.169.254/latest"}, "/base_url"),
    ],
)
async def test_what_cannot_be_registered_is_400(
    client: httpx.AsyncClient, fields: dict[str, object], pointer: str
) -> None:
    body = {"name": "mine", "kind": "voyage", "api_key": "a-key-to-hide", **fields}
    response = await client.post("/v1/providers", json=body)
    assert pointers(response) == [pointer]
    assert "a-key-to-hide" not in response.text


async def test_an_endpoint_of_ones_own_needs_no_key(client: httpx.AsyncClient) -> None:
    made = await register(client, kind="openai", api_key=None, base_url="http://127.0.0.1:11434/v1")
    assert made["has_key"] is False


async def test_without_a_key_to_seal_with_nothing_is_stored(dsn: str) -> None:
    async with serving(dsn) as app, client_of(app) as client:
        body = {"name": "mine", "kind": "voyage", "api_key": KEY}
        problem(await client.post("/v1/providers", json=body), 409)
        assert (await client.get("/v1/providers")).json()["total"] == 0


async def test_only_a_key_for_the_whole_team_manages_providers(client: httpx.AsyncClient) -> None:
    made = await register(client)
    for headers in (await new_key(client, "search", "index"), {"X-API-Key": "unknown"}):
        status = 401 if headers["X-API-Key"] == "unknown" else 403
        problem(await client.get("/v1/providers", headers=headers), status)
        problem(await client.post("/v1/providers", json={}, headers=headers), status)
        path = f"/v1/providers/{made['id']}"
        problem(await client.delete(path, headers=headers), status)
        problem(await client.post(path + "/check", headers=headers), status)


async def test_another_teams_provider_is_unknown(client: httpx.AsyncClient) -> None:
    made = await register(client)
    await client.post("/v1/teams", json={"name": "others"})
    others = {**ROOT, "X-Team": "others"}
    assert (await client.get("/v1/providers", headers=others)).json()["total"] == 0
    path = f"/v1/providers/{made['id']}"
    problem(await client.delete(path, headers=others), 404)
    problem(await client.post(path + "/check", headers=others), 404)
    body = {"name": "c", "embedding": {"provider": "mine", "model": "m", "dim": 8}}
    refused = await client.post("/v1/collections", json=body, headers=others)
    assert pointers(refused) == ["/embedding/provider"]


@pytest.mark.parametrize(
    ("kind", "fake"),
    [
        ("voyage", FakeVoyage()),
        ("openai", FakeOpenAI()),
        ("cohere", FakeCohere()),
        ("anthropic", FakeAnthropic()),
    ],
)
async def test_a_check_makes_a_call(client: httpx.AsyncClient, kind: str, fake: FakeServer) -> None:
    async with running(fake):
        made = await register(client, kind=kind, base_url=fake.url)
        path = f"/v1/providers/{made['id']}/check"
        checked = (await client.post(path)).json()
        assert (checked["ok"], checked["reason"]) == (True, None)
        assert len(fake.calls) == 1
        for trouble, reason in (
            (refusal(401), "the provider refuses the key"),
            (refusal(429, retry_after="7"), "the provider is busy"),
            (refusal(500), "the provider answers 500"),
            (refusal(302, location="http://169.254.169.254/"), "the provider answers 302"),
            (garbage(), "the provider's answer cannot be read"),
        ):
            fake.troubles.append(trouble)
            assert (await client.post(path)).json()["reason"] == reason
        with_model = await client.post(path, json={"model": "a/../b"})
        assert with_model.status_code == 200


async def test_a_check_that_hangs_ends(
    app: Litestar, client: httpx.AsyncClient, voyage: FakeVoyage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.state.services.providers.outbound.open()
    monkeypatch.setattr("service.providers.checking.CHECK_SECONDS", 0.1)
    monkeypatch.setattr(providers, "CHECK_SECONDS", 0.1)
    made = await register(client, base_url=voyage.url)
    voyage.always = Hang()
    checked = (await client.post(f"/v1/providers/{made['id']}/check")).json()
    assert checked["ok"] is False
    assert "did not answer" in checked["reason"]
    async with asyncio.timeout(5):
        await voyage.abandoned.wait()


async def test_a_collection_embeds_with_a_registered_provider(
    client: httpx.AsyncClient, voyage: FakeVoyage
) -> None:
    await register(client, base_url=voyage.url)
    embedding = {"provider": "mine", "model": "voyage-4"}
    made = await client.post("/v1/collections", json={"name": "c", "embedding": embedding})
    assert made.json()["embedding"] == {**embedding, "dim": 1024}
    documents = {"documents": [{"doc_id": "d", "text": "keys rotate in spring"}]}
    posted = await client.post(
        "/v1/collections/c/documents", json=documents, params={"wait": "true"}
    )
    assert posted.json()["status"] == "done", posted.text
    assert posted.json()["usage"]["embedding_tokens"] == 4
    found = await search(client, "c", query={"text": "rotating"}, mode="vector")
    assert ids(found) == ["d::0"]
    asked = [(call.body["input_type"], call.body["input"]) for call in voyage.calls]
    # Each side learns from one word what the model gives before it sends what costs.
    assert asked == [
        ("query", ["dimension"]),
        ("document", ["dimension"]),
        ("document", ["keys rotate in spring"]),
        ("query", ["rotating"]),
    ]


async def test_a_model_that_does_not_work_is_refused_at_once(
    client: httpx.AsyncClient, voyage: FakeVoyage
) -> None:
    await register(client, base_url=voyage.url)
    body = {"name": "c", "embedding": {"provider": "mine", "model": "wrong", "dim": 64}}
    voyage.troubles.append(refusal(404))
    assert pointers(await client.post("/v1/collections", json=body)) == ["/embedding"]
    voyage.troubles.append(refusal(503))
    assert (await client.post("/v1/collections", json=body)).status_code == 201
    voyage.troubles.append(refusal(503))
    unknown = {"name": "d", "embedding": {"provider": "mine", "model": "wrong"}}
    problem(await client.post("/v1/collections", json=unknown), 503)
    nameless = {"name": "d", "embedding": {"provider": "mine"}}
    assert pointers(await client.post("/v1/collections", json=nameless)) == ["/embedding/model"]


async def test_a_row_that_points_elsewhere_is_refused_when_it_is_used(
    client: httpx.AsyncClient, voyage: FakeVoyage, dsn: str
) -> None:
    await register(client, base_url=voyage.url)
    await client.post("/v1/teams", json={"name": "others"})
    others = {**ROOT, "X-Team": "others"}
    body = {"name": "c", "embedding": {"provider": "none", "dim": 1024}}
    await client.post("/v1/collections", json=body, headers=others)
    chunk = {"id": "1", "text": "words", "vector": [1.0] * 1024}
    await client.post(
        "/v1/collections/c/documents",
        json={"documents": [document("d", chunk)]},
        params={"wait": "true"},
        headers=others,
    )
    connection = await asyncpg.connect(dsn)
    await connection.execute("UPDATE braid.generations SET provider = 'mine', model = 'voyage-4'")
    asked = {"query": {"text": "words"}}
    path = "/v1/collections/c/search"
    by_name = (await client.post(path, json=asked, headers=others)).json()
    moved = "UPDATE braid.provider_credentials SET team_id = (SELECT max(id) FROM braid.teams)"
    await connection.execute(moved)
    by_row = (await client.post(path, json=asked, headers=others)).json()
    await connection.close()
    for answer in (by_name, by_row):
        assert answer["degraded"] == [{"stage": "embed", "reason": "error"}]
        assert [hit["id"] for hit in answer["hits"]] == ["1"]
    assert voyage.calls == []


async def test_an_address_that_is_no_longer_allowed_is_not_called(
    client: httpx.AsyncClient, voyage: FakeVoyage, dsn: str
) -> None:
    made = await register(client, base_url=voyage.url)
    async with (
        serving(dsn, secret_key=SECRET_KEY, allowed_base_urls=EXAMPLE) as app,
        client_of(app) as other,
    ):
        checked = (await other.post(f"/v1/providers/{made['id']}/check")).json()
    assert checked["reason"] == "the provider's address is not in BRAID_ALLOWED_BASE_URLS"
    assert voyage.calls == []


async def test_a_deleted_provider_is_forgotten_and_a_new_one_takes_its_place(
    client: httpx.AsyncClient, voyage: FakeVoyage
) -> None:
    made = await register(client, base_url=voyage.url)
    embedding = {"provider": "mine", "model": "voyage-4", "dim": 256}
    await client.post("/v1/collections", json={"name": "c", "embedding": embedding})
    asked = {"query": {"text": "words"}, "mode": "hybrid"}
    path = "/v1/collections/c/search"
    assert (await client.post(path, json=asked)).json()["degraded"] == []
    assert voyage.calls[-1].body["output_dimension"] == 256
    await client.delete(f"/v1/providers/{made['id']}")
    gone = (await client.post(path, json=asked)).json()
    assert gone["degraded"] == [{"stage": "embed", "reason": "error"}]
    await register(client, base_url=voyage.url)
    assert (await client.post(path, json=asked)).json()["degraded"] == []


async def test_a_key_appears_in_no_dump_and_no_trace(
    client: httpx.AsyncClient, voyage: FakeVoyage, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr("service.telemetry._tracer", tracing.get_tracer("test"))
    await register(client, base_url=voyage.url)
    embedding = {"provider": "mine", "model": "voyage-4"}
    rerank = {"enabled": True, "provider": "mine"}
    body = {"name": "c", "embedding": embedding, "rerank": rerank}
    assert (await client.post("/v1/collections", json=body)).status_code == 201
    documents = {"documents": [{"doc_id": "d", "text": "words"}]}
    await client.post("/v1/collections/c/documents", json=documents, params={"wait": "true"})
    voyage.always = refusal(401, {"detail": KEY})
    await client.post("/v1/collections/c/search", json={"query": {"text": "words"}})
    failed = {"documents": [{"doc_id": "e", "text": "others"}]}
    await client.post("/v1/collections/c/documents", json=failed, params={"wait": "true"})
    stored = await dump(dsn)
    assert "mine" in stored
    assert "the provider refuses the key" in stored
    for secret in (KEY, KEY.encode().hex(), SECRET_KEY):
        assert secret not in stored
    names = {span.name for span in spans.get_finished_spans()}
    assert {"braid.embed", "braid.ingest"} <= names
    assert not any(KEY in span.to_json() for span in spans.get_finished_spans())


async def test_a_key_appears_in_no_log_and_no_answer(
    client: httpx.AsyncClient,
    voyage: FakeVoyage,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    made = await register(client, base_url=voyage.url)
    echo = f"Incorrect API key provided: {KEY}"
    answers = []
    for trouble in (refusal(401, {"detail": echo}), refusal(500, {"error": {"code": KEY}})):
        voyage.always = trouble
        checked = await client.post(f"/v1/providers/{made['id']}/check")
        embedding = {"provider": "mine", "model": "m", "dim": 8}
        body = {"name": f"c{len(answers)}", "embedding": embedding}
        answers += [checked, await client.post("/v1/collections", json=body)]
    documents = {"documents": [{"doc_id": "d", "text": "words"}]}
    answers.append(await client.post("/v1/collections/c3/documents", json=documents))
    answers.append(await client.post("/v1/collections/c2/search", json={"query": {"text": "w"}}))
    captured = capsys.readouterr()
    for text in (*(answer.text for answer in answers), caplog.text, captured.out, captured.err):
        assert KEY not in text
