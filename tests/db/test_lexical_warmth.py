"""No query waits for what is read once: statistics, segments, stop words, common lists."""

import asyncio
from typing import Any

import pytest
from support.rows import stored_collection

from service.db.candidates import CandidateQuery
from service.db.pool import Database
from service.indexing import packing
from service.indexing.packing import pack_if_grown
from service.models import Collection
from service.search import lexical, statistics, warm
from service.search.lexical import CorpusCache, lexical_leg
from service.search.packed import PackedIndex
from service.search.request import Query, SearchRequest, plan_search
from service.search.statistics import LARGE_SECONDS, StatisticsCache
from service.search.warm import warm_up

TEXTS = [f"common words and one rare{number % 50} of many" for number in range(300)]


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def collection(database: Database, monkeypatch: pytest.MonkeyPatch) -> Collection:
    monkeypatch.setattr(packing, "FRESH_ROWS", 40)
    monkeypatch.setattr(lexical, "EXACT_ROWS", 0)
    monkeypatch.setattr(statistics, "EXACT_ROWS", 0)
    stored = await stored_collection(database, TEXTS)
    assert await pack_if_grown(database, stored.generation)
    return stored


async def ask(database: Database, corpus: CorpusCache, collection: Collection, text: str) -> str:
    plan = plan_search(SearchRequest(Query(text=text), mode="text"), collection)
    query = CandidateQuery(collection.generation.id, "chunks", None, 10, None)
    return (await lexical_leg(database, corpus, plan, query)).path


def count_statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent to the database from now on."""
    import asyncpg  # noqa: PLC0415

    sent: list[str] = []
    execute = asyncpg.Connection._execute

    async def counted(self: Any, query: str, *arguments: Any, **options: Any) -> Any:
        sent.append(query)
        return await execute(self, query, *arguments, **options)

    monkeypatch.setattr(asyncpg.Connection, "_execute", counted)
    return sent


async def test_a_query_asked_again_is_one_statement(
    database: Database, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = CorpusCache(StatisticsCache(Clock()), PackedIndex(Clock()))
    assert await ask(database, corpus, collection, "common rare7") == "packed"
    sent = count_statements(monkeypatch)
    assert await ask(database, corpus, collection, "common rare7") == "packed"
    assert len(sent) == 1


async def test_the_first_query_after_a_start_reads_its_rare_words_only(
    database: Database, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "HOT_LEXEMES", 6)
    corpus = CorpusCache(StatisticsCache(Clock()), PackedIndex(Clock()))
    await warm_up(database, corpus)
    sent = count_statements(monkeypatch)
    assert await ask(database, corpus, collection, "common words of many") == "packed"
    assert len(sent) == 1
    sent.clear()
    assert await ask(database, corpus, collection, "common rare7") == "packed"
    assert len(sent) == 3  # the lexeme of a word, its list, and the rows


async def test_a_generation_that_is_gone_does_not_stop_the_warm_up(
    database: Database, collection: Collection
) -> None:
    async with database.administer() as connection:
        await connection.execute(f"DROP TABLE braid.chunks_{collection.generation.id:d}")
    await warm_up(database, CorpusCache(StatisticsCache(), PackedIndex()))


async def test_a_query_uses_what_is_known_while_it_is_renewed(
    database: Database, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    cache = StatisticsCache(clock)
    known = await cache.of(database, collection.generation)
    read = statistics.lexical_statistics
    renewed = asyncio.Event()

    async def failing_once(*arguments: Any) -> Any:
        if not renewed.is_set():
            renewed.set()
            raise RuntimeError("the database is away")
        return await read(*arguments)

    monkeypatch.setattr(statistics, "lexical_statistics", failing_once)
    clock.now += LARGE_SECONDS
    for _ in range(2):
        assert await cache.of(database, collection.generation) is known
        await asyncio.gather(*cache._renewals.values())
    after = await cache.of(database, collection.generation)
    assert after is not known
    assert after == known
