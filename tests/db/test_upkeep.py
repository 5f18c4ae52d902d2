"""The average length follows the rows, and BM25 of every row follows the average."""

import asyncio
from typing import Any

import pytest
from support.indexing import ingest, make_collection, rows, submit, working

from service.db import upkeep
from service.db.pool import Connection, Database
from service.db.upkeep import analyze_if_grown, refresh_average_length
from service.models import Collection

CONSISTENT = """
SELECT bool_and(c.bm25 = braid.bm25_document(c.tsv, c.length, g.average_length, g.k1, g.b))
FROM braid.generations g JOIN braid.chunks c ON c.generation_id = g.id WHERE g.id = $1
"""
AVERAGES = """
SELECT g.average_length, avg(c.length)::float8
FROM braid.generations g JOIN braid.chunks c ON c.generation_id = g.id WHERE g.id = $1
GROUP BY g.id
"""


async def plain_collection(database: Database) -> Collection:
    return await make_collection(database, provider="none", model=None, dim=None)


def document(number: int, chunks: int, words: int) -> dict[str, Any]:
    text = " ".join(f"w{number}x{n}" for n in range(words))
    return {"doc_id": f"d{number}", "chunks": [{"id": str(n), "text": text} for n in range(chunks)]}


async def is_consistent(database: Database, collection: Collection) -> bool:
    async with database.administer() as connection:
        consistent: bool = await connection.fetchval(CONSISTENT, collection.generation.id)
    return consistent


async def averages(database: Database, collection: Collection) -> tuple[float, float]:
    async with database.administer() as connection:
        row = await connection.fetchrow(AVERAGES, collection.generation.id)
    assert row is not None
    return row[0], row[1]


async def test_the_first_rows_set_the_average_before_they_are_written(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = await plain_collection(database)
    recomputed = []
    recompute = upkeep._recompute

    async def counting(*arguments: Any) -> None:
        recomputed.append(arguments)
        await recompute(*arguments)

    monkeypatch.setattr(upkeep, "_recompute", counting)
    async with working(database, dsn, None):
        await ingest(database, collection, document(0, 5, 30))
    in_use, real = await averages(database, collection)
    assert in_use == real == pytest.approx(30)
    assert recomputed == []
    assert await is_consistent(database, collection)


async def test_rows_without_words_do_not_shorten_the_average(database: Database, dsn: str) -> None:
    collection = await make_collection(database, provider="none", model=None, dim=2)
    chunks = [{"id": "a", "text": "four words are here"}, {"id": "b", "vector": [1, 0]}]
    async with working(database, dsn, None):
        await ingest(database, collection, {"doc_id": "d", "chunks": chunks})
    async with database.administer() as connection:
        in_use = await connection.fetchval(
            "SELECT average_length FROM braid.generations WHERE id = $1", collection.generation.id
        )
    (row,) = [row for row in await rows(database, collection, "d") if row["chunk_id"] == "a"]
    assert in_use == row["length"]


async def test_a_small_drift_of_a_larger_generation_is_left(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "TOLERATED_DRIFT", {})
    collection = await plain_collection(database)
    async with working(database, dsn, None):
        await ingest(database, collection, document(0, 20, 30))
        before, _ = await averages(database, collection)
        await ingest(database, collection, document(1, 20, 34))
        in_use, real = await averages(database, collection)
        assert (in_use, real) == (before, pytest.approx(32))
        await ingest(database, collection, document(2, 20, 90))
    in_use, real = await averages(database, collection)
    assert in_use == real
    assert await is_consistent(database, collection)


async def test_a_large_generation_is_recomputed_in_batches_beside_writers(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "EXACT_ROWS", 8)
    monkeypatch.setattr(upkeep, "BATCH_ROWS", 3)
    monkeypatch.setattr(upkeep, "TOLERATED_DRIFT", {})
    monkeypatch.setattr(upkeep, "LARGE_DRIFT", 0.0)
    monkeypatch.setattr(upkeep, "LOADING_ROWS", 10**6)
    collection = await plain_collection(database)
    async with working(database, dsn, None, concurrency=3), working(database, dsn, None):
        jobs = [
            await submit(database, collection, document(n, 1 + n % 4, 10 + 7 * n))
            for n in range(25)
        ]
        async with asyncio.TaskGroup() as group:
            for n in range(25, 30):
                group.create_task(ingest(database, collection, document(n, 3, n)))
                group.create_task(ingest(database, collection, document(n - 20, 2, n)))
    assert jobs
    assert await is_consistent(database, collection)
    await refresh_average_length(database, collection.generation)
    in_use, real = await averages(database, collection)
    assert in_use == pytest.approx(real)
    assert await is_consistent(database, collection)


async def test_a_recomputation_that_stopped_half_way_is_done_again(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "EXACT_ROWS", 4)
    monkeypatch.setattr(upkeep, "BATCH_ROWS", 3)
    collection = await plain_collection(database)
    async with working(database, dsn, None):
        await ingest(database, collection, document(0, 20, 30))
    async with database.administer() as connection:
        await connection.execute("UPDATE braid.generations SET average_length = 60")

    class StoppedError(Exception):
        pass

    batches = 0
    write = Database.write

    def stopping(self: Database, team_id: int) -> Any:
        nonlocal batches
        batches += 1
        if batches == 4:
            raise StoppedError
        return write(self, team_id)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", stopping)
        with pytest.raises(StoppedError):
            await refresh_average_length(database, collection.generation)
    assert (await averages(database, collection))[0] == 60
    assert not await is_consistent(database, collection)
    assert await refresh_average_length(database, collection.generation)
    assert (await averages(database, collection))[0] == pytest.approx(30)
    assert await is_consistent(database, collection)


async def test_statistics_are_renewed_when_a_fifth_was_added(database: Database, dsn: str) -> None:
    collection = await plain_collection(database)
    generation_id = collection.generation.id
    async with working(database, dsn, None):
        await ingest(database, collection, document(0, 400, 30))
        assert not await analyze_if_grown(database, generation_id)
        await ingest(database, collection, document(1, 400, 30))
    async with database.administer() as connection:
        assert await _estimated(connection, generation_id) == 800
    assert not await analyze_if_grown(database, generation_id)
    assert not await analyze_if_grown(database, 10**9)


async def _estimated(connection: Connection, generation_id: int) -> int:
    estimate: int = await connection.fetchval(
        "SELECT reltuples::int FROM pg_class WHERE oid = $1::text::regclass",
        f"braid.chunks_{generation_id}",
    )
    return estimate
