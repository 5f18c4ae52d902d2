"""`POST /v1/search`: several collections, one ranking, and each hit knows where it comes from."""

import asyncio
from typing import Any

import httpx
import pytest
from litestar import Litestar
from support.api import client_of, new_collection, new_key, pointers, problem, serving
from support.hashed_embedder import HashedEmbedder
from support.searching import chunk, document, fill, filled, search

from service.errors import ProviderError

WORDS = ["apple", "pear", "plum", "fig", "quince"]
SPLIT = {"reds": 0, "greens": 1, "blues": 2}


def made(number: int) -> dict[str, Any]:
    parts = [
        chunk(
            f"c{number:02}-{part}",
            " ".join(word for at, word in enumerate(WORDS) if (number + part) >> at & 1) or "none",
            [1 + number % 7, 1 + (number * part) % 5, number % 3],
            metadata={"even": number % 2 == 0},
        )
        for part in range(2)
    ]
    return document(f"d{number:02}", *parts, summary=f"summary of {number}")


DOCUMENTS = [made(number) for number in range(30)]


@pytest.fixture
async def split(client: httpx.AsyncClient) -> httpx.AsyncClient:
    """The same documents in one collection, and spread over three."""
    await filled(client, "whole", DOCUMENTS)
    for name, place in SPLIT.items():
        await filled(client, name, DOCUMENTS[place::3])
    return client


async def ask(client: httpx.AsyncClient, *names: str, **body: Any) -> dict[str, Any]:
    response = await client.post("/v1/search", json={"collections": list(names), **body})
    assert response.status_code == 200, response.text
    assert "total;dur=" in response.headers["server-timing"]
    answer: dict[str, Any] = response.json()
    return answer


def ranked(answer: dict[str, Any]) -> list[tuple[str, float]]:
    return [(hit["id"], pytest.approx(hit["score"], rel=1e-6)) for hit in answer["hits"]]


VECTOR: dict[str, Any] = {"query": {"vector": [3, 1, 1]}, "mode": "vector"}
HYBRID: dict[str, Any] = {"query": {"text": "apple fig", "vector": [3, 1, 1]}}


@pytest.mark.parametrize(
    "body",
    [
        {**VECTOR, "k": 12},
        {**VECTOR, "k": 60},
        {**VECTOR, "filter": {"even": True}, "k": 9},
        {**VECTOR, "max_chunks_per_document": 1, "k": 9},
        {**VECTOR, "scope": "both", "min_score": {"dense": 0.9}},
        {**VECTOR, "fusion": {"fetch_k": 3}, "k": 3},
        {**VECTOR, "diversity": {"lambda": 0.4}},
        {**VECTOR, "expand": {"neighbours": 1, "summary": True, "siblings_topk": 2}},
    ],
)
async def test_vectors_of_one_model_rank_as_if_they_were_in_one_collection(
    split: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    whole = await search(split, "whole", **body)
    parts = await ask(split, *SPLIT, **body)
    assert ranked(whole) == ranked(parts)
    assert whole["exhausted"] == parts["exhausted"]
    for one, other in zip(whole["hits"], parts["hits"], strict=True):
        assert SPLIT[other.pop("collection")] == int(other["doc_id"][1:]) % 3
        one.pop("score"), other.pop("score")
        assert one == other


async def test_documents_are_grouped_and_counted_over_all(split: httpx.AsyncClient) -> None:
    body = {**VECTOR, "group_by": "document", "k": 7, "max_chunks_per_document": 2}
    whole = await search(split, "whole", **body)
    parts = await ask(split, *SPLIT, **body)
    assert [one["doc_id"] for one in parts["documents"]] == [
        one["doc_id"] for one in whole["documents"]
    ]
    for one in parts["documents"]:
        assert {hit["collection"] for hit in one["chunks"]} == {one["collection"]}
        assert one["matched_chunk_ids"] == [hit["id"] for hit in one["chunks"]]


async def test_what_does_not_fit_into_a_merged_leg_is_asked_for_again(
    client: httpx.AsyncClient,
) -> None:
    near, middle, far = [1, 0, 0], [1, 0.2, 0], [1, 0.9, 0]
    for name, vector, count in (("a", near, 2), ("b", middle, 2), ("c", far, 1)):
        chunks = [chunk(f"{name}{part}", f"apple {name}", vector) for part in range(count)]
        await filled(client, name, [document(name, *chunks)])
    body = {**VECTOR, "query": {"vector": near}, "group_by": "document", "k": 3}
    answer = await ask(client, "a", "b", "c", **body, fusion={"fetch_k": 3})
    assert [one["doc_id"] for one in answer["documents"]] == ["a", "b", "c"]
    answer = await ask(client, "a", "b", "c", **{**body, "k": 4}, fusion={"fetch_k": 3})
    assert len(answer["documents"]) == 3
    assert answer["exhausted"]


async def test_the_same_document_id_in_two_collections_is_two_documents(
    client: httpx.AsyncClient,
) -> None:
    for name in ("one", "two"):
        await filled(client, name, [document("same", chunk("c", f"apple {name}", [1, 0, 0]))])
    answer = await ask(client, "two", "one", **VECTOR, group_by="document")
    found = [(one["collection"], one["chunks"][0]["text"]) for one in answer["documents"]]
    assert sorted(found) == [("one", "apple one"), ("two", "apple two")]


@pytest.mark.parametrize(
    "body",
    [
        {"query": {"text": "apple fig"}, "mode": "text", "k": 15},
        {"query": {"text": "quince"}, "mode": "text", "k": 60},
        {"query": {"text": "apple pear nothing"}, "mode": "text", "lexical": {"operator": "and"}},
        {"query": {"text": "summary 3"}, "mode": "text", "scope": "both"},
        {"query": {"text": "plum quince"}, "mode": "text", "filter": {"even": False}, "k": 9},
        {**HYBRID, "k": 15},
    ],
)
async def test_words_rank_as_if_they_were_in_one_collection(
    split: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    whole = await search(split, "whole", **body)
    parts = await ask(split, *SPLIT, **body)
    scores = [hit["score"] for hit in whole["hits"]]
    assert [hit["score"] for hit in parts["hits"]] == pytest.approx(scores, rel=2e-3)
    # Rows whose scores are all but the same may change places.
    near = {hit["id"]: round(hit["score"], 2) for hit in whole["hits"]}
    for hit in parts["hits"]:
        assert near.get(hit["id"], round(scores[-1], 2)) == pytest.approx(hit["score"], abs=0.02)


async def test_what_explains_a_hit_is_the_score_in_its_own_collection(
    client: httpx.AsyncClient,
) -> None:
    cooking = ["apple pie with cream", "pear tart with cream", "plum cake", "pie of plums"]
    computing = ["apple laptops crash", "printers crash", "a crash of the disk", "disk and cream"]
    for name, texts in (("cooking", cooking), ("computing", computing)):
        await filled(
            client, name, [document(f"{name}{n}", chunk("c", t)) for n, t in enumerate(texts)]
        )
    body = {"query": {"text": "apple pie cream"}, "mode": "text", "explain": True}
    answer = await ask(client, "cooking", "computing", **body)
    assert answer["hits"][0]["text"] == cooking[0]
    assert answer["stages"]["rescore"]["status"] == "ok"
    scores = [hit["score"] for hit in answer["hits"]]
    assert scores == sorted(scores, reverse=True)
    for name in ("cooking", "computing"):
        alone = await search(client, name, **body)
        own = {hit["id"] + hit["doc_id"]: hit for hit in alone["hits"]}
        for hit in answer["hits"]:
            if hit["collection"] == name:
                other = own[hit["id"] + hit["doc_id"]]
                assert hit["explain"]["lexical"]["score"] == other["score"]
                terms = hit["explain"]["lexical"]["terms"]
                assert terms == other["explain"]["lexical"]["terms"]
                assert sum(terms.values()) == pytest.approx(other["score"], rel=1e-5)
    ranks = [hit["explain"]["lexical"]["rank"] for hit in answer["hits"]]
    assert ranks == list(range(1, len(ranks) + 1))


async def test_collections_whose_words_are_prepared_differently_are_found_too(
    client: httpx.AsyncClient,
) -> None:
    for name, language in (("stems", "english"), ("plain", "simple")):
        made_of = [document(name, chunk("c", "rotating keys")), document("o", chunk("c", "a door"))]
        await filled(client, name, made_of, language=language)
    answer = await ask(client, "stems", "plain", query={"text": "rotating keys"}, mode="text")
    assert {hit["collection"] for hit in answer["hits"]} == {"stems", "plain"}
    answer = await ask(client, "stems", "plain", query={"text": "rotate key"}, mode="text")
    assert {hit["collection"] for hit in answer["hits"]} == {"stems"}


async def test_words_that_cannot_be_rescored_keep_their_scores(
    split: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("service.search.words.word_impacts", late)
    body = {"query": {"text": "apple fig"}, "mode": "text", "timeout_ms": 800}
    answer = await ask(split, *SPLIT, **body)
    assert len(answer["hits"]) == 10
    assert answer["degraded"] == [{"stage": "rescore", "reason": "timeout"}]


async def test_one_fusion_goes_over_all_collections(split: httpx.AsyncClient) -> None:
    fusion = {"weights": {"dense": 0.7, "lexical": 0.3}, "rrf_k": 60}
    answer = await ask(split, *SPLIT, **HYBRID, fusion=fusion, explain=True, k=20)
    assert answer["explain"]["fusion"]["method"] == "rrf"
    for hit in answer["hits"]:
        explained = hit["explain"]
        expected = sum(
            weight / (60 + explained[leg]["rank"])
            for leg, weight in fusion["weights"].items()
            if explained.get(leg)
        )
        assert hit["score"] == pytest.approx(expected)
    for leg in ("dense", "lexical"):
        ranks = [hit["explain"][leg]["rank"] for hit in answer["hits"] if hit["explain"].get(leg)]
        assert len(ranks) == len(set(ranks))


async def test_one_collection_answers_as_it_does_alone(split: httpx.AsyncClient) -> None:
    alone = await search(split, "reds", **HYBRID, explain=True)
    named = await ask(split, "reds", **HYBRID, explain=True)
    assert ranked(alone) == ranked(named)
    assert alone["explain"] == named["explain"]
    assert {hit["collection"] for hit in named["hits"]} == {"reds"}


async def test_each_model_embeds_the_query_once(app: Litestar, client: httpx.AsyncClient) -> None:
    embedder = await app.state.services.embedders.find("local", "multilingual-e5-small", 64)
    assert isinstance(embedder, HashedEmbedder)
    for name in ("one", "two", "three"):
        await new_collection(client, name, embedding={"provider": "local"})
        await fill(client, name, [{"doc_id": name, "text": f"an apple of {name}"}])
    embedder.queries.clear()
    answer = await ask(client, "one", "two", "three", query={"text": "apple"})
    assert len(answer["hits"]) == 3
    assert embedder.queries == ["apple"]
    assert answer["degraded"] == []
    assert set(answer["collections"]) == {"one", "two", "three"}
    for part in answer["collections"].values():
        assert {"embed", "dense", "lexical"} <= set(part["stages"])
        assert part["degraded"] == []
    assert answer["stages"]["dense"]["candidates"] == 3

    embedder.fail_with = ProviderError("down")
    answer = await ask(client, "one", "two", query={"text": "apple"})
    assert sorted(hit["collection"] for hit in answer["hits"]) == ["one", "two"]
    assert answer["degraded"] == [
        {"stage": "embed", "reason": "error", "collection": name} for name in ("one", "two")
    ]
    response = await client.post(
        "/v1/search",
        json={"collections": ["one", "two"], "query": {"text": "apple"}, "mode": "vector"},
    )
    problem(response, 503)


async def test_a_collection_that_cannot_answer_a_part_degrades_only_itself(
    client: httpx.AsyncClient,
) -> None:
    await new_collection(client, "model", embedding={"provider": "local"})
    await fill(client, "model", [{"doc_id": "m", "text": "an apple"}])
    await filled(
        client,
        "words",
        [document("w", chunk("w", "an apple too"))],
        embedding={"provider": "none"},
    )
    answer = await ask(client, "model", "words", query={"text": "apple"})
    assert {hit["collection"] for hit in answer["hits"]} == {"model", "words"}
    assert answer["degraded"] == [
        {"stage": "embed", "reason": "no embedder", "collection": "words"}
    ]
    assert answer["collections"]["model"]["degraded"] == []


async def test_vectors_of_different_models_are_fused_and_told_apart(
    client: httpx.AsyncClient,
) -> None:
    await new_collection(client, "small", embedding={"provider": "local"})
    await fill(client, "small", [{"doc_id": f"s{n}", "text": f"apple {n}"} for n in range(4)])
    await new_collection(
        client, "other", embedding={"provider": "local", "model": "multilingual-e5-small"}
    )
    await fill(client, "other", [{"doc_id": f"o{n}", "text": f"apple {n}"} for n in range(4)])
    answer = await ask(
        client, "small", "other", query={"text": "apple 2"}, diversity={"lambda": 0.5}, k=8
    )
    assert len(answer["hits"]) == 8
    assert answer["stages"]["diversity"]["without_vector"] == 0


async def test_what_all_collections_set_alike_is_the_default(client: httpx.AsyncClient) -> None:
    rrf = {"mode": "text", "method": "rrf", "rrf_k": 5}
    for name, settings in (("a", rrf), ("b", rrf), ("c", {"mode": "hybrid"})):
        made_of = [document("d", chunk("c", "an apple", [1, 0, 0]))]
        await filled(client, name, made_of, search=settings)
    body = {"query": {"text": "apple"}}
    assert (await ask(client, "a", "b", **body))["mode"] == "text"
    assert (await ask(client, "a", "c", **body))["mode"] == "hybrid"
    hybrid = {**HYBRID, "mode": "hybrid", "explain": True}
    explained = (await ask(client, "a", "b", **hybrid))["explain"]["fusion"]
    assert (explained["method"], explained["rrf_k"]) == ("rrf", 5)
    explained = (await ask(client, "a", "c", **hybrid))["explain"]["fusion"]
    assert explained["method"] == "dbsf"
    assert explained["reason"].startswith("auto")


async def test_more_collections_than_connections(dsn: str) -> None:
    async with serving(dsn, db_pool_size=3) as app, client_of(app) as client:
        names = [f"n{number}" for number in range(12)]
        for number, name in enumerate(names):
            await filled(client, name, [made(number)])
        answer = await ask(client, *names, **HYBRID, k=100)
        assert answer["degraded"] == []
        assert {hit["collection"] for hit in answer["hits"]} == set(names)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({**VECTOR, "collections": []}, "/collections"),
        ({**VECTOR}, "/collections"),
        ({**VECTOR, "collections": "reds"}, "/collections"),
        ({**VECTOR, "collections": ["reds", "reds"]}, "/collections/1"),
        ({**VECTOR, "collections": ["reds", "a b"]}, "/collections/1"),
        ({**VECTOR, "collections": [f"n{n}" for n in range(21)]}, "/collections"),
        ({"query": {"vector": [1, 0]}, "mode": "vector", "collections": ["reds"]}, "/query/vector"),
        ({**VECTOR, "collections": ["reds"], "doc_id": "d"}, "/doc_id"),
    ],
)
async def test_a_bad_request_is_named(
    split: httpx.AsyncClient, body: dict[str, Any], pointer: str
) -> None:
    assert pointers(await split.post("/v1/search", json=body)) == [pointer]


async def test_a_collection_that_is_unknown_or_not_yours_is_404_and_named(
    split: httpx.AsyncClient,
) -> None:
    key = await new_key(split, "search", collections=["reds", "greens"])
    allowed = {**VECTOR, "collections": ["reds", "greens"]}
    answer = await split.post("/v1/search", json=allowed, headers=key)
    assert answer.status_code == 200
    refusals = []
    for name in ("blues", "none"):
        body = {**VECTOR, "collections": ["reds", name]}
        refusals.append(problem(await split.post("/v1/search", json=body, headers=key), 404))
    assert refusals[0] == refusals[1]
    assert [one["pointer"] for one in refusals[0]["errors"]] == ["/collections/1"]
