"""A document is found by the words of its title, whichever way it got it."""

import pytest
from support.hashed_embedder import HashedEmbedder
from support.indexing import column, ingest, make_collection, rows, working

from service.db.candidates import CandidateQuery
from service.db.pool import Database
from service.indexing import packing
from service.indexing.packing import pack_if_grown
from service.models import Collection
from service.search import lexical, statistics
from service.search.lexical import CorpusCache, lexical_leg
from service.search.packed import PackedIndex
from service.search.request import Query, SearchRequest, plan_search
from service.search.statistics import StatisticsCache

TEXT = "\n\n".join(f"Paragraph {n} speaks of topic {n} and of `Setup.exe` in it." for n in range(9))
LEXICAL = ("tsv", "length", "bm25")


async def found(database: Database, collection: Collection, text: str) -> list[str]:
    query = CandidateQuery(collection.generation.id, "both", None, 100, None)
    plan = plan_search(SearchRequest(Query(text=text), mode="text"), collection)
    corpus = CorpusCache(StatisticsCache(), PackedIndex())
    answer = await lexical_leg(database, corpus, plan, query)
    return sorted(one.chunk_id for one in answer.candidates)


async def test_every_record_is_found_by_the_title(database: Database, dsn: str) -> None:
    collection = await make_collection(database, language="english")
    document = {"doc_id": "a", "text": TEXT, "title": "Compiler Error C2065", "summary": "Short."}
    async with working(database, dsn, HashedEmbedder()):
        await ingest(database, collection, document, {"doc_id": "b", "text": "Errors of others."})
    records = await rows(database, collection, "a")
    assert len(records) > 3
    assert await found(database, collection, "c2065") == sorted(column(records, "chunk_id"))
    assert await found(database, collection, "paragraph 3 compilers")
    assert "C2065" not in "".join(column(records, "text"))


async def test_a_word_of_the_title_counts_twice(database: Database, dsn: str) -> None:
    collection = await make_collection(database, provider="none", model=None, dim=None)
    async with working(database, dsn, None):
        await ingest(database, collection, {"doc_id": "a", "text": "one two", "title": "one"})
    (row,) = await rows(database, collection, "a")
    assert row["length"] == 4
    async with database.administer() as connection:
        places = "SELECT cardinality(positions) FROM unnest($1::text::tsvector) WHERE lexeme = $2"
        assert await connection.fetchval(places, row["tsv"], "one") == 3
        assert await connection.fetchval(places, row["tsv"], "two") == 1


@pytest.mark.parametrize("title", ["Kernel panic in Setup.exe", None])
async def test_another_title_is_the_same_as_if_it_had_been_there_from_the_start(
    database: Database, dsn: str, title: str | None
) -> None:
    collection = await make_collection(database, language="english")
    embedder = HashedEmbedder()
    changed = {"doc_id": "a", "text": TEXT, "title": title, "summary": "Short."}
    async with working(database, dsn, embedder):
        await ingest(database, collection, {**changed, "title": "Compiler Error C2065"})
        before = await rows(database, collection, "a")
        job = await ingest(database, collection, changed)
        after = await rows(database, collection, "a")
        await ingest(database, collection, {**changed, "doc_id": "fresh"})
    fresh = await rows(database, collection, "fresh")
    assert job.usage.get("embedding_tokens", 0) == 0
    assert [row["embedding"] for row in after] == [row["embedding"] for row in before]
    assert set(column(after, "id")).isdisjoint(column(before, "id"))
    for one, other in zip(after, fresh, strict=True):
        assert [one[name] for name in LEXICAL] == [other[name] for name in LEXICAL]
    assert await found(database, collection, "c2065") == []


async def test_an_unchanged_title_leaves_rows_alone(database: Database, dsn: str) -> None:
    collection = await make_collection(database, provider="none", model=None, dim=None)
    document = {"doc_id": "a", "text": TEXT, "title": "Compiler"}
    async with working(database, dsn, None):
        await ingest(database, collection, document)
        before = await rows(database, collection, "a")
        await ingest(database, collection, document)
    assert column(await rows(database, collection, "a"), "version") == column(before, "version")


async def test_an_upsert_with_a_title_renames_the_chunks_it_does_not_speak_of(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, provider="none", model=None, dim=None)
    async with working(database, dsn, None):
        chunks = [{"id": "one", "text": "first"}, {"id": "two", "text": "second"}]
        await ingest(database, collection, {"doc_id": "a", "chunks": chunks, "title": "old"})
        new = {"doc_id": "a", "chunks": [{"id": "three", "text": "third"}], "title": "new"}
        await ingest(database, collection, new)
        assert await found(database, collection, "old") == []
        assert await found(database, collection, "new") == ["one", "three", "two"]
        untitled = {"doc_id": "a", "chunks": [{"id": "four", "text": "fourth"}]}
        await ingest(database, collection, untitled)
        assert await found(database, collection, "new") == ["four", "one", "three", "two"]
        assert await found(database, collection, "first") == ["one"]


async def test_packed_postings_follow_a_title(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (packing, "FRESH_ROWS", 20),
        (lexical, "EXACT_ROWS", 0),
        (statistics, "EXACT_ROWS", 0),
    ):
        monkeypatch.setattr(module, name, value)
    collection = await make_collection(database, provider="none", model=None, dim=None)
    documents = [{"doc_id": f"d{n}", "text": f"text {n}", "title": "old"} for n in range(40)]
    async with working(database, dsn, None):
        await ingest(database, collection, *documents)
        await pack_if_grown(database, collection.generation)
        assert len(await found(database, collection, "old")) == 40
        await ingest(database, collection, {**documents[7], "title": "renamed"})
    assert await found(database, collection, "renamed") == ["d7::0"]
    assert "d7::0" not in await found(database, collection, "old")
