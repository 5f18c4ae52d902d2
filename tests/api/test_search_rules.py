"""The rules of search: modes, fusion, pools, counting, filters, text queries, degradation."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from litestar import Litestar
from support.api import client_of, pointers, problem, serving
from support.hashed_embedder import HashedEmbedder
from support.searching import chunk, document, fill, filled, ids, search

from service.errors import ProviderError

FRUIT = [
    document("d1", chunk("a", "red apple pie", [1, 0, 0], metadata={"kind": "pie"})),
    document("d2", chunk("b", "green apple", [0.8, 0.6, 0], metadata={"kind": "raw"})),
    document("d3", chunk("c", "yellow banana", [0, 1, 0], metadata={"kind": "raw"})),
    document("d4", chunk("d", "grape juice", [0, 0, 1])),
]


@pytest.fixture
async def fruit(client: httpx.AsyncClient) -> httpx.AsyncClient:
    await filled(client, "fruit", FRUIT)
    return client


async def test_vector_mode_scores_are_exact_cosine(fruit: httpx.AsyncClient) -> None:
    answer = await search(fruit, "fruit", query={"vector": [1, 0, 0]}, mode="vector")
    assert ids(answer) == ["a", "b", "c", "d"]
    scores = [hit["score"] for hit in answer["hits"]]
    assert scores == pytest.approx([1, 0.8, 0, 0], abs=1e-3)
    assert answer["mode"] == "vector"
    assert set(answer["stages"]) == {"dense", "hydrate"}


async def test_text_mode_scores_are_bm25(fruit: httpx.AsyncClient) -> None:
    answer = await search(fruit, "fruit", query={"text": "apple"}, mode="text")
    assert ids(answer) == ["b", "a"]  # the shorter text first
    average = 9 / 4
    idf = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))
    expected = [idf * 2.2 / (1 + 1.2 * (1 - 0.75 + 0.75 * length / average)) for length in (2, 3)]
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx(expected, rel=1e-3)


async def test_hybrid_is_weighted_rrf_when_told_so(fruit: httpx.AsyncClient) -> None:
    answer = await search(
        fruit,
        "fruit",
        query={"text": "apple", "vector": [0, 1, 0]},
        fusion={"weights": {"dense": 0.7, "lexical": 0.3}},
        explain=True,
    )
    # dense: c, b, then a and d at 0 (the smaller id first); lexical: b, a
    expected = {
        "c": 0.7 / 61,
        "b": 0.7 / 62 + 0.3 / 61,
        "a": 0.7 / 63 + 0.3 / 62,
        "d": 0.7 / 64,
    }
    assert {hit["id"]: hit["score"] for hit in answer["hits"]} == pytest.approx(expected)
    assert ids(answer) == sorted(expected, key=lambda one: -expected[one])
    best = answer["hits"][0]["explain"]
    assert best["fused"] == {"rank": 1, "score": pytest.approx(expected["b"])}
    assert best["dense"]["rank"] == 2
    assert best["lexical"]["contribution"] == pytest.approx(0.3 / 61)
    assert best["lexical"]["terms"]["apple"] == pytest.approx(best["lexical"]["score"], rel=1e-3)
    assert answer["explain"]["fusion"]["method"] == "rrf"
    assert answer["explain"]["fusion"]["rrf_k"] == 60


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"query": {}, "mode": "vector"}, "/query"),
        ({"query": {"text": "x", "vector": [1, 0, 0]}, "mode": "vector"}, "/query"),
        ({"query": {"vector": [1, 0, 0]}, "mode": "hybrid"}, "/query/text"),
        ({"query": {"text": " \n\u0000 "}}, "/query/text"),
        ({"query": {"text": "x", "vector": [1, 0, 0]}, "mode": "text"}, "/query/vector"),
        ({"query": {"text": "x", "vector": [1, 0]}}, "/query/vector"),
        ({"query": {"vector": [0, 0, 0]}, "mode": "vector"}, "/query/vector"),
        ({"query": {"vector": [1e-9, 0, 0]}, "mode": "vector"}, "/query/vector"),
        ({"query": {"vector": [1e6, 0, 0]}, "mode": "vector"}, "/query/vector"),
        ({"query": {"text": "x"}, "k": 0}, "/k"),
        ({"query": {"text": "x"}, "k": 1001}, "/k"),
        ({"query": {"text": "x"}, "k": "9"}, "/k"),
        ({"query": {"text": "x"}, "fusion": {"rrf_k": 0}}, "/fusion/rrf_k"),
        ({"query": {"text": "x"}, "fusion": {"fetch_k": 1001}}, "/fusion/fetch_k"),
        (
            {"query": {"text": "x"}, "fusion": {"weights": {"dense": 0, "lexical": 0}}},
            "/fusion/weights",
        ),
        (
            {"query": {"text": "x"}, "fusion": {"weights": {"dense": 1.1, "lexical": 0}}},
            "/fusion/weights/dense",
        ),
        ({"query": {"text": "x"}, "min_score": {"fused": 0.1}}, "/min_score/fused"),
        ({"query": {"text": "x"}, "filter": {"a": {"in": []}}}, "/filter/a/in"),
        ({"query": {"text": "x"}, "timeout_ms": 0}, "/timeout_ms"),
        ({"query": {"text": "x"}, "tpyo": 1}, "/tpyo"),
        ({"query": {"text": "x"}, "mode": "text", "min_score": {"dense": 1}}, "/min_score/dense"),
        (
            {"query": {"vector": [1, 0, 0]}, "mode": "vector", "min_score": {"lexical": 1}},
            "/min_score/lexical",
        ),
    ],
)
async def test_bad_input_is_refused_by_name(
    fruit: httpx.AsyncClient, body: dict[str, Any], pointer: str
) -> None:
    response = await fruit.post("/v1/collections/fruit/search", json=body)
    assert pointer in pointers(response)


async def test_k_is_filled_under_a_filter(fruit: httpx.AsyncClient) -> None:
    answer = await search(
        fruit, "fruit", query={"vector": [1, 0, 0]}, mode="vector", k=2, filter={"kind": "raw"}
    )
    assert ids(answer) == ["b", "c"]
    assert not answer["exhausted"]
    answer = await search(
        fruit, "fruit", query={"vector": [1, 0, 0]}, mode="vector", filter={"kind": {"ne": "raw"}}
    )
    assert ids(answer) == ["a", "d"]  # a missing key matches a complement
    assert answer["exhausted"]


async def test_one_long_document_does_not_crowd_out_nine_short_ones(
    client: httpx.AsyncClient,
) -> None:
    long = document("long", *(chunk(f"l{n:03}", f"apple apple {n}", [1, 0, 0]) for n in range(120)))
    short = [
        document(f"s{n}", chunk(f"s{n}", f"one apple here number {n}", [0.9, 0.4, 0]))
        for n in range(9)
    ]
    await filled(client, "crowd", [long, *short])
    for mode, query in (
        ("text", {"text": "apple"}),
        ("vector", {"vector": [1, 0, 0]}),
        ("hybrid", {"text": "apple", "vector": [1, 0, 0]}),
    ):
        answer = await search(client, "crowd", query=query, mode=mode, k=10, group_by="document")
        assert len(answer["documents"]) == 10, mode
        first = answer["documents"][0]
        assert first["doc_id"] == "long"
        assert len(first["chunks"]) <= 20
        positions = [hit["position"] for hit in first["chunks"]]
        assert positions == sorted(positions)
        assert first["matched_chunk_ids"] == [hit["id"] for hit in first["chunks"]]
        assert not answer["exhausted"]


async def test_a_pool_is_refilled_until_there_are_k_documents(client: httpx.AsyncClient) -> None:
    documents = [
        document(
            f"d{n:02}", *(chunk(f"{n:02}-{m:02}", "apple", [1, n / 100, 0]) for m in range(20))
        )
        for n in range(12)
    ]
    await filled(client, "wide", documents)
    answer = await search(
        client, "wide", query={"vector": [1, 0, 0]}, mode="vector", k=12, group_by="document"
    )
    assert [one["doc_id"] for one in answer["documents"]] == [f"d{n:02}" for n in range(12)]


async def test_max_chunks_per_document_applies_to_chunks_too(fruit: httpx.AsyncClient) -> None:
    await fill(
        fruit,
        "fruit",
        [document("d1", *(chunk(f"a{n}", "red apple pie", [1, 0, 0]) for n in range(50)))],
    )
    answer = await search(
        fruit,
        "fruit",
        query={"vector": [1, 0, 0]},
        mode="vector",
        k=3,
        max_chunks_per_document=1,
    )
    assert [hit["doc_id"] for hit in answer["hits"]] == ["d1", "d2", "d3"]


async def test_scope_chooses_chunks_summaries_or_both(client: httpx.AsyncClient) -> None:
    await filled(
        client,
        "notes",
        [document("n1", chunk("n1", "apple harvest"), summary="apple in short")],
        embedding={"provider": "none"},
    )
    found = {
        scope: [
            (hit["type"], hit["id"])
            for hit in (
                await search(client, "notes", query={"text": "apple"}, mode="text", scope=scope)
            )["hits"]
        ]
        for scope in ("chunks", "summaries", "both")
    }
    assert found["chunks"] == [("chunk", "n1")]
    assert found["summaries"] == [("summary", "n1")]
    assert sorted(found["both"]) == [("chunk", "n1"), ("summary", "n1")]


async def test_expansion_adds_siblings_neighbours_and_summary(client: httpx.AsyncClient) -> None:
    chunks = [chunk(f"p{n}", f"part {n}", [1, n / 10, 0]) for n in range(5)]
    await filled(client, "book", [document("b", *chunks, summary="the book")])
    answer = await search(
        client,
        "book",
        query={"vector": [1, 0.2, 0]},
        mode="vector",
        k=1,
        expand={"siblings_topk": 2, "neighbours": 1, "summary": True},
    )
    expansion = answer["hits"][0]["expansion"]
    assert ids(answer) == ["p2"]
    assert [one["id"] for one in expansion["neighbours"]] == ["p1", "p3"]
    assert sorted(one["id"] for one in expansion["siblings"]) == ["p1", "p3"]
    assert expansion["summary"]["text"] == "the book"
    answer = await search(
        client,
        "book",
        query={"vector": [1, 0, 0]},
        mode="vector",
        k=1,
        expand={"siblings_all": True},
    )
    siblings = answer["hits"][0]["expansion"]["siblings"]
    assert [one["id"] for one in siblings] == ["p1", "p2", "p3", "p4"]


async def test_siblings_fit_the_words_of_a_query_without_a_vector(
    client: httpx.AsyncClient,
) -> None:
    chunks = [chunk(f"k{n}", f"filler {n}") for n in range(4)]
    chunks += [chunk("k4", "apple pear"), chunk("k5", "apple pear plum")]
    await filled(
        client,
        "kin",
        [document("d", *chunks, summary="apple pear in short")],
        embedding={"provider": "none"},
    )
    answer = await search(
        client,
        "kin",
        query={"text": "apple pear"},
        mode="text",
        scope="both",
        expand={"siblings_topk": 1, "neighbours": 1},
    )
    hits = {hit["id"]: hit["expansion"] for hit in answer["hits"]}
    assert [one["id"] for one in hits["k4"]["siblings"]] == ["k5"]
    assert [one["id"] for one in hits["k4"]["neighbours"]] == ["k3", "k5"]
    assert hits["d"]["neighbours"] == []  # a summary stands beside the chunks


async def test_an_answer_under_every_threshold_abstains(fruit: httpx.AsyncClient) -> None:
    answer = await search(
        fruit,
        "fruit",
        query={"vector": [0.6, 0, 0.8]},
        mode="vector",
        min_score={"dense": 0.95},
    )
    assert answer["hits"] == []
    assert answer["abstained"]
    assert answer["best_score"] == {"dense": pytest.approx(0.8, abs=1e-3)}
    nothing = await search(
        fruit, "fruit", query={"text": "unheard"}, mode="text", min_score={"lexical": 0.1}
    )
    assert not nothing["abstained"]  # no threshold took anything away
    kept = await search(
        fruit, "fruit", query={"vector": [1, 0, 0]}, mode="vector", min_score={"dense": 0.79}
    )
    assert ids(kept) == ["a", "b"]
    assert not kept["abstained"]


@pytest.mark.parametrize(
    "text",
    [
        "a:b:*",
        "'\":*",
        ")(",
        "&",
        "!",
        "\\",
        "lodash:4.17.21",
        "John <j@x.com>",
        "x" * 10_000,
        "word " * 2_000,
        "🙂 🙃",
        "nul\u0000inside",
        "' OR 1=1 --",
        "<-> <2> | & !",
    ],
)
@pytest.mark.parametrize("operator", ["or", "and", "websearch"])
async def test_no_text_ever_causes_an_error(
    fruit: httpx.AsyncClient, text: str, operator: str
) -> None:
    response = await fruit.post(
        "/v1/collections/fruit/search",
        json={"query": {"text": text}, "mode": "text", "lexical": {"operator": operator}},
    )
    assert response.status_code == 200, response.text


async def test_a_lone_surrogate_is_bad_input(fruit: httpx.AsyncClient) -> None:
    response = await fruit.post(
        "/v1/collections/fruit/search",
        content=b'{"query": {"text": "\\ud800"}, "mode": "text"}',
        headers={"Content-Type": "application/json"},
    )
    problem(response, 400)


async def test_operators_decide_how_words_combine(client: httpx.AsyncClient) -> None:
    texts = {
        "both": "rotate the key now",
        "key": "a key alone",
        "rotate": "rotate a picture",
        "apart": "key to rotate",
    }
    await filled(
        client,
        "words",
        [document(name, chunk(name, text)) for name, text in texts.items()],
        embedding={"provider": "none"},
    )

    async def found(text: str, operator: str) -> set[str]:
        answer = await search(
            client, "words", query={"text": text}, mode="text", lexical={"operator": operator}
        )
        return set(ids(answer))

    assert await found("rotate key", "or") == {"both", "key", "rotate", "apart"}
    assert await found("rotate key", "and") == {"both", "apart"}
    assert await found("rotate-the-key", "and") == {"both"}
    assert await found('"rotate the key"', "websearch") == {"both"}
    assert await found("rotate -key", "websearch") == {"rotate"}
    assert await found("picture or alone", "websearch") == {"rotate", "key"}
    assert await found('"rotate -key', "or") == {"both", "key", "rotate", "apart"}


async def test_a_query_of_stop_words_finds_who_says_exactly_that(
    client: httpx.AsyncClient,
) -> None:
    await filled(
        client,
        "bands",
        [
            document("who", chunk("who", "My favourite band is The Who.")),
            document("hamlet", chunk("hamlet", "To be, or not to be: that is the question.")),
            document("noise", chunk("noise", "The band plays to the crowd, not for it.")),
        ],
        embedding={"provider": "none"},
        language="english",
    )
    for text, expected in (("the who", "who"), ("to be or not to be", "hamlet")):
        answer = await search(client, "bands", query={"text": text}, mode="text")
        assert ids(answer)[0] == expected


async def test_highlights_are_offsets_and_marked_fragments(client: httpx.AsyncClient) -> None:
    texts = {
        "plain": "Keys were rotated (twice) by rotation jobs; see getUserById() and E-4012.",
        "zh": "如何部署新的应用程序？请先阅读部署指南。",  # noqa: RUF001
    }
    await filled(
        client,
        "marked",
        [document(name, chunk(name, text)) for name, text in texts.items()],
        embedding={"provider": "none"},
        language="english",
    )

    async def marked(asked: str, name: str) -> list[str]:
        answer = await search(client, "marked", query={"text": asked}, mode="text", highlight=True)
        (hit,) = [hit for hit in answer["hits"] if hit["id"] == name]
        for fragment in hit["highlight"]["fragments"]:
            assert fragment.replace("<em>", "").replace("</em>", "") in texts[name]
        return [texts[name][start:end] for start, end in hit["highlight"]["spans"]]

    assert await marked("rotating a key", "plain") == ["Keys", "rotated", "rotation"]
    assert await marked("E-4012", "plain") == ["E-4012"]
    assert await marked("user by id", "plain") == ["getUserById"]
    assert await marked("部署", "zh") == ["部署", "部署"]
    unmarked = await search(client, "marked", query={"text": "key"}, mode="text")
    assert "highlight" not in unmarked["hits"][0]


async def test_stop_words_in_a_websearch_demand_nothing(client: httpx.AsyncClient) -> None:
    text = "How do I rotate my API key without downtime? Use the overlap."
    await filled(
        client,
        "faq",
        [
            document("faq", chunk("faq", text)),
            document("who", chunk("who", "The Who played at the club")),
        ],
        embedding={"provider": "none"},
        language="english",
    )
    for asked, expected in (
        ("how do I rotate my key", ["faq"]),
        ("rotate the key", ["faq"]),
        (text, ["faq"]),
        ("the who", ["who"]),
        ('"the who"', ["who"]),
        ("the who -club", []),
        ("the or key", ["faq"]),
    ):
        answer = await search(
            client,
            "faq",
            query={"text": asked},
            mode="text",
            lexical={"operator": "websearch"},
        )
        assert ids(answer) == expected, asked


@pytest.fixture
async def embedded(app: Litestar) -> AsyncIterator[tuple[httpx.AsyncClient, HashedEmbedder]]:
    async with client_of(app) as client:
        await filled(
            client,
            "docs",
            [
                {"doc_id": "k", "text": "how to rotate an api key"},
                {"doc_id": "l", "text": "lunch menu of the week"},
            ],
            embedding={"provider": "local"},
        )
        embedder = await app.state.services.embedders.find("local", "multilingual-e5-small", 64)
        yield client, embedder


async def test_the_hybrid_default_embeds_the_query(
    embedded: tuple[httpx.AsyncClient, HashedEmbedder],
) -> None:
    client, _ = embedded
    answer = await search(client, "docs", query={"text": "rotating api keys"}, explain=True)
    assert answer["hits"][0]["id"] == "k::0"
    assert answer["degraded"] == []
    assert set(answer["stages"]) == {"embed", "dense", "lexical", "hydrate"}
    assert answer["explain"]["fusion"]["reason"].startswith("auto")


async def test_text_mode_never_calls_the_embedder(
    embedded: tuple[httpx.AsyncClient, HashedEmbedder],
) -> None:
    client, embedder = embedded
    embedder.fail_with = AssertionError("called")
    answer = await search(client, "docs", query={"text": "key"}, mode="text")
    assert ids(answer) == ["k::0"]


async def test_a_failing_embedder_leaves_the_lexical_answer(
    embedded: tuple[httpx.AsyncClient, HashedEmbedder],
) -> None:
    client, embedder = embedded
    embedder.fail_with = ProviderError("down")
    answer = await search(client, "docs", query={"text": "api key"})
    assert ids(answer) == ["k::0"]
    assert answer["degraded"] == [{"stage": "embed", "reason": "error"}]
    assert answer["stages"]["dense"]["status"] == "skipped"
    vector = await client.post(
        "/v1/collections/docs/search", json={"query": {"text": "key"}, "mode": "vector"}
    )
    problem(vector, 503)


async def test_a_hanging_embedder_costs_no_more_than_the_deadline(
    embedded: tuple[httpx.AsyncClient, HashedEmbedder],
) -> None:
    client, embedder = embedded
    embedder.hang = asyncio.Event()
    async with asyncio.timeout(10):
        answer = await search(client, "docs", query={"text": "api key"}, timeout_ms=400)
    assert ids(answer) == ["k::0"]
    assert answer["degraded"] == [{"stage": "embed", "reason": "timeout"}]
    assert answer["took_ms"] < 400
    vector = await client.post(
        "/v1/collections/docs/search",
        json={"query": {"text": "key"}, "mode": "vector", "timeout_ms": 200},
    )
    problem(vector, 503)


async def test_a_client_vector_replaces_the_embedding_call(
    embedded: tuple[httpx.AsyncClient, HashedEmbedder],
) -> None:
    client, embedder = embedded
    embedder.fail_with = AssertionError("called")
    vector = embedder.vector("lunch").tolist()
    answer = await search(client, "docs", query={"text": "api key", "vector": vector})
    assert set(ids(answer)) == {"k::0", "l::0"}
    assert answer["degraded"] == []


async def test_the_same_query_gives_the_same_answer(fruit: httpx.AsyncClient) -> None:
    tied = [document(f"t{n}", chunk(f"t{n}", "same words", [0, 0, 1])) for n in range(30)]
    await fill(fruit, "fruit", tied)
    body = {"query": {"text": "same words", "vector": [0, 0, 1]}, "k": 20}
    first = await search(fruit, "fruit", **body)
    for _ in range(5):
        assert ids(await search(fruit, "fruit", **body)) == ids(first)
    assert ids(first)[:3] == ["t0", "t1", "t10"]


async def test_a_collection_without_vectors_says_that_hybrid_had_none(
    client: httpx.AsyncClient,
) -> None:
    await filled(
        client, "plain", [document("p", chunk("p", "words"))], embedding={"provider": "none"}
    )
    answer = await search(client, "plain", query={"text": "words"}, mode="hybrid")
    assert ids(answer) == ["p"]
    assert answer["degraded"] == [{"stage": "embed", "reason": "no embedder"}]
    response = await client.post(
        "/v1/collections/plain/search", json={"query": {"text": "words"}, "mode": "vector"}
    )
    assert pointers(response) == ["/query/vector"]


async def test_ten_k_answers_in_time_when_the_pool_is_busy(dsn: str) -> None:
    async with (
        serving(dsn, db_pool_size=3, max_concurrent_searches=30) as app,
        client_of(app) as client,
    ):
        await filled(client, "busy", FRUIT)
        body = {"query": {"text": "apple", "vector": [1, 0, 0]}}
        answers = await asyncio.gather(*[search(client, "busy", **body) for _ in range(30)])
        assert {tuple(ids(answer)) for answer in answers} == {tuple(ids(answers[0]))}
