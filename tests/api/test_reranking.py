"""Reranking over HTTP: it improves the order, and whatever it does, never delays or breaks it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from litestar import Litestar
from support.api import ROOT, client_of, pointers, serving
from support.credentials import LOOPBACK, SECRET_KEY
from support.fake_embeddings import KEY, FakeCohere, FakeVoyage
from support.fake_http import (
    Answer,
    Cut,
    CutBody,
    Delay,
    Hang,
    Trouble,
    garbage,
    refusal,
    running,
)
from support.searching import chunk, document, filled, ids, search

MODELS = Path(__file__).parents[1] / "providers/data"
# BM25 prefers short texts; the fake reranker the share of the query's words.
TEXTS = ["key", "key key rotate", "rotate the key", "key lock", "every key is old", "new key"]
FUSED = {"query": {"text": "rotate the old key"}, "mode": "text", "rerank": {"enabled": False}}
ASKED = {"query": {"text": "rotate the old key"}, "mode": "text"}


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Litestar]:
    given = {"secret_key": SECRET_KEY, "allowed_base_urls": LOOPBACK, "max_concurrent_searches": 8}
    async with serving(dsn, **given) as app:
        await app.state.services.providers.outbound.open()
        yield app


@pytest.fixture
async def voyage() -> AsyncIterator[FakeVoyage]:
    fake = FakeVoyage()
    async with running(fake):
        yield fake


@pytest.fixture
async def client(app: Litestar, voyage: FakeVoyage) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        body = {"name": "ranks", "kind": "voyage", "api_key": KEY, "base_url": voyage.url}
        assert (await client.post("/v1/providers", json=body)).status_code == 201
        chunks = [chunk(str(at), text) for at, text in enumerate(TEXTS)]
        documents = [document(f"d{one['id']}", one) for one in chunks]
        rerank = {"enabled": True, "provider": "ranks", "timeout_ms": 2000}
        await filled(client, "docs", documents, language="english", rerank=rerank)
        yield client


def by_id(answer: dict[str, Any]) -> dict[str, float]:
    return {hit["id"]: hit["score"] for hit in answer["hits"]}


def scores(answer: dict[str, Any]) -> list[float | None]:
    return [hit.get("rerank_score") for hit in answer["hits"]]


async def test_hits_come_in_the_rerankers_order(
    client: httpx.AsyncClient, voyage: FakeVoyage
) -> None:
    before = ids(await search(client, "docs", **FUSED))
    answer = await search(client, "docs", **ASKED, explain=True)
    assert answer["degraded"] == []
    assert sorted(ids(answer)) == sorted(before)
    assert ids(answer) != before
    assert ids(answer)[0] == "2"
    given = scores(answer)
    assert all(isinstance(score, float) for score in given)
    assert given == sorted(given, key=lambda score: -(score or 0))
    assert answer["stages"]["rerank"]["status"] == "ok"
    assert answer["stages"]["rerank"]["candidates"] == len(before)
    first = answer["hits"][0]
    assert first["explain"]["rerank"] == {"rank": 1, "score": first["rerank_score"]}
    (call,) = voyage.calls
    assert call.path == "/rerank"
    assert call.body["model"] == "rerank-2.5"
    assert call.body["query"] == "rotate the old key"
    assert set(call.body["documents"]) <= set(TEXTS)
    fused = await search(client, "docs", **FUSED)
    assert by_id(answer) == by_id(fused)


async def test_only_the_best_candidates_are_read(
    client: httpx.AsyncClient, voyage: FakeVoyage
) -> None:
    before = ids(await search(client, "docs", **FUSED))
    answer = await search(client, "docs", **ASKED, rerank={"top_n": 2})
    assert len(voyage.calls[0].body["documents"]) == 2
    assert set(ids(answer)[:2]) == set(before[:2])
    assert ids(answer)[2:] == before[2:]
    assert scores(answer)[2:] == [None] * (len(before) - 2)


async def test_the_conversation_is_read_too(client: httpx.AsyncClient, voyage: FakeVoyage) -> None:
    await search(client, "docs", **ASKED, context="x" * 3000 + " the end")
    query = voyage.calls[0].body["query"]
    assert query.endswith(" the end\n\nrotate the old key")
    assert len(query) == 2000 + len("\n\nrotate the old key")


def ranking(*results: tuple[int, Any]) -> Answer:
    data = [{"index": index, "relevance_score": score} for index, score in results]
    return Answer(json.dumps({"data": data}).encode())


TROUBLES: list[tuple[Trouble, str]] = [
    (Hang(), "timeout"),
    (Delay(3), "timeout"),
    (refusal(500), "error"),
    (refusal(429, retry_after="30"), "error"),
    (refusal(401), "error"),
    (refusal(404), "error"),
    (Cut(), "error"),
    (CutBody(), "error"),
    (garbage(), "bad answer"),
    (garbage(b'{"data": "all"}', "application/json"), "bad answer"),
    (garbage(b"[]", "application/json"), "bad answer"),
    (garbage(b"\xff\xfe{}", "application/json"), "bad answer"),
    (ranking(), "bad answer"),
    (ranking((5, 0.9)), "bad answer"),
    (ranking(*((5, 0.9) for _ in range(6))), "bad answer"),
    (ranking((5, 0.9), (4, 0.8), (3, 0.7), (2, 0.6), (1, 0.5), (6, 0.4)), "bad answer"),
    (ranking((5, 0.9), (4, 0.8), (3, 0.7), (2, 0.6), (1, 0.5), (-1, 0.4)), "bad answer"),
    (ranking((5, float("nan")), (4, 0.8), (3, 0.7), (2, 0.6), (1, 0.5), (0, 0.4)), "bad answer"),
    (ranking((5, float("inf")), (4, 0.8), (3, 0.7), (2, 0.6), (1, 0.5), (0, 0.4)), "bad answer"),
    (ranking((5, "high"), (4, 0.8), (3, 0.7), (2, 0.6), (1, 0.5), (0, 0.4)), "bad answer"),
]


@pytest.mark.parametrize(("trouble", "reason"), TROUBLES)
async def test_whatever_goes_wrong_the_fused_order_stands_and_the_answer_says_so(
    client: httpx.AsyncClient, voyage: FakeVoyage, trouble: Trouble, reason: str
) -> None:
    fused = await search(client, "docs", **FUSED)
    voyage.troubles.append(trouble)
    given = {"rerank": {"timeout_ms": 300}, "min_score": {"rerank": 0.99}}
    response = await client.post("/v1/collections/docs/search", json=ASKED | given)
    assert response.status_code == 200
    answer = response.json()
    assert answer["degraded"] == [{"stage": "rerank", "reason": reason}]
    assert answer["stages"]["rerank"]["status"] == ("timeout" if reason == "timeout" else "error")
    assert answer["hits"] == fused["hits"]
    assert answer["abstained"] is False
    assert "rerank;dur=" in response.headers["server-timing"]
    patient = {"timeout_ms": 60_000, "rerank": {"timeout_ms": 30_000}}
    assert (await search(client, "docs", **ASKED | patient))["degraded"] == []


async def test_a_partial_answer_keeps_the_rest_below_in_fused_order(
    client: httpx.AsyncClient, voyage: FakeVoyage
) -> None:
    before = ids(await search(client, "docs", **FUSED))
    voyage.troubles.append(ranking((4, 0.9), (1, 0.5), (5, 0.1)))
    answer = await search(client, "docs", **ASKED)
    first = [before[4], before[1], before[5]]
    assert ids(answer) == [*first, *(one for one in before if one not in first)]
    assert scores(answer) == [0.9, 0.5, 0.1, None, None, None]
    assert answer["degraded"] == [{"stage": "rerank", "reason": "partial answer"}]


async def test_a_hanging_reranker_costs_no_more_than_the_deadline(
    client: httpx.AsyncClient, voyage: FakeVoyage
) -> None:
    fused = await search(client, "docs", **FUSED)
    voyage.always = Hang()
    started = time.perf_counter()
    answer = await search(client, "docs", **ASKED, rerank={"timeout_ms": 800}, timeout_ms=800)
    assert answer["took_ms"] < 800
    assert time.perf_counter() - started < 2
    assert answer["hits"] == fused["hits"]
    assert answer["degraded"] == [{"stage": "rerank", "reason": "timeout"}]
    async with asyncio.timeout(5):
        await voyage.abandoned.wait()


async def test_no_connection_is_held_while_the_reranker_is_asked(
    app: Litestar, client: httpx.AsyncClient, voyage: FakeVoyage
) -> None:
    voyage.always = Hang()
    slow = [asyncio.create_task(search(client, "docs", **ASKED)) for _ in range(8)]
    await voyage.busy_with(8)
    readers = app.state.services.database._readers
    assert readers.get_idle_size() == readers.get_size()
    assert all(answer["degraded"] for answer in await asyncio.gather(*slow))


async def test_ten_failures_open_the_circuit_and_the_next_search_does_not_ask(
    client: httpx.AsyncClient, voyage: FakeVoyage
) -> None:
    voyage.always = refusal(500)
    for _ in range(10):
        answer = await search(client, "docs", **ASKED)
        assert answer["degraded"] == [{"stage": "rerank", "reason": "error"}]
    voyage.always = Hang()
    answer = await search(client, "docs", **ASKED)
    assert answer["degraded"] == [{"stage": "rerank", "reason": "circuit open"}]
    assert len(voyage.calls) == 10
    assert len(answer["hits"]) == len(TEXTS)


async def test_a_threshold_can_leave_nothing_and_says_what_was_best(
    client: httpx.AsyncClient,
) -> None:
    answer = await search(client, "docs", **ASKED)
    best = answer["hits"][0]["rerank_score"]
    kept = await search(client, "docs", **ASKED, min_score={"rerank": best})
    assert ids(kept) == ids(answer)[:1]
    nothing = await search(client, "docs", **ASKED, min_score={"rerank": 2})
    assert nothing["hits"] == []
    assert nothing["abstained"] is True
    assert nothing["best_score"] == {"rerank": best}


async def test_a_diagnosis_names_the_reranker(client: httpx.AsyncClient) -> None:
    (fused,) = ids(await search(client, "docs", **FUSED, k=1))
    (answer,) = ids(await search(client, "docs", **ASKED, k=1))
    assert fused != answer
    for body, looked_for, reason in (
        ({**ASKED, "k": 1}, fused, "rerank"),
        ({**ASKED, "k": 1}, answer, "found"),
        ({**FUSED, "k": 1}, answer, "k"),
        ({**ASKED, "min_score": {"rerank": 2}}, answer, "rerank"),
    ):
        response = await client.post(
            "/v1/collections/docs/search/diagnose", json={**body, "id": looked_for}
        )
        assert response.json()["reason"] == reason, response.text


async def test_a_threshold_without_a_reranker_is_not_silent(client: httpx.AsyncClient) -> None:
    fused = await search(client, "docs", **FUSED)
    answer = await search(client, "docs", **FUSED, min_score={"rerank": 2})
    assert answer["hits"] == fused["hits"]
    assert answer["degraded"] == [{"stage": "rerank", "reason": "off"}]


async def test_documents_come_in_the_rerankers_order(client: httpx.AsyncClient) -> None:
    answer = await search(client, "docs", **ASKED)
    grouped = await search(client, "docs", **ASKED, group_by="document", k=3)
    assert [one["doc_id"] for one in grouped["documents"]] == [
        hit["doc_id"] for hit in answer["hits"][:3]
    ]


async def test_diversity_chooses_by_the_rerankers_scores(client: httpx.AsyncClient) -> None:
    plain = await search(client, "docs", **ASKED, k=2)
    diverse = await search(client, "docs", **ASKED, k=2, diversity={"lambda": 1})
    assert ids(diverse) == ids(plain)


@pytest.mark.parametrize(
    "change",
    [
        {"enabled": False},
        {"provider": None},
        {"provider": "cohere", "model": None},
    ],
)
async def test_what_is_missing_leaves_reranking_off_in_silence(
    client: httpx.AsyncClient, voyage: FakeVoyage, change: dict[str, Any]
) -> None:
    body = {"name": "cohere", "kind": "cohere", "api_key": KEY, "base_url": voyage.url}
    await client.post("/v1/providers", json=body)
    fused = await search(client, "docs", **FUSED)
    changed = await client.patch("/v1/collections/docs", json={"rerank": change})
    assert changed.json()["rerank"].items() >= change.items()
    answer = await search(client, "docs", **ASKED)
    assert answer["hits"] == fused["hits"]
    assert answer["degraded"] == []
    assert voyage.calls == []


async def test_a_request_may_switch_it_on(client: httpx.AsyncClient, voyage: FakeVoyage) -> None:
    await client.patch("/v1/collections/docs", json={"rerank": {"enabled": False, "top_n": 3}})
    answer = await search(client, "docs", **ASKED, rerank={"enabled": True})
    assert len(voyage.calls[0].body["documents"]) == 3
    assert answer["stages"]["rerank"]["ranked"] == 3


async def test_a_local_model_ranks_too(dsn: str) -> None:
    async with serving(dsn, reranker_dir=MODELS) as app, client_of(app) as client:
        chunks = [chunk(str(at), text) for at, text in enumerate(TEXTS)]
        rerank = {
            "enabled": True,
            "provider": "local",
            "model": "cross-encoder",
            "timeout_ms": 2000,
        }
        documents = [document(f"d{one['id']}", one) for one in chunks]
        await filled(client, "docs", documents, language="english", rerank=rerank)
        answer = await search(client, "docs", **ASKED)
        assert answer["degraded"] == []
        assert answer["hits"][0]["rerank_score"] == pytest.approx(0.7311, abs=1e-3)
        await client.patch("/v1/collections/docs", json={"rerank": {"model": "../docs"}})
        broken = await search(client, "docs", **ASKED)
        assert broken["degraded"] == [{"stage": "rerank", "reason": "error"}]
        assert len(broken["hits"]) == len(TEXTS)


async def test_cohere_ranks_too(client: httpx.AsyncClient) -> None:
    fake = FakeCohere()
    async with running(fake):
        body = {"name": "cohere", "kind": "cohere", "api_key": KEY, "base_url": fake.url}
        await client.post("/v1/providers", json=body)
        rerank = {"provider": "cohere", "model": "rerank-v3.5"}
        await client.patch("/v1/collections/docs", json={"rerank": rerank})
        answer = await search(client, "docs", **ASKED)
    assert answer["degraded"] == []
    assert ids(answer)[0] == "2"
    assert fake.calls[0].path == "/v2/rerank"
    assert fake.calls[0].body["top_n"] == len(TEXTS)


@pytest.mark.parametrize(
    ("rerank", "pointer"),
    [
        ({"provider": "unknown"}, "/rerank/provider"),
        ({"provider": "chat"}, "/rerank/provider"),
        ({"top_n": 0}, "/rerank/top_n"),
        ({"top_n": 1001}, "/rerank/top_n"),
        ({"timeout_ms": 0}, "/rerank/timeout_ms"),
        ({"other": 1}, "/rerank/other"),
    ],
)
async def test_settings_are_checked(
    client: httpx.AsyncClient, rerank: dict[str, Any], pointer: str
) -> None:
    await client.post("/v1/providers", json={"name": "chat", "kind": "anthropic", "api_key": KEY})
    changed = await client.patch("/v1/collections/docs", json={"rerank": rerank})
    made = await client.post("/v1/collections", json={"name": "c", "rerank": rerank})
    for refused in (changed, made):
        assert pointers(refused)[0] in (pointer, "/rerank")


async def test_another_teams_provider_is_not_used_even_if_a_row_says_so(
    client: httpx.AsyncClient, voyage: FakeVoyage, dsn: str
) -> None:
    await client.post("/v1/teams", json={"name": "others"})
    others = {**ROOT, "X-Team": "others"}
    body = {"name": "docs", "embedding": {"provider": "none"}}
    assert (await client.post("/v1/collections", json=body, headers=others)).status_code == 201
    await client.post(
        "/v1/collections/docs/documents",
        json={"documents": [document("d", chunk("1", "rotate the key"))]},
        params={"wait": "true"},
        headers=others,
    )
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "UPDATE braid.collections SET rerank_enabled = true, rerank_provider = 'ranks'"
    )
    by_name = await client.post("/v1/collections/docs/search", json=ASKED, headers=others)
    await connection.execute(
        "UPDATE braid.provider_credentials SET team_id = (SELECT max(id) FROM braid.teams)"
    )
    by_row = await client.post("/v1/collections/docs/search", json=ASKED, headers=others)
    await connection.close()
    for response in (by_name, by_row):
        assert response.json()["degraded"] == [{"stage": "rerank", "reason": "error"}]
        assert ids(response.json()) == ["1"]
    assert voyage.calls == []


async def test_several_collections_are_reranked_together(
    client: httpx.AsyncClient, voyage: FakeVoyage
) -> None:
    rerank = {"enabled": True, "provider": "ranks", "timeout_ms": 2000}
    more = [document("m", chunk("more", "how to rotate the old key"))]
    await filled(client, "more", more, language="english", rerank=rerank)
    body = {**ASKED, "collections": ["docs", "more"]}
    answer = (await client.post("/v1/search", json=body)).json()
    assert answer["hits"][0]["id"] == "more"
    assert len(voyage.calls[0].body["documents"]) == len(TEXTS) + 1
    await client.patch("/v1/collections/more", json={"rerank": {"top_n": 7}})
    apart = (await client.post("/v1/search", json=body)).json()
    assert len(voyage.calls) == 1
    assert apart["degraded"] == []
