"""What the lexical leg says of itself, which decides how far fusion trusts it."""

import pytest
from support.indexing import ingest, make_collection, working

from service.db.candidates import CandidateQuery
from service.db.pool import Database
from service.models import Collection
from service.search import lexical, statistics
from service.search.fusion import NO_EVIDENCE
from service.search.lexical import CorpusCache, LexicalAnswer, lexical_leg
from service.search.packed import PackedIndex
from service.search.request import Query, SearchRequest, plan_search
from service.search.statistics import StatisticsCache

TEXTS = (
    "The functions getUserById and listUsers read accounts from the running database.",
    "Set vacuum_cost_limit to throttle the running of vacuum; the limit is a cost.",
    "Error C2065 means that an identifier was not declared before it is used.",
    *(f"Accounts of year {year} were closed while the database was running." for year in range(20)),
)


async def answer(database: Database, collection: Collection, text: str) -> LexicalAnswer:
    query = CandidateQuery(collection.generation.id, "chunks", None, 40, None)
    plan = plan_search(SearchRequest(Query(text=text), mode="text"), collection)
    corpus = CorpusCache(StatisticsCache(), PackedIndex())
    return await lexical_leg(database, corpus, plan, query)


@pytest.fixture(params=[2000, 0], ids=["counted", "by statistics"])
async def filled(
    request: pytest.FixtureRequest, database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> Collection:
    monkeypatch.setattr(lexical, "EXACT_ROWS", request.param)
    monkeypatch.setattr(statistics, "EXACT_ROWS", request.param)
    collection = await make_collection(
        database, language="english", provider="none", model=None, dim=None
    )
    documents = [{"doc_id": f"d{n}", "text": text} for n, text in enumerate(TEXTS)]
    async with working(database, dsn, None):
        await ingest(database, collection, *documents)
    return collection


@pytest.mark.parametrize(
    "text", ["getUserById", "C2065", "vacuum_cost_limit", "VACUUM_COST_LIMIT?"]
)
async def test_an_identifier_is_nearly_all_of_its_query(
    database: Database, filled: Collection, text: str
) -> None:
    assert (await answer(database, filled, text)).evidence.identifiers > 0.75


async def test_a_question_about_an_identifier_is_less_of_one(
    database: Database, filled: Collection
) -> None:
    text = "which of the functions reads accounts, getUserById?"
    assert 0.2 < (await answer(database, filled, text)).evidence.identifiers < 0.75


@pytest.mark.parametrize(
    "text", ["which accounts were closed", "Error", "the limit of a cost", "it"]
)
async def test_plain_words_are_no_identifiers(
    database: Database, filled: Collection, text: str
) -> None:
    assert (await answer(database, filled, text)).evidence.identifiers == 0


async def test_coverage_is_what_the_best_row_has_of_the_query(
    database: Database, filled: Collection
) -> None:
    held = await answer(database, filled, "closed accounts C2065")
    total = sum(held.weights.values())
    assert held.evidence.coverage == pytest.approx(held.candidates[0].score / total)
    alone = await answer(database, filled, "C2065")
    assert alone.evidence.identifiers == 1
    assert alone.evidence.coverage > held.evidence.coverage > 0.4
    assert (await answer(database, filled, "C9999")).evidence == NO_EVIDENCE
