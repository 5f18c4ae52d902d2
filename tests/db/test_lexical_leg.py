"""The lexical leg: its scores are BM25, its candidates are bounded, its proof is honest."""

import math
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rows import add_rows, stored_collection

from service.db.candidates import CandidateQuery
from service.db.lexical import QueryLexeme
from service.db.pool import Database
from service.indexing import packing
from service.indexing.packing import pack_if_grown
from service.models import Collection, Generation
from service.search import lexical, statistics
from service.search.lexical import CorpusCache, LexicalAnswer, lexical_leg
from service.search.packed import PackedIndex
from service.search.planning import idf, plan_lexical
from service.search.request import Query, SearchRequest, plan_search
from service.search.statistics import StatisticsCache

K1, B = 1.2, 0.75
Filled = tuple[Database, Collection, list[str]]


def word(number: int) -> str:
    """A plain word of its own for each number; 0 is the most common one."""
    return "q" + "".join(chr(ord("a") + int(digit)) for digit in str(number))


def corpus(rows: int, seed: int = 3) -> list[str]:
    """Texts of 5 to 60 words, some words in most texts and most words in few."""
    chance = random.Random(seed)
    words = [word(number) for number in range(400)]
    weights = [1 / (place + 1) for place in range(len(words))]
    return [" ".join(chance.choices(words, weights, k=chance.randint(5, 60))) for _ in range(rows)]


def bm25(texts: list[str], question: str) -> dict[str, float]:
    """BM25 by hand: score by chunk id, of the texts that hold a word of the question."""
    tokenized = [text.split() for text in texts]
    average = sum(map(len, tokenized)) / len(tokenized)
    frequency = Counter(word for tokens in tokenized for word in set(tokens))
    scores: dict[str, float] = {}
    for number, tokens in enumerate(tokenized, 1):
        counts = Counter(tokens)
        score = 0.0
        for word in question.split():
            tf = counts[word]
            df = frequency[word]
            weight = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
            norm = K1 * (1 - B + B * len(tokens) / average)
            score += weight * tf * (K1 + 1) / (tf + norm)
        if score:
            scores[f"c{number:06}"] = score
    return scores


async def ask(
    database: Database, collection: Collection, text: str, limit: int = 40, k: int = 10
) -> LexicalAnswer:
    plan = plan_search(SearchRequest(Query(text=text), mode="text", k=k), collection)
    query = CandidateQuery(collection.generation.id, "chunks", None, limit, None)
    return await lexical_leg(database, CorpusCache(StatisticsCache(), PackedIndex()), plan, query)


@pytest.mark.parametrize(
    ("exact_rows", "packed"),
    [(2000, False), (0, False), (0, True)],
    ids=["counted", "from statistics", "packed"],
)
async def test_scores_are_bm25(
    database: Database, monkeypatch: pytest.MonkeyPatch, exact_rows: int, packed: bool
) -> None:
    monkeypatch.setattr(packing, "FRESH_ROWS", 100)
    monkeypatch.setattr(lexical, "EXACT_ROWS", exact_rows)
    monkeypatch.setattr(statistics, "EXACT_ROWS", exact_rows)
    texts = corpus(500)
    collection = await stored_collection(database, texts)
    if packed:
        assert await pack_if_grown(database, collection.generation)
    for numbers in ("0 7 300", "1 1 50", "399", "9999 3"):
        question = " ".join(word(int(number)) for number in numbers.split())
        expected = bm25(texts, question)
        answer = await ask(database, collection, question, limit=500)
        found = {one.chunk_id: one.score for one in answer.candidates}
        assert found == pytest.approx(expected, rel=1e-3)
        assert answer.exact
        assert answer.path == ("packed" if packed else "gin")


async def test_a_word_in_more_rows_than_there_were_ranks_them_still(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lexical, "EXACT_ROWS", 0)
    monkeypatch.setattr(statistics, "EXACT_ROWS", 0)
    collection = await stored_collection(database, corpus(50))
    known = CorpusCache(StatisticsCache(lambda: 0.0), PackedIndex())
    before = await known.statistics.of(database, collection.generation)
    await add_rows(database, collection.generation, ["new"] * 40 + ["new new"] * 40, after=1000)
    plan = plan_search(SearchRequest(Query(text="new"), mode="text"), collection)
    query = CandidateQuery(collection.generation.id, "chunks", None, 80, None)
    answer = await lexical_leg(database, known, plan, query)
    assert before.rows == 50
    assert len(answer.candidates) == 80
    assert {one.chunk_id for one in answer.candidates[:40]} == {
        f"c{number:06}" for number in range(1041, 1081)
    }
    assert answer.candidates[-1].score > 0


async def test_a_budget_bounds_the_candidates_and_says_whether_the_top_is_proven(
    database: Database,
) -> None:
    texts = corpus(1500)
    collection = await stored_collection(database, texts, row_budget=100)
    proven = 0
    for rare in range(200, 260):
        question = f"{word(0)} {word(1)} {word(rare)}"
        answer = await ask(database, collection, question, limit=10, k=5)
        exact = sorted(bm25(texts, question).items(), key=lambda one: (-one[1], one[0]))
        if answer.exact:
            proven += 1
            found = [one.chunk_id for one in answer.candidates[:5]]
            assert found == [chunk_id for chunk_id, _ in exact[:5]]
    assert proven > 0


async def test_a_budget_never_costs_rows_that_match(database: Database) -> None:
    texts = [*(["common words"] * 300), "rare common words"]
    collection = await stored_collection(database, texts, row_budget=100)
    answer = await ask(database, collection, "rare common", limit=40)
    assert len(answer.candidates) == 40
    assert answer.candidates[0].chunk_id == "c000301"
    assert answer.exact


def test_rows_with_enough_common_words_are_candidates_beside_those_with_a_rare_one() -> None:
    lexemes = [
        QueryLexeme("rare", 1, 5),
        QueryLexeme("b", 1, 600),
        QueryLexeme("c", 1, 700),
        QueryLexeme("d", 1, 5000),
    ]
    plan = plan_lexical(lexemes, 10_000, _generation(budget=500))
    assert plan.tsquery == "'rare' | 'b' & ('c')"
    heaviest_unseen = idf(10_000, 600) + idf(10_000, 5000)
    assert plan.unseen_bound == pytest.approx(2.2 * heaviest_unseen)


def test_words_of_which_none_fits_are_asked_by_the_heaviest() -> None:
    lexemes = [QueryLexeme("a", 3, 9000), QueryLexeme("b", 1, 8500)]
    plan = plan_lexical(lexemes, 10_000, _generation(budget=100))
    assert plan.tsquery == "'a'"
    assert plan.unseen_bound == pytest.approx(2.2 * idf(10_000, 8500))


MATCHING = """
SELECT array_to_tsvector($1::text[]) @@ $3::text::tsquery OR $2::float8 <= $4::float8 + 1e-9
"""


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_no_row_outside_the_candidates_outweighs_the_bound(
    database: Database, data: st.DataObject
) -> None:
    rows = 10_000
    known = st.tuples(st.integers(1, 3), st.integers(0, rows))
    drawn = data.draw(st.lists(known, min_size=1, max_size=12))
    lexemes = [QueryLexeme(word(n), tf, df) for n, (tf, df) in enumerate(drawn)]
    budget = data.draw(st.sampled_from([100, 1000, 5000]))
    plan = plan_lexical(lexemes, rows, _generation(budget=budget))
    held = data.draw(st.lists(st.sampled_from(sorted(plan.weights)), min_size=1, unique=True))
    highest = 2.2 * sum(plan.weights[lexeme] for lexeme in held)
    async with database.read(1) as connection:
        assert await connection.fetchval(MATCHING, held, highest, plan.tsquery, plan.unseen_bound)


def test_a_single_word_that_every_row_holds_is_still_asked() -> None:
    plan = plan_lexical([QueryLexeme("all", 1, 10_000)], 10_000, _generation(budget=100))
    assert plan.tsquery == "'all'"
    assert plan.unseen_bound == 0


@given(rows=st.integers(0, 10**9), frequency=st.integers(0, 10**9))
def test_idf_is_never_negative_whatever_the_statistics_say(rows: int, frequency: int) -> None:
    assert idf(rows, frequency) >= 0


def test_rarer_words_weigh_more() -> None:
    assert idf(1000, 1) > idf(1000, 10) > idf(1000, 1000) > 0


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_budget_and_statistics_never_change_a_proven_top(
    filled: Filled, data: st.DataObject
) -> None:
    database, collection, texts = filled
    numbers = data.draw(st.lists(st.integers(0, 399), min_size=1, max_size=6, unique=True))
    question = " ".join(map(word, numbers))
    answer = await ask(database, collection, question, limit=1000)
    exact = sorted(bm25(texts, question).items(), key=lambda one: (-round(one[1], 4), one[0]))
    if answer.exact:
        found = sorted(
            ((one.chunk_id, one.score) for one in answer.candidates),
            key=lambda one: (-round(one[1], 4), one[0]),
        )[:10]
        assert [score for _, score in found] == pytest.approx(
            [score for _, score in exact[:10]], rel=1e-3
        )


@pytest.fixture
async def filled(database: Database) -> Filled:
    texts = corpus(1000, seed=11)
    return database, await stored_collection(database, texts, row_budget=150), texts


def _generation(budget: int) -> Generation:
    return Generation(
        1, 1, 1, "none", None, None, None, "simple", "language", 512, 64, K1, B, budget, 100.0
    )
