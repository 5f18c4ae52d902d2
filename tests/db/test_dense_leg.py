"""The dense leg: filters, deletions and caps never leave a result short or wrong."""

from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.dense import ask, ids, without_index
from support.vectors import add_vectors, clustered, current, exact_ids, vector_collection

from service.db import pool
from service.db.candidates import CandidateQuery
from service.db.dense import EF_SEARCH, sampled_share
from service.db.pool import Connection, Database, open_database
from service.db.vector_index import IndexMeasure, open_builder, publish_index, sample_rows
from service.models import Collection, Quantization, VectorIndex
from service.search import dense
from service.search.dense import FilterShares, compares_all, widths
from service.search.filters import parse_filter

DIM = 32
ROWS = 3000
VECTORS = clustered(ROWS, DIM)


async def indexed(
    database: Database,
    dsn: str,
    collection: Collection,
    *,
    rows: int = ROWS,
    ef_search: int = 100,
    quantization: Quantization = "none",
) -> Collection:
    """The collection with an index, as if the worker had measured what is told."""
    async with open_builder(dsn, memory_mb=None) as builder:
        await builder.build(collection.generation, quantization)
    sample = await sample_rows(database, collection.generation.id, rows=rows, wanted=400)
    async with database.administer() as connection:
        found = IndexMeasure(rows, ef_search, 1.0, None, sample)
        await publish_index(connection, collection.generation.id, quantization, found)
    return await current(database, collection)


def metadata(row: int) -> dict[str, Any]:
    return {"n": row, **{f"of_{parts}": row % parts for parts in (2, 20, 200)}}


@pytest.fixture
async def collection(database: Database, dsn: str) -> Collection:
    stored = await vector_collection(
        database, VECTORS, metadata=metadata, document=lambda row: row // 10
    )
    return await indexed(database, dsn, stored)


@pytest.fixture
def small_exact_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare at most 300 rows exactly, where production compares 10 million components."""
    monkeypatch.setattr(dense, "EXACT_COMPONENTS", 300 * DIM)


SELECTIVE = [
    ({"of_20": 3}, [row for row in range(ROWS) if row % 20 == 3]),
    ({"of_200": 3}, [row for row in range(ROWS) if row % 200 == 3]),
    ({"n": {"in": [5, 2999, 17]}}, [5, 17, 2999]),
    ({"n": {"lt": 12}}, list(range(12))),
    ({"doc_id": "d7"}, list(range(70, 80))),
    ({"n": -1}, []),
]


@pytest.mark.usefixtures("small_exact_sets")
@pytest.mark.parametrize(("condition", "rows"), SELECTIVE)
async def test_a_selective_filter_is_answered_exactly(
    database: Database, collection: Collection, condition: dict[str, Any], rows: list[int]
) -> None:
    for asked in VECTORS[:5]:
        answer = await ask(database, collection, asked, filter=condition)
        assert answer.method == "exact"
        assert ids(answer) == exact_ids(VECTORS, asked, rows, 40)


@pytest.mark.usefixtures("small_exact_sets")
@pytest.mark.parametrize("condition", [{"of_2": 1}, {"n": {"gte": 1000}}, {"not": {"of_20": 3}}])
async def test_a_broad_filter_goes_through_the_index_and_fills_the_result(
    database: Database, collection: Collection, condition: dict[str, Any]
) -> None:
    matching = {"of_2": lambda row: row % 2 == 1, "n": lambda row: row >= 1000}
    matches = matching.get(next(iter(condition)), lambda row: row % 20 != 3)
    rows = [row for row in range(ROWS) if matches(row)]
    for asked in VECTORS[:5]:
        answer = await ask(database, collection, asked, filter=condition)
        assert answer.method == "hnsw"
        assert len(answer.candidates) == 40
        assert ids(answer)[:10] == exact_ids(VECTORS, asked, rows, 10)


async def test_a_filter_that_was_thought_broad_still_fills_the_result(
    database: Database, collection: Collection
) -> None:
    shares = AsyncMock(FilterShares, of=AsyncMock(return_value=1.0))
    far = np.argsort(VECTORS @ VECTORS[0])[:50].tolist()
    answer = await ask(
        database,
        collection,
        VECTORS[0],
        filter={"n": {"in": far}},
        shares=shares,
        limit=20,
    )
    assert ids(answer) == exact_ids(VECTORS, VECTORS[0], sorted(far), 20)
    few = await ask(database, collection, VECTORS[0], filter={"n": {"in": far[:7]}}, shares=shares)
    assert (few.method, len(few.candidates)) == ("exact", 7)


async def test_dead_rows_never_starve_a_result(database: Database, collection: Collection) -> None:
    asked = VECTORS[0]
    nearest = exact_ids(VECTORS, asked, range(ROWS), 2500)
    async with database.administer() as connection:
        await connection.execute(
            "DELETE FROM braid.chunks WHERE generation_id = $1 AND chunk_id = ANY($2)",
            collection.generation.id,
            nearest,
        )
    left = sorted(set(range(ROWS)) - {int(one[1:]) for one in nearest})
    answer = await ask(database, collection, asked)
    assert ids(answer)[:10] == exact_ids(VECTORS, asked, left, 10)
    assert len(answer.candidates) == 40
    wide = await ask(database, collection, asked, limit=1000)
    assert ids(wide) == exact_ids(VECTORS, asked, left, 1000)


async def test_rows_written_since_are_found(database: Database, collection: Collection) -> None:
    await add_vectors(database, collection, VECTORS[:1] * 2, after=ROWS)
    answer = await ask(database, collection, VECTORS[0])
    assert answer.method == "hnsw"
    assert set(ids(answer)[:2]) == {"c000000", f"c{ROWS:06}"}


@pytest.mark.parametrize("cap", [1, 3])
async def test_one_document_does_not_crowd_out_the_others(
    database: Database, dsn: str, cap: int
) -> None:
    rows = np.arange(ROWS)
    vectors = np.tile(VECTORS[:1], (ROWS, 1)) + 0.01 * VECTORS
    vectors[rows >= 1500] = VECTORS[1500:] + VECTORS[0]
    stored = await vector_collection(
        database, vectors, document=lambda row: 0 if row < 1500 else row // 5
    )
    collection = await indexed(database, dsn, stored)
    answer = await ask(
        database, collection, VECTORS[0], max_chunks_per_document=cap, group_by="document"
    )
    exact = await ask(database, without_index(collection), VECTORS[0], max_chunks_per_document=cap)
    documents = [one.document for one in answer.candidates]
    assert documents == [one.document for one in exact.candidates]
    assert len(documents) == 40
    assert max(documents.count(one) for one in documents) == cap


async def test_a_cap_that_the_first_rows_satisfy_is_answered_by_the_index(
    database: Database, collection: Collection
) -> None:
    answer = await ask(database, collection, VECTORS[0], max_chunks_per_document=5)
    exact = await ask(database, without_index(collection), VECTORS[0], max_chunks_per_document=5)
    assert answer.method == "hnsw"
    assert ids(answer)[:10] == ids(exact)[:10]


@pytest.mark.parametrize("scope", ["summaries", "both"])
async def test_a_scope_is_as_good_as_a_filter(
    database: Database, collection: Collection, scope: Any
) -> None:
    async with database.administer() as connection:
        await connection.execute(
            "UPDATE braid.chunks SET type = 'summary'"
            " WHERE generation_id = $1 AND position % 100 = 0",
            collection.generation.id,
        )
    rows = range(0, ROWS, 100) if scope == "summaries" else range(ROWS)
    answer = await ask(database, collection, VECTORS[3], scope=scope)
    assert ids(answer)[:10] == exact_ids(VECTORS, VECTORS[3], rows, 10)
    assert len(answer.candidates) == min(40, len(rows))


async def test_scores_are_exact_cosine_whichever_way(
    database: Database, collection: Collection
) -> None:
    asked = VECTORS[11] + 0.1
    answer = await ask(database, collection, asked)
    exact = await ask(database, without_index(collection), asked)
    assert answer.method == "hnsw"
    exact_scores = {one.row: one.score for one in exact.candidates}
    assert [one.score for one in answer.candidates[:10]] == [
        exact_scores[one.row] for one in answer.candidates[:10]
    ]


@pytest.mark.parametrize("dim", [128, 5000])
async def test_signs_alone_choose_rows_that_are_then_ranked_exactly(
    database: Database, dsn: str, dim: int
) -> None:
    vectors = clustered(2000 if dim < 1000 else 300, dim)
    stored = await vector_collection(database, vectors)
    collection = await indexed(
        database, dsn, stored, rows=len(vectors), ef_search=400, quantization="binary"
    )
    for asked in vectors[:5]:
        answer = await ask(database, collection, asked)
        assert answer.method == "hnsw"
        assert ids(answer)[:10] == exact_ids(vectors, asked, range(len(vectors)), 10)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    row=st.integers(0, ROWS - 1),
    parts=st.sampled_from([None, 2, 20, 200]),
    how=st.fixed_dictionaries(
        {
            "limit": st.sampled_from([1, 40, 200]),
            "max_chunks_per_document": st.sampled_from([None, 1, 4]),
        }
    ),
)
async def test_as_many_rows_come_as_an_exact_search_gives(
    database: Database, collection: Collection, row: int, parts: int | None, how: dict[str, Any]
) -> None:
    if parts is not None:
        how["filter"] = {f"of_{parts}": row % parts}
    found = await ask(database, collection, VECTORS[row], **how)
    exact = await ask(database, without_index(collection), VECTORS[row], **how)
    assert len(found.candidates) == len(exact.candidates)
    assert found.candidates[0] == exact.candidates[0]


async def test_the_share_of_a_filter_comes_from_a_sample(
    database: Database, collection: Collection
) -> None:
    async with database.read(1) as connection:

        async def share(condition: dict[str, Any]) -> float:
            query = CandidateQuery(
                collection.generation.id, "chunks", parse_filter(condition), 40, None
            )
            found = await sampled_share(connection, query)
            assert found is not None
            return found

        assert await share({"of_2": 1}) == pytest.approx(0.5, abs=0.15)
        assert await share({"n": {"gte": 300}}) == pytest.approx(0.9, abs=0.1)
        assert await share({"of_200": 1}) < 0.05
        assert await share({"nothing": 1}) == 0


async def test_a_share_is_asked_for_once(
    database: Database, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def counted(connection: Connection, query: CandidateQuery) -> float | None:
        nonlocal asked
        asked += 1
        return 1.0

    monkeypatch.setattr(dense, "sampled_share", counted)
    shares = FilterShares()
    for _ in range(3):
        await ask(database, collection, VECTORS[0], filter={"of_2": 1}, shares=shares)
    assert asked == 1
    await ask(database, collection, VECTORS[0], filter={"of_2": 0}, shares=shares)
    assert asked == 2


async def test_a_search_on_a_session_that_is_set_up_is_one_statement(
    dsn: str, database: Database, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    one = await open_database(dsn, size=1)
    execute = pool._Reader.execute

    async def recorded(self: Any, query: str, *args: Any, **kwargs: Any) -> str:
        sent.append(query)
        return await execute(self, query, *args, **kwargs)

    monkeypatch.setattr(pool._Reader, "execute", recorded)
    await ask(one, collection, VECTORS[0])
    sent.clear()
    await ask(one, collection, VECTORS[0])
    await ask(one, without_index(collection), VECTORS[0])
    await ask(one, collection, VECTORS[0])
    assert sent == []
    await ask(one, collection, VECTORS[0], ef_search=400)
    assert sent == ["SET hnsw.ef_search = 400"]
    async with one.read(1) as connection:
        assert await connection.fetchval("SHOW hnsw.ef_search") == "400"
        assert await connection.fetchval("SHOW hnsw.iterative_scan") == "relaxed_order"
    await one.close()


@pytest.mark.parametrize(
    ("rows", "share", "exact"),
    [
        (100_000, 0.05, True),
        (100_000, 0.5, False),
        (1_000_000, 0.5, False),
        (1_000_000, 0.03, True),
        (1_000_000, 0.05, False),
        (1_000_000, 0.0, True),
    ],
)
def test_a_filter_is_answered_by_what_suits_its_matches(
    rows: int, share: float, exact: bool
) -> None:
    query = CandidateQuery(1, "chunks", None, 40, None)
    assert compares_all(VectorIndex("none", rows, 40), query, share, 40, 1024) is exact


@given(
    share=st.floats(0.001, 1),
    limit=st.integers(1, 4000),
    ef_search=st.integers(1, 1000),
    cap=st.sampled_from([None, 1]),
    quantization=st.sampled_from(["none", "binary"]),
)
def test_the_index_keeps_as_many_candidates_as_are_wanted(
    share: float, limit: int, ef_search: int, cap: int | None, quantization: Quantization
) -> None:
    query = CandidateQuery(1, "chunks", None, limit, cap)
    tried = widths(VectorIndex(quantization, 10**6, ef_search), query, share, ef_search)
    for width in tried:
        assert width.ef_search in EF_SEARCH
        assert width.rows >= limit
        assert width.ef_search >= min(max(limit, ef_search), EF_SEARCH[-1])
    assert [one.rows for one in tried] == sorted(one.rows for one in tried)


async def test_behind_a_pooler_each_search_says_how_wide_it_is(
    dsn: str, collection: Collection
) -> None:
    pooled = await open_database(dsn, size=1, pgbouncer=True)
    wide = await ask(pooled, collection, VECTORS[3], ef_search=250)
    assert (wide.method, wide.ef_search, len(wide.candidates)) == ("hnsw", 250, 40)
    answer = await ask(pooled, collection, VECTORS[3])
    assert ids(answer)[:10] == exact_ids(VECTORS, VECTORS[3], range(ROWS), 10)
    async with pooled.read(1) as connection:
        assert await connection.fetchval("SHOW hnsw.ef_search") == "40"
    await pooled.close()
