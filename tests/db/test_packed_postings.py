"""Packed postings and the bounded GIN path give the same ranking, whatever was written since."""

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rows import add_rows, stored_collection

from service.db.candidates import CandidateQuery
from service.db.pool import Database
from service.db.segments import PostingList
from service.indexing import packing
from service.indexing.packing import pack_if_grown, segments_to_merge
from service.models import Collection, Condition
from service.search import lexical, packed, statistics
from service.search.lexical import CorpusCache, LexicalAnswer, lexical_leg
from service.search.packed import PackedIndex
from service.search.planning import positions_of
from service.search.postings import Accumulator, WeightedList, densest
from service.search.request import Query, SearchRequest, plan_search
from service.search.statistics import StatisticsCache
from service.text import lexeme_hash

WORDS = ["q" + "".join(chr(ord("a") + int(digit)) for digit in str(number)) for number in range(60)]
numbers = itertools.count(1)
PLACES = [1 / (place + 1) for place in range(len(WORDS))]


def texts(rows: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, PLACES, k=chance.randint(1, 30))) for _ in range(rows)]


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack tens of rows where production packs thousands."""
    monkeypatch.setattr(packing, "FRESH_ROWS", 40)
    monkeypatch.setattr(packing, "SEGMENT_ROWS", 150)
    monkeypatch.setattr(lexical, "EXACT_ROWS", 0)
    monkeypatch.setattr(statistics, "EXACT_ROWS", 0)
    monkeypatch.setattr(packed, "FILTERED_ROWS", 100)


async def ask(
    database: Database, corpus: CorpusCache, collection: Collection, text: str, **how: object
) -> LexicalAnswer:
    query = CandidateQuery(
        collection.generation.id,
        how.get("scope", "chunks"),  # type: ignore[arg-type]
        how.get("filter"),  # type: ignore[arg-type]
        how.get("limit", 10),  # type: ignore[arg-type]
        how.get("per_document"),  # type: ignore[arg-type]
    )
    plan = plan_search(SearchRequest(Query(text=text), mode="text"), collection)
    return await lexical_leg(database, corpus, plan, query)


def fresh_corpus() -> CorpusCache:
    return CorpusCache(StatisticsCache(), PackedIndex())


def ranking(answer: LexicalAnswer) -> list[tuple[str, float]]:
    return [(one.chunk_id, round(one.score, 5)) for one in answer.candidates]


async def both_ways(
    database: Database,
    collection: Collection,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    **how: object,
) -> tuple[LexicalAnswer, LexicalAnswer]:
    by_lists = await ask(database, fresh_corpus(), collection, text, **how)
    with monkeypatch.context() as patched:

        async def no_packed(self: object, weights: object) -> None:
            return None

        patched.setattr(lexical._Leg, "_packed", no_packed)
        bounded = await ask(database, fresh_corpus(), collection, text, **how)
    return by_lists, bounded


async def test_a_packed_generation_answers_as_before(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = await stored_collection(database, texts(400, 1), row_budget=100_000)
    before = await ask(database, fresh_corpus(), collection, f"{WORDS[3]} {WORDS[30]}")
    assert before.path == "gin"
    assert await pack_if_grown(database, collection.generation)
    after, bounded = await both_ways(database, collection, f"{WORDS[3]} {WORDS[30]}", monkeypatch)
    assert (after.path, bounded.path) == ("packed", "gin")
    assert ranking(after) == ranking(bounded)
    assert [one.chunk_id for one in after.candidates] == [one.chunk_id for one in before.candidates]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_both_paths_agree_under_random_writes(
    database: Database, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    kind = {"rows_a_document": 3, "summaries": True}
    collection = await stored_collection(
        database,
        texts(data.draw(st.integers(50, 300)), 5),
        name=f"c{next(numbers)}",
        row_budget=100_000,
        **kind,
    )
    generation = collection.generation
    for step in range(data.draw(st.integers(1, 4))):
        await pack_if_grown(database, generation)
        added = texts(data.draw(st.integers(0, 80)), 100 + step)
        await add_rows(database, generation, added, after=1000 * (step + 1), **kind)
        async with database.administer() as connection:
            await connection.execute(
                "DELETE FROM braid.chunks"
                " WHERE generation_id = $1 AND right(chunk_id, 3)::int % 7 = $2",
                generation.id,
                data.draw(st.integers(0, 6)),
            )
    words = data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6, unique=True))
    how = {
        "limit": data.draw(st.sampled_from([1, 10, 500])),
        "per_document": data.draw(st.sampled_from([None, 1, 2])),
        "scope": data.draw(st.sampled_from(["chunks", "both", "summaries"])),
        "filter": data.draw(st.none() | st.sampled_from([1, 5, 15]).map(below)),
    }
    by_lists, bounded = await both_ways(database, collection, " ".join(words), monkeypatch, **how)
    assert by_lists.path == "packed" or how["filter"]
    if by_lists.exact:
        assert ranking(by_lists) == ranking(bounded)
    # Else more rows than the margin are nearer to each other than the rounding of their impacts.
    rounding = 2 * 2.2 / 255 * sum(bounded.weights.values())
    assert [one.score for one in by_lists.candidates] == pytest.approx(
        [one.score for one in bounded.candidates], abs=rounding
    )


def below(number: int) -> Condition:
    """What `number` of twenty rows pass."""
    return Condition("n", "lt", number)


@pytest.mark.parametrize(("number", "path"), [(15, "packed"), (1, "gin")])
async def test_a_filter_decides_the_path_and_never_costs_rows_that_match(
    database: Database, monkeypatch: pytest.MonkeyPatch, number: int, path: str
) -> None:
    collection = await stored_collection(database, texts(1000, 2), row_budget=100)
    assert await pack_if_grown(database, collection.generation)
    how = {"filter": below(number), "limit": 20}
    by_lists, bounded = await both_ways(
        database, collection, f"{WORDS[0]} {WORDS[1]}", monkeypatch, **how
    )
    assert by_lists.path == path
    assert len(by_lists.candidates) == 20
    assert ranking(by_lists) == ranking(bounded)


@pytest.mark.parametrize("filtered", [None, below(1)])
async def test_fresh_rows_never_take_the_place_of_better_packed_ones(
    database: Database, monkeypatch: pytest.MonkeyPatch, filtered: Condition | None
) -> None:
    # Rows that hold the word more often are better; every twentieth passes the filter.
    rare = [" ".join([WORDS[0]] * (1 + row % 100 // 2)) + " and more" * 20 for row in range(100)]
    collection = await stored_collection(database, rare, row_budget=100_000)
    assert await pack_if_grown(database, collection.generation)
    await add_rows(database, collection.generation, [f"{WORDS[0]} and more"] * 21, after=1000)
    if filtered is None:
        async with database.administer() as connection:
            await connection.execute(
                "DELETE FROM braid.chunks WHERE generation_id = $1 AND id BETWEEN 70 AND 100",
                collection.generation.id,
            )
    by_lists, bounded = await both_ways(
        database, collection, WORDS[0], monkeypatch, limit=1, filter=filtered
    )
    assert ranking(by_lists) == ranking(bounded)


@pytest.mark.parametrize("filtered", [None, below(19)])
async def test_dead_rows_of_a_document_never_hide_those_that_live(
    database: Database, monkeypatch: pytest.MonkeyPatch, filtered: Condition | None
) -> None:
    kind = {"rows_a_document": 100}
    collection = await stored_collection(
        database, [f"{WORDS[0]} {WORDS[1]}"] * 80 + [WORDS[0]] * 60, row_budget=100_000, **kind
    )
    assert await pack_if_grown(database, collection.generation)
    async with database.administer() as connection:
        await connection.execute(
            "DELETE FROM braid.chunks WHERE generation_id = $1 AND id <= 79",
            collection.generation.id,
        )
    by_lists, bounded = await both_ways(
        database,
        collection,
        f"{WORDS[0]} {WORDS[1]}",
        monkeypatch,
        limit=2,
        per_document=1,
        filter=filtered,
    )
    assert len(by_lists.candidates) == 2
    assert ranking(by_lists) == ranking(bounded)


def posting(rows: Sequence[int], levels: Sequence[int]) -> PostingList:
    return PostingList(np.array(rows, np.int32), np.array(levels, np.uint8))


@settings(deadline=None)
@given(
    rows=st.sampled_from([150, 4000]),
    counts=st.lists(st.integers(1, 4000), min_size=1, max_size=6),
    weights=st.lists(st.floats(0.001, 10), min_size=6, max_size=6),
    keep=st.none() | st.integers(1, 80),
    seed=st.integers(0, 100),
)
def test_the_accumulator_finds_the_top_and_forgets_everything(
    rows: int, counts: list[int], weights: list[float], keep: int | None, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    expected = np.zeros(rows)
    weighted = []
    for count, weight in zip(counts, weights, strict=False):
        held = np.sort(chance.permutation(rows)[:count])
        levels = chance.integers(1, 256, len(held))
        expected[held] += levels * weight
        weighted.append(WeightedList(densest(posting(held, levels), rows), weight))
    best = np.sort(expected[expected > 0])[::-1][:keep]
    accumulator = Accumulator(rows)
    for _ in range(2):
        found, scores = accumulator.top(weighted, keep)
        assert len(set(found.tolist())) == len(found)
        assert scores.tolist() == pytest.approx(best.tolist(), rel=1e-4)
        assert expected[found].tolist() == pytest.approx(best.tolist(), rel=1e-4)
    assert not accumulator._scores.any()


async def test_a_lexeme_of_the_same_position_is_no_match(database: Database) -> None:
    seen: dict[int, str] = {}
    for number in itertools.count():
        held, asked = seen.setdefault(lexeme_hash(f"w{number}"), f"w{number}"), f"w{number}"
        if held != asked:
            break
    collection = await stored_collection(database, [held] * 50 + [f"{asked} more"])
    await pack_if_grown(database, collection.generation)
    await add_rows(database, collection.generation, [held, asked], after=1000)
    answer = await ask(database, fresh_corpus(), collection, asked, limit=60)
    assert answer.path == "packed"
    assert {one.chunk_id for one in answer.candidates} == {"c000051", "c001002"}


async def test_packed_scores_differ_from_bm25_by_their_rounding_only(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = await stored_collection(database, texts(300, 4), row_budget=100_000)
    await pack_if_grown(database, collection.generation)
    text = " ".join(WORDS[3:40:4])
    _, bounded = await both_ways(database, collection, text, monkeypatch, limit=1000)
    exact = {one.row: one.score for one in bounded.candidates}
    index, weights = PackedIndex(), positions_of(bounded.weights)
    async with database.read(1) as connection:
        segments = await index.segments(connection, collection.generation)
        scored = await packed._scored(
            connection, index, segments, packed.PackedWeights(weights, "", 1.2)
        )
    assert scored is not None
    rounded = {
        row: score
        for opened, lists in scored
        for ordinals, scores in [opened.accumulator.top(lists, None)]
        for row, score in zip(opened.contents.rows[ordinals], scores.tolist(), strict=True)
    }
    assert rounded.keys() == exact.keys()
    half_levels = 0.51 * 2.2 / 255 * sum(weights.values())
    assert max(abs(rounded[row] - exact[row]) for row in exact) <= half_levels


def test_common_lists_are_only_looked_up_for_rows_that_may_get_on_top() -> None:
    common = posting(range(4000), [10] * 4000)
    rare = posting(range(0, 4000, 40), [200] * 100)
    accumulator = Accumulator(4000)
    accumulator._gains = None  # type: ignore[assignment] # what adding a whole list needs
    weighted = [WeightedList(densest(common, 4000), 0.01), WeightedList(rare, 1.0)]
    found, scores = accumulator.top(weighted, 5)
    assert found.tolist() == [0, 40, 80, 120, 160]
    assert scores.tolist() == pytest.approx([200.1] * 5)


def test_segments_are_merged_like_the_digits_of_a_counter() -> None:
    from service.db.segments import Segment  # noqa: PLC0415

    def segments(*sizes: int) -> list[Segment]:
        return [Segment(number, 0, 1, rows, 1.0) for number, rows in enumerate(sizes)]

    assert segments_to_merge(segments(1000), 40) == 0
    assert segments_to_merge(segments(1000, 60), 40) == 1
    assert segments_to_merge(segments(100, 60), 40) == 1  # 200 rows are more than a segment holds
