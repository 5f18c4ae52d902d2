"""What a deleted collection leaves goes bit by bit, and no search waits for it."""

import asyncio

import pytest
from support.hashed_embedder import HashedEmbedder
from support.indexing import ingest, make_collection, submit, working
from support.rows import stored_collection

from service.db import partitions
from service.db.catalog import delete_collection, lock_collection
from service.db.disposal import remove_leftovers, remove_old_jobs
from service.db.partitions import drop_orphan_partitions
from service.db.pool import Connection, Database
from service.models import Collection

COUNT = "SELECT count(*) FROM braid.searchable WHERE generation_id = $1"
TABLES = "SELECT count(*) FROM pg_class WHERE relname ~ '^chunks_[0-9]+$' AND relkind = 'r'"
LEFT = {
    "documents": "SELECT count(*) FROM braid.documents",
    "jobs": "SELECT count(*) FROM braid.jobs",
    "ingests": "SELECT count(*) FROM braid.ingests",
    "generations": "SELECT count(*) FROM braid.generations",
    "collections": "SELECT count(*) FROM braid.collections",
    "remembered": "SELECT count(*) FROM braid.deleted_collections",
}


async def delete(database: Database, collection: Collection) -> None:
    async with database.administer() as connection:
        await lock_collection(connection, collection.id)
        await delete_collection(connection, collection.id)


async def tables(connection: Connection) -> int:
    count: int = await connection.fetchval(TABLES)
    return count


async def left(database: Database) -> dict[str, int]:
    async with database.administer() as connection:
        return {name: await connection.fetchval(count) for name, count in LEFT.items()}


async def test_no_search_waits_while_a_table_is_removed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "PATIENCE_SECONDS", 20)
    collection = await stored_collection(database, ["one", "two"])
    gone = await stored_collection(database, ["three"], name="gone")
    await delete(database, gone)
    async with database.read(1) as reading, reading.transaction():
        # Whoever reads any generation holds up the removal, which in turn holds up nobody.
        assert await reading.fetchval(COUNT, collection.generation.id) == 2
        dropping = asyncio.create_task(drop_orphan_partitions(database))
        for _ in range(50):
            async with asyncio.timeout(5), database.read(1) as another:
                assert await another.fetchval(COUNT, collection.generation.id) == 2
            await asyncio.sleep(0.005)
        async with asyncio.timeout(5):
            await make_collection(database, "new")
        assert not dropping.done()
    assert await dropping == []
    async with database.administer() as connection:
        assert await tables(connection) == 2


async def test_a_removal_that_was_given_up_is_taken_up_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "PATIENCE_SECONDS", 0.2)
    collection = await stored_collection(database, ["one", "two"])
    others = [await stored_collection(database, ["x"], name=name) for name in ("a", "b")]
    for other in others:
        await delete(database, other)
    async with database.read(1) as reading, reading.transaction():
        assert await reading.fetchval(COUNT, collection.generation.id) == 2
        assert await drop_orphan_partitions(database) == [one.generation.id for one in others]
    async with database.administer() as connection:
        assert await tables(connection) == 3
    assert await drop_orphan_partitions(database) == []
    async with database.administer() as connection:
        assert await tables(connection) == 1


async def test_everything_that_belonged_to_a_collection_goes(database: Database, dsn: str) -> None:
    gone, stays = await make_collection(database, "gone"), await make_collection(database, "stays")
    given = [{"doc_id": f"d{at}", "chunks": [{"id": "c", "text": "t"}]} for at in range(5)]
    async with working(database, dsn, None):
        for collection in (gone, stays):
            await ingest(database, collection, *given)
        everything = await left(database)
    await delete(database, gone)
    assert (await left(database))["collections"] == 1
    await asyncio.gather(*(remove_leftovers(database) for _ in range(2)))
    # The generation's row stays for as long as its table.
    assert (await left(database))["generations"] == 2
    await drop_orphan_partitions(database)
    await remove_leftovers(database)
    assert await left(database) == {
        **{name: count // 2 for name, count in everything.items()},
        "remembered": 0,
    }


async def test_several_processes_may_remove_the_same_tables(database: Database) -> None:
    for name in ("a", "b", "c"):
        await delete(database, await stored_collection(database, ["x"], name=name))
    async with database.administer() as connection:
        assert await tables(connection) == 3
    await asyncio.gather(*(drop_orphan_partitions(database) for _ in range(4)))
    await drop_orphan_partitions(database)
    async with database.administer() as connection:
        assert await tables(connection) == 0


async def test_jobs_that_ended_long_ago_go_and_take_no_document_along(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        old = await ingest(
            database, collection, {"doc_id": "a", "text": "words"}, {"doc_id": "b", "text": " "}
        )
        young = await ingest(database, collection, {"doc_id": "c", "text": "words"})
    waiting = await submit(database, collection, {"doc_id": "a", "text": "other words"})
    async with database.administer() as connection:
        await connection.execute(
            "UPDATE braid.jobs SET updated_at = now() - interval '2 days' WHERE id <> $1",
            young.job_id,
        )
    await remove_old_jobs(database, 86_400)
    async with database.administer() as connection:
        jobs = await connection.fetch("SELECT id FROM braid.jobs ORDER BY id")
        documents = await connection.fetch(
            "SELECT doc_id, status FROM braid.documents ORDER BY doc_id"
        )
    assert (old.counts.indexed, old.counts.failed) == (1, 1)
    assert [row["id"] for row in jobs] == [young.job_id, waiting]
    assert [tuple(row) for row in documents] == [("a", "ready"), ("b", "error"), ("c", "ready")]
