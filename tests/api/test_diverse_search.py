"""`diversity` in a search: fewer repetitions, with groups, caps and missing vectors."""

import asyncio
from typing import Any

import httpx
import pytest
from litestar import Litestar
from support.api import pointers
from support.searching import chunk, document, filled, ids, search

# Three near copies of the best answer, and two others on different sides of it.
TWINS = [
    document("t1", chunk("a1", "apple one", [1, 0, 0]), chunk("a2", "apple two", [1, 0.01, 0])),
    document("t2", chunk("a3", "apple three", [1, 0.02, 0])),
    document("t3", chunk("b", "apple pear", [0.7, 0.7, 0])),
    document("t4", chunk("c", "apple plum", [0.6, 0, 0.8])),
]
QUERY: dict[str, Any] = {"query": {"vector": [1, 0, 0]}, "mode": "vector"}


@pytest.fixture
async def twins(client: httpx.AsyncClient) -> httpx.AsyncClient:
    await filled(client, "twins", TWINS)
    return client


async def test_near_copies_give_way(twins: httpx.AsyncClient) -> None:
    plain = await search(twins, "twins", **QUERY, k=3)
    alike = await search(twins, "twins", **QUERY, k=3, diversity={"lambda": 1})
    varied = await search(twins, "twins", **QUERY, k=3, diversity={"lambda": 0.2}, explain=True)
    assert ids(plain) == ids(alike) == ["a1", "a2", "a3"]
    assert ids(varied) == ["a1", "c", "b"]
    assert [hit["score"] for hit in varied["hits"]] == pytest.approx([1, 0.6, 0.707], abs=1e-3)
    assert [hit["explain"]["dense"]["rank"] for hit in varied["hits"]] == [1, 5, 4]
    facts = varied["stages"]["diversity"]
    assert (facts["status"], facts["candidates"], facts["without_vector"]) == ("ok", 5, 0)
    assert "diversity" not in plain["stages"]


async def test_a_choice_is_wider_than_the_answer_without_a_fetch_k(
    twins: httpx.AsyncClient,
) -> None:
    answer = await search(
        twins, "twins", **QUERY, k=2, fusion={"fetch_k": 1}, diversity={"lambda": 0.2}
    )
    assert ids(answer) == ["a1", "c"]


async def test_documents_differ_when_grouping(twins: httpx.AsyncClient) -> None:
    answer = await search(
        twins, "twins", **QUERY, k=2, group_by="document", diversity={"lambda": 0.2}
    )
    assert [(one["doc_id"], one["matched_chunk_ids"]) for one in answer["documents"]] == [
        ("t1", ["a1", "a2"]),
        ("t4", ["c"]),
    ]


async def test_the_cap_of_a_document_holds(twins: httpx.AsyncClient) -> None:
    answer = await search(
        twins, "twins", **QUERY, k=5, max_chunks_per_document=1, diversity={"lambda": 0.5}
    )
    assert sorted(ids(answer)) == ["a1", "a3", "b", "c"]


async def test_fused_ranks_are_those_before_the_choice(twins: httpx.AsyncClient) -> None:
    body = {"query": {"text": "apple", "vector": [1, 0, 0]}, "explain": True}
    plain = await search(twins, "twins", **body, k=5)
    ranks = {hit["id"]: hit["explain"]["fused"]["rank"] for hit in plain["hits"]}
    assert sorted(ranks.values()) == [1, 2, 3, 4, 5]
    varied = await search(twins, "twins", **body, k=3, diversity={"lambda": 0.2})
    for hit in varied["hits"]:
        assert hit["explain"]["fused"]["rank"] == ranks[hit["id"]]


async def test_without_vectors_nothing_changes_and_the_answer_says_so(
    client: httpx.AsyncClient,
) -> None:
    texts = ["apple", "apple pear", "apple pear plum"]
    made = [document(f"d{n}", chunk(f"c{n}", text)) for n, text in enumerate(texts)]
    await filled(client, "words", made, embedding={"provider": "none"})
    body = {"query": {"text": "apple"}, "mode": "text", "k": 2}
    plain = await search(client, "words", **body)
    varied = await search(client, "words", **body, diversity={"lambda": 0})
    assert ids(varied) == ids(plain) == ["c0", "c1"]
    assert varied["stages"]["diversity"]["without_vector"] == 3


async def test_an_answer_without_its_choice_is_degraded(
    app: Litestar, twins: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("service.search.pipeline.stored_vectors", late)
    answer = await search(twins, "twins", **QUERY, k=3, diversity={"lambda": 0.2}, timeout_ms=500)
    assert ids(answer) == ["a1", "a2", "a3"]
    assert answer["degraded"] == [{"stage": "diversity", "reason": "timeout"}]


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({}, "/diversity/lambda"),
        ({"lambda": 1.1}, "/diversity/lambda"),
        ({"lambda": -0.1}, "/diversity/lambda"),
        ({"lambda": "0.5"}, "/diversity/lambda"),
        ({"lambda": 0.5, "pool": 3}, "/diversity/pool"),
    ],
)
async def test_a_lambda_out_of_bounds_is_named(
    twins: httpx.AsyncClient, given: dict[str, Any], pointer: str
) -> None:
    response = await twins.post("/v1/collections/twins/search", json={**QUERY, "diversity": given})
    assert pointers(response) == [pointer]
