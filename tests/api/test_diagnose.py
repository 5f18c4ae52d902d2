"""Why is this document not in the answer? Every hurdle of a search is named when it is the one."""

from typing import Any

import httpx
import pytest
from litestar import Litestar
from support.api import client_of, new_collection, new_key, pointers, problem
from support.hashed_embedder import HashedEmbedder
from support.rows import stored_collection
from support.searching import chunk, document, filled, ids, search

from service.errors import ProviderError
from service.models import Candidate
from service.search.diagnosis import WORDS, LegRun, place_in_leg

PATH = "/v1/collections/notes/search/diagnose"
NOTES = [
    document(
        "apple",
        chunk("a0", "red apple pie", [1, 0, 0], metadata={"kind": "pie", "year": 2020}),
        chunk("a1", "green apple", [0.9, 0.1, 0], metadata={"kind": "raw", "year": 2021}),
        summary="what apples are",
    ),
    document("banana", chunk("b0", "yellow banana", [0, 1, 0])),
    document("words", chunk("w0", "grape and apple juice")),
    document("silent", {"id": "s0", "vector": [0.7, 0.7, 0]}),
]


@pytest.fixture
async def notes(client: httpx.AsyncClient) -> httpx.AsyncClient:
    await filled(client, "notes", NOTES, language="english")
    return client


async def diagnosed(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    assert found["detail"] == WORDS[found["reason"]]
    return found


TEXT: dict[str, Any] = {"query": {"text": "apple pies"}, "mode": "text"}
VECTOR: dict[str, Any] = {"query": {"vector": [1, 0, 0]}, "mode": "vector"}
HYBRID: dict[str, Any] = {"query": {"text": "apple pies", "vector": [1, 0, 0]}}


async def test_what_is_found_has_its_place_ranks_and_terms(notes: httpx.AsyncClient) -> None:
    found = await diagnosed(notes, **HYBRID, doc_id="apple")
    assert (found["reason"], found["doc_id"], found["id"]) == ("found", "apple", None)
    assert found["document"] == {
        "status": "ready",
        "failure_reason": None,
        "language": None,
        "waiting": False,
        "records": 3,
    }
    assert found["query"]["language"] == "english"
    assert set(found["query"]["lexemes"]) == {"appl", "pie"}
    assert found["query"]["pools"] == {"dense": 40, "lexical": 40}
    best = found["records"][0]
    answer = await search(notes, "notes", **HYBRID, explain=True)
    hit = answer["hits"][0]
    assert (best["id"], best["place"], best["fused"]) == ("a0", 1, hit["explain"]["fused"])
    assert best["dense"]["score"] == hit["explain"]["dense"]["score"]
    assert best["lexical"]["terms"] == pytest.approx(hit["explain"]["lexical"]["terms"])
    assert best["lexical"]["missing"] == []
    assert [one["id"] for one in found["records"]] == ["a0", "a1", "apple"]
    assert found["records"][1]["lexical"]["missing"] == ["pie"]
    assert found["records"][2]["reason"] == "scope"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({**TEXT, "doc_id": "nothing"}, "unknown"),
        ({**TEXT, "id": "nothing::3"}, "unknown"),
        ({**TEXT, "doc_id": "apple", "id": "a7"}, "no_record"),
        ({**TEXT, "id": "b0"}, "no_match"),
        ({**TEXT, "id": "s0"}, "no_match"),
        ({**VECTOR, "doc_id": "words"}, "no_vector"),
        ({**VECTOR, "id": "b0"}, "found"),
        ({**VECTOR, "id": "b0", "k": 1}, "k"),
        ({**VECTOR, "id": "b0", "k": 1, "fusion": {"fetch_k": 1}}, "pool"),
        ({**HYBRID, "id": "b0", "k": 1, "fusion": {"fetch_k": 2}}, "pool"),
        ({**VECTOR, "id": "b0", "min_score": {"dense": 0.5}}, "min_score"),
        ({**TEXT, "id": "a1", "min_score": {"lexical": 0.9}}, "min_score"),
        ({**TEXT, "id": "a1", "lexical": {"operator": "and"}}, "no_match"),
        ({**TEXT, "id": "a0", "lexical": {"operator": "and"}}, "found"),
        ({**TEXT, "id": "a1", "max_chunks_per_document": 1}, "document_cap"),
        ({**VECTOR, "id": "a1", "k": 2, "diversity": {"lambda": 0.1}}, "diversity"),
        ({**VECTOR, "doc_id": "silent", "k": 1, "group_by": "document"}, "k"),
        ({**VECTOR, "doc_id": "apple", "k": 1, "group_by": "document"}, "found"),
        ({**TEXT, "doc_id": "apple", "id": "apple"}, "scope"),
        ({**TEXT, "doc_id": "apple", "id": "apple", "scope": "both"}, "found"),
        ({**TEXT, "id": "w0", "filter": {"kind": "pie"}}, "filter"),
    ],
)
async def test_the_hurdle_is_named(
    notes: httpx.AsyncClient, body: dict[str, Any], reason: str
) -> None:
    assert (await diagnosed(notes, **body))["reason"] == reason


async def test_the_condition_that_removed_a_record_is_named_and_its_score_still_told(
    notes: httpx.AsyncClient,
) -> None:
    raw = {
        "kind": ["pie", "raw"],
        "year": {"gte": 2020, "lt": 2021},
        "and": [{"source": "wiki"}, {"not": {"kind": "raw"}}],
        "or": [{"kind": "raw"}, {"kind": "pie"}],
    }
    found = await diagnosed(notes, **TEXT, id="a1", filter=raw)
    (record,) = found["records"]
    assert record["failed_conditions"] == [
        "/filter/year/lt",
        "/filter/and/0/source",
        "/filter/and/1/not",
    ]
    assert record["lexical"]["cut"] == "filter"
    assert record["lexical"]["rank"] is None
    plain = await diagnosed(notes, **TEXT, id="a1")
    assert record["lexical"]["score"] == plain["records"][0]["lexical"]["score"] > 0


async def test_ranks_beyond_the_pool_are_those_of_the_leg(notes: httpx.AsyncClient) -> None:
    found = await diagnosed(notes, **VECTOR, id="b0", k=1, fusion={"fetch_k": 1})
    (record,) = found["records"]
    assert (record["dense"]["rank"], record["dense"]["cut"]) == (4, "pool")
    assert record["dense"]["score"] == pytest.approx(0, abs=1e-6)


async def test_documents_that_wait_or_failed_say_so(app: Litestar, dsn: str) -> None:
    # Nobody indexes: the search side alone has no worker.
    async with client_of(app) as client:
        await new_collection(client, "notes")
        posted = {"documents": [{"doc_id": "blank", "text": " "}]}
        await client.post("/v1/collections/notes/documents?wait=true", json=posted)
        found = await diagnosed(client, **TEXT, doc_id="blank")
        assert (found["reason"], found["document"]["status"]) == ("failed", "error")
        assert found["document"]["failure_reason"]
        async with app.state.services.database.administer() as connection:
            await connection.execute(
                "INSERT INTO braid.documents (team_id, collection_id, doc_id)"
                " SELECT 1, id, 'late' FROM braid.collections"
            )
        for target in ({"doc_id": "late"}, {"id": "late::4"}):
            found = await diagnosed(client, **TEXT, **target)
            assert (found["reason"], found["document"]["status"]) == ("pending", "pending")


async def test_a_leg_that_could_not_run_is_no_reason_of_the_document(
    app: Litestar, client: httpx.AsyncClient
) -> None:
    embedding = {"provider": "local"}
    await new_collection(client, "notes", embedding=embedding)
    posted = {"documents": [{"doc_id": "d", "text": "an apple"}, {"doc_id": "e", "text": "pear"}]}
    await client.post("/v1/collections/notes/documents?wait=true", json=posted)
    found = await diagnosed(client, query={"text": "apple"}, doc_id="e")
    assert found["reason"] == "found"
    assert found["records"][0]["lexical"]["cut"] == "no_match"
    embedder = await app.state.services.embedders.find("local", "multilingual-e5-small", 64)
    assert isinstance(embedder, HashedEmbedder)
    embedder.fail_with = ProviderError("down")
    found = await diagnosed(client, query={"text": "apple"}, doc_id="e")
    assert found["reason"] == "not_run"
    assert found["records"][0]["dense"]["cut"] == "not_run"
    assert found["degraded"] == [{"stage": "embed", "reason": "error"}]


async def test_a_row_of_common_words_is_cut_by_the_budget(
    app: Litestar, client: httpx.AsyncClient
) -> None:
    texts = ["common filler text"] * 150 + ["common"] + ["rare filler words of a long text"] * 120
    texts += [f"noise {number}" for number in range(2_000)]
    await stored_collection(app.state.services.database, texts, name="notes", row_budget=125)
    body = {"query": {"text": "rare common"}, "mode": "text", "k": 5, "fusion": {"fetch_k": 5}}
    found = await diagnosed(client, **body, id="c000151")
    assert found["reason"] == "budget"
    assert found["records"][0]["lexical"]["rank"] == 1
    assert "c000151" not in ids(await search(client, "notes", **body))


async def test_every_record_of_a_collection_is_told_as_it_is(client: httpx.AsyncClient) -> None:
    words = ["apple", "pear", "plum", "fig"]
    made = [
        document(
            f"d{n}",
            *(
                chunk(
                    f"d{n}-{part}",
                    " ".join(words[at] for at in range(4) if (n + part) >> at & 1) or "none",
                    [1 + n % 5, part, n % 3],
                    metadata={"even": n % 2 == 0},
                )
                for part in range(3)
            ),
        )
        for n in range(16)
    ]
    await filled(client, "notes", made)
    body: dict[str, Any] = {
        "query": {"text": "apple pear fig", "vector": [1, 0.5, 0]},
        "k": 7,
        "fusion": {"fetch_k": 10},
        "max_chunks_per_document": 2,
        "filter": {"even": True},
    }
    answer = await search(client, "notes", **body, explain=True)
    places = {hit["id"]: place for place, hit in enumerate(answer["hits"], 1)}
    explained = {hit["id"]: hit["explain"] for hit in answer["hits"]}
    reasons = {}
    for one in made:
        found = await diagnosed(client, **body, doc_id=one["doc_id"])
        assert len(found["records"]) == 3
        for record in found["records"]:
            reasons[record["id"]] = record["reason"]
            assert record["place"] == places.get(record["id"])
            assert (record["reason"] == "found") == (record["id"] in places)
            if record["id"] in places:
                assert record["fused"] == explained[record["id"]]["fused"]
                for leg in ("dense", "lexical"):
                    said = explained[record["id"]].get(leg)
                    assert (record[leg]["cut"] is None) == (said is not None)
                    assert said is None or record[leg]["rank"] == said["rank"]
    assert set(reasons.values()) == {"found", "filter", "pool", "document_cap", "k"}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (TEXT, "/doc_id"),
        ({**TEXT, "doc_id": ""}, "/doc_id"),
        ({**TEXT, "id": "a\x00"}, "/id"),
        ({**TEXT, "doc_id": "a", "documents": 1}, "/documents"),
        ({"query": {"text": " "}, "doc_id": "a"}, "/query/text"),
        ({**TEXT, "doc_id": "a", "filter": {"a": {"like": 1}}}, "/filter/a/like"),
    ],
)
async def test_a_bad_request_is_named(
    notes: httpx.AsyncClient, body: dict[str, Any], pointer: str
) -> None:
    assert pointers(await notes.post(PATH, json=body)) == [pointer]


async def test_only_a_key_that_may_search_the_collection_is_told(
    notes: httpx.AsyncClient,
) -> None:
    await new_collection(notes, "other")
    key = await new_key(notes, "search", collections=["other"])
    problem(await notes.post(PATH, json={**TEXT, "doc_id": "apple"}, headers=key), 404)


def candidates(*documents: int) -> list[Candidate]:
    return [Candidate(at, one, "chunk", f"c{at}", at, 0.0) for at, one in enumerate(documents)]


@pytest.mark.parametrize(
    ("row", "per_document", "expected"),
    [
        (0, 1, (1, None)),
        (1, 1, (2, "document_cap")),
        (2, 1, (3, None)),
        (3, 1, (4, "pool")),
        (9, 1, (None, "budget")),
        (3, None, (4, "pool")),
    ],
)
def test_a_place_in_a_leg_is_reasoned_from_its_runs(
    row: int, per_document: int | None, expected: tuple[int | None, str | None]
) -> None:
    wide = candidates(1, 1, 2, 3)
    narrow = [wide[0], wide[2]] if per_document else wide[:2]
    run = LegRun("ok", 2, narrow, wide, 1_000, {})
    rank, cut = place_in_leg(run, row, "budget", per_document)
    assert (rank, cut) == ((2, None) if row == 2 and per_document else expected)
