"""Several versions of one document on their way: the order holds, and what is outdated goes."""

import asyncio

import pytest
from support.hashed_embedder import HashedEmbedder
from support.indexing import (
    column,
    eventually,
    finished,
    ingest,
    make_collection,
    rows,
    submit,
    working,
)

from service.db.catalog import delete_collection
from service.db.disposal import remove_leftovers
from service.db.jobs import get_job
from service.db.pool import Database
from service.errors import NotFoundError
from service.indexing.editing import delete_document, patch_metadata


async def test_upserts_of_one_document_are_applied_in_the_order_they_came(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    jobs = [
        await submit(
            database, collection, {"doc_id": "a", "chunks": [{"id": "0", "text": f"version {n}"}]}
        )
        for n in range(12)
    ]
    async with working(database, dsn, HashedEmbedder(), concurrency=4):
        for job_id in jobs:
            job = await finished(database, collection, job_id)
            assert (job.status, job.counts.indexed) == ("done", 1)
    assert column(await rows(database, collection, "a"), "text") == ["version 11"]


async def test_the_order_holds_between_two_workers(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    async with (
        working(database, dsn, HashedEmbedder()),
        working(database, dsn, HashedEmbedder()),
    ):
        jobs = [
            await submit(
                database,
                collection,
                *({"doc_id": f"d{d}", "chunks": [{"id": "0", "text": f"v{n}"}]} for d in range(3)),
            )
            for n in range(8)
        ]
        for job_id in jobs:
            assert (await finished(database, collection, job_id)).counts.indexed == 3
    for d in range(3):
        assert column(await rows(database, collection, f"d{d}"), "text") == ["v7"]


async def test_a_new_version_of_the_whole_makes_waiting_ones_pointless(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    old = await submit(
        database, collection, {"doc_id": "a", "text": "old"}, {"doc_id": "b", "text": "kept"}
    )
    new = await submit(database, collection, {"doc_id": "a", "text": "new"})
    embedder = HashedEmbedder()
    async with working(database, dsn, embedder):
        first = await finished(database, collection, old)
        second = await finished(database, collection, new)
    assert (first.status, first.counts.indexed, first.counts.superseded) == ("done", 1, 1)
    assert (second.status, second.counts.indexed, second.counts.superseded) == ("done", 1, 0)
    assert column(await rows(database, collection, "a"), "text") == ["new"]
    assert sorted(embedder.documents) == ["kept", "new"]


async def test_a_version_that_is_being_embedded_gives_way_to_a_newer_one(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    gate = asyncio.Event()
    embedder = HashedEmbedder(hang=gate)
    async with working(database, dsn, embedder):
        old = await submit(database, collection, {"doc_id": "a", "text": "old"})
        await _begun(database, 1)
        new = await submit(database, collection, {"doc_id": "a", "text": "new"})
        gate.set()
        first = await finished(database, collection, old)
        await finished(database, collection, new)
    assert first.counts.superseded == 1
    assert column(await rows(database, collection, "a"), "text") == ["new"]


async def test_a_deleted_document_does_not_come_back(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    gate = asyncio.Event()
    async with working(database, dsn, HashedEmbedder(hang=gate)):
        at_work = await submit(database, collection, {"doc_id": "a", "text": "old"})
        await _begun(database, 1)
        waiting = await submit(
            database, collection, {"doc_id": "a", "chunks": [{"id": "0", "text": "more"}]}
        )
        assert await delete_document(database, collection, "a") == 0
        gate.set()
        for job_id in (at_work, waiting):
            job = await finished(database, collection, job_id)
            assert (job.status, job.counts.superseded) == ("done", 1)
        assert await rows(database, collection, "a") == []
        with pytest.raises(NotFoundError):
            await delete_document(database, collection, "a")
        await ingest(database, collection, {"doc_id": "a", "text": "again"})
    assert column(await rows(database, collection, "a"), "text") == ["again"]


async def test_deleting_removes_every_record(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        await ingest(
            database,
            collection,
            {"doc_id": "a", "chunks": [{"id": "0", "text": "t"}], "summary": "s"},
            {"doc_id": "b", "text": "t"},
        )
        assert await delete_document(database, collection, "a") == 2
    assert await rows(database, collection, "a") == []
    assert len(await rows(database, collection, "b")) == 1


async def test_a_patch_changes_metadata_and_nothing_else(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    embedder = HashedEmbedder()
    chunks = [{"id": f"c{n}", "text": f"t{n}", "metadata": {"own": n}} for n in range(2)]
    async with working(database, dsn, embedder):
        await ingest(
            database,
            collection,
            {"doc_id": "a", "chunks": chunks, "summary": "s", "metadata": {"v": 1, "x": {"y": 1}}},
        )
        before, embedded = await rows(database, collection, "a"), len(embedder.documents)
        patch = {"v": None, "x": {"z": 2}, "own": 7}
        assert await patch_metadata(database, collection, "a", patch) == 3
    after = await rows(database, collection, "a")
    assert set(column(after, "metadata")) == {'{"x": {"y": 1, "z": 2}, "own": 7}'}
    for name in ("id", "text", "content_hash", "created_at", "position"):
        assert column(after, name) == column(before, name)
    assert len(embedder.documents) == embedded


async def test_a_patch_may_leave_the_chunks_alone(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        await ingest(
            database,
            collection,
            {"doc_id": "a", "chunks": [{"id": "0", "text": "t"}], "summary": "s"},
        )
        patched = await patch_metadata(database, collection, "a", {"v": 1}, apply_to_chunks=False)
    assert patched == 1
    assert column(await rows(database, collection, "a"), "metadata") == ["{}", '{"v": 1}']


async def test_a_patch_also_reaches_the_version_that_waits(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    gate = asyncio.Event()
    async with working(database, dsn, HashedEmbedder(hang=gate)):
        job_id = await submit(
            database,
            collection,
            {"doc_id": "a", "text": "t", "metadata": {"v": 1}},
            {"doc_id": "b", "chunks": [{"id": "0", "text": "t", "metadata": {"v": 1}}]},
            {"doc_id": "c", "text": "t"},
        )
        await _begun(database, 3)
        assert await patch_metadata(database, collection, "a", {"v": 2}) == 0
        assert await patch_metadata(database, collection, "b", {"v": 2}) == 0
        assert await patch_metadata(database, collection, "c", {"v": 2}) == 0
        gate.set()
        job = await finished(database, collection, job_id)
    assert job.counts.indexed == 3
    for doc_id in "abc":
        assert column(await rows(database, collection, doc_id), "metadata") == ['{"v": 2}']


async def test_many_writers_of_the_same_documents_never_block_each_other_for_good(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    names = [f"d{n}" for n in range(6)]

    async def post(turn: int) -> None:
        order = names if turn % 2 else names[::-1]
        await submit(
            database,
            collection,
            *({"doc_id": name, "text": f"turn {turn}"} for name in order),
            mode="replace" if turn % 3 else "upsert",
        )

    async def touch(name: str) -> None:
        try:
            await patch_metadata(database, collection, name, {"touched": True})
            await delete_document(database, collection, name)
        except NotFoundError:
            pass

    async with working(database, dsn, HashedEmbedder(), concurrency=3):
        async with asyncio.TaskGroup() as group:
            for turn in range(30):
                group.create_task(post(turn))
                if turn % 5 == 0:
                    group.create_task(touch(names[turn % 6]))
        last = await submit(
            database, collection, *({"doc_id": name, "text": "the last"} for name in names)
        )
        for job_id in range(1, last + 1):
            assert (await finished(database, collection, job_id)).status == "done"
    for name in names:
        assert column(await rows(database, collection, name), "text") == ["the last"]


async def test_deleting_a_collection_ends_its_jobs(database: Database, dsn: str) -> None:
    collection, other = await make_collection(database), await make_collection(database, "other")
    gate = asyncio.Event()
    async with working(database, dsn, HashedEmbedder(hang=gate)):
        job_id = await submit(database, collection, {"doc_id": "a", "text": "t"})
        await _begun(database, 1)
        async with database.administer() as connection:
            await delete_collection(connection, collection.id)
        gate.set()
        await ingest(database, other, {"doc_id": "a", "text": "t"})
        await eventually(lambda: _queue_is_empty(database))
    await remove_leftovers(database)
    async with database.write(collection.team_id) as connection:
        assert await get_job(connection, collection.id, job_id) is None


async def _begun(database: Database, ingests: int) -> None:
    async def begun() -> bool:
        async with database.administer() as connection:
            count: int = await connection.fetchval(
                "SELECT count(*) FROM braid.ingests WHERE attempts > 0"
            )
        return count == ingests

    await eventually(begun)


async def _queue_is_empty(database: Database) -> bool:
    async with database.administer() as connection:
        count: int = await connection.fetchval("SELECT count(*) FROM braid.pgqueuer")
    return count == 0
