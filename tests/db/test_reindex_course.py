"""The course of a re-index: pauses, ends, failures, and who else is at work."""

import asyncio
from typing import Any

import pytest
from support.hashed_embedder import HashedEmbedder
from support.indexing import (
    TEAM,
    column,
    eventually,
    finished,
    ingest,
    make_collection,
    rows,
    submit,
    working,
)
from support.reindexing import current, job_of, reindexed, start

from service.db.catalog import describe_collections
from service.db.pool import Database
from service.errors import ConflictError, NotFoundError, ProviderError
from service.indexing import rebuild
from service.indexing.carrying import NOT_EMBEDDABLE
from service.indexing.editing import delete_document
from service.indexing.reindexing import (
    cancel_reindex,
    pause_reindex,
    resume_reindex,
    start_rollback,
)
from service.models import Collection

OTHER_MODEL: dict[str, Any] = {"model": "other", "dim": 32}
STATES = "SELECT state FROM braid.generations WHERE collection_id = $1 ORDER BY id"


class Unable(HashedEmbedder):
    """Refuses texts that hold a word."""

    async def embed_documents(self, texts: Any) -> Any:
        if any("refused" in text for text in texts):
            raise ProviderError("the model refuses this text")
        return await super().embed_documents(texts)


def other_model() -> HashedEmbedder:
    return HashedEmbedder(dim=32, model="other")


def texts(count: int) -> list[dict[str, Any]]:
    return [{"doc_id": f"d{at:03}", "text": f"text number {at}"} for at in range(count)]


async def filled(database: Database, dsn: str, count: int) -> Collection:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        await ingest(database, collection, *texts(count))
    return await current(database, collection)


async def states(database: Database, collection: Collection) -> list[str]:
    async with database.administer() as connection:
        return [row["state"] for row in await connection.fetch(STATES, collection.id)]


async def left_the_queue(database: Database) -> None:
    async def empty() -> bool:
        async with database.administer() as connection:
            return await connection.fetchval("SELECT count(*) = 0 FROM braid.pgqueuer") is True

    await eventually(empty)


async def test_a_paused_reindex_rests_and_goes_on_where_it_was(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "FIRST_ROWS", 4)
    monkeypatch.setattr(rebuild, "MOST_ROWS", 4)
    collection = await filled(database, dsn, 40)
    gate = asyncio.Event()
    gate.set()
    embedder = HashedEmbedder(dim=32, model="other", hang=gate)
    job_id = await start(database, collection, embedder, **OTHER_MODEL)

    async def some_are_done() -> bool:
        return (await job_of(database, collection, job_id)).counts.indexed >= 8

    async with working(database, dsn, embedder):
        await eventually(some_are_done)
        gate.clear()
        await pause_reindex(database, collection, job_id)
        gate.set()
        await left_the_queue(database)
        paused = await job_of(database, collection, job_id)
        assert paused.status == "paused"
        assert 8 <= paused.counts.indexed < 40
        assert await current(database, collection) == collection
        with pytest.raises(ConflictError):
            await pause_reindex(database, collection, job_id)
        await resume_reindex(database, collection, job_id)
        job = await finished(database, collection, job_id)
    assert (job.status, job.counts.indexed) == ("done", 40)
    # What was in work when the pause came was embedded twice, nothing else.
    assert len(set(embedder.documents)) == 40
    assert len(embedder.documents) <= 44
    assert (await current(database, collection)).generation.model == "other"


async def test_a_cancelled_reindex_leaves_everything_as_it_was(
    database: Database, dsn: str
) -> None:
    collection = await filled(database, dsn, 5)
    gate = asyncio.Event()
    embedder = HashedEmbedder(dim=32, model="other", hang=gate)
    job_id = await start(database, collection, embedder, **OTHER_MODEL)
    with pytest.raises(ConflictError, match=f"under way, job {job_id}: "):
        await start(database, collection, embedder, **OTHER_MODEL)
    async with working(database, dsn, embedder):
        await cancel_reindex(database, collection, job_id)
        gate.set()
        await left_the_queue(database)
    assert (await job_of(database, collection, job_id)).status == "cancelled"
    assert await current(database, collection) == collection
    # The worker tidies up now and then.
    assert await states(database, collection) in (["active"], ["active", "discarded"])
    for refused in (cancel_reindex, resume_reindex, pause_reindex):
        with pytest.raises(ConflictError):
            await refused(database, collection, job_id)
        with pytest.raises(NotFoundError):
            await refused(database, collection, job_id + 1)
    # Another one may begin at once.
    async with working(database, dsn, other_model()):
        job, _ = await reindexed(database, collection, other_model(), **OTHER_MODEL)
    assert job.status == "done"


async def test_a_cancelled_rollback_can_be_begun_again(database: Database, dsn: str) -> None:
    collection = await filled(database, dsn, 3)
    async with working(database, dsn, HashedEmbedder()):
        _, after = await reindexed(database, collection, language="english")
    job_id = await start_rollback(database, after)
    await cancel_reindex(database, after, job_id)
    assert await states(database, collection) == ["retired", "active"]
    async with working(database, dsn, HashedEmbedder()):
        await finished(database, after, await start_rollback(database, after))
    assert (await current(database, collection)).generation.id == collection.generation.id


async def test_documents_that_fail_block_the_swap_and_are_named(
    database: Database, dsn: str
) -> None:
    collection = await filled(database, dsn, 10)
    async with working(database, dsn, HashedEmbedder()):
        await ingest(
            database,
            collection,
            {"doc_id": "bad", "text": "this text is refused"},
            {"doc_id": "mute", "chunks": [{"id": "c", "vector": [1.0] * 64}]},
            {"doc_id": "worse", "text": "refused as well"},
        )
    embedder = Unable(dim=32, model="other")
    async with working(database, dsn, embedder):
        job_id = await start(database, collection, embedder, **OTHER_MODEL)
        failed = await finished(database, collection, job_id)
        assert failed.status == "error"
        assert failed.error is not None
        assert failed.error.startswith("documents that could not be carried over: 3, document bad")
        assert {one.doc_id: one.reason for one in failed.failures} == {
            "bad": "the model refuses this text",
            "worse": "the model refuses this text",
            "mute": NOT_EMBEDDABLE.format("c"),
        }
        assert (failed.counts.indexed, failed.counts.failed) == (10, 3)
        assert (await current(database, collection)).generation.id == collection.generation.id
        # One is deleted, one is sent anew, one is tried again: only these are worked on.
        await delete_document(database, collection, "mute")
        await ingest(database, collection, {"doc_id": "worse", "text": "a fine text"})
        embedder.documents.clear()
        await resume_reindex(database, collection, job_id)
        still = await finished(database, collection, job_id)
        assert (still.status, [one.doc_id for one in still.failures]) == ("error", ["bad"])
        assert embedder.documents == ["a fine text"]
        await delete_document(database, collection, "bad")
        await resume_reindex(database, collection, job_id)
        done = await finished(database, collection, job_id)
    after = await current(database, collection)
    assert (done.status, done.error, done.failures) == ("done", None, [])
    assert after.generation.model == "other"
    assert column(await rows(database, after, "worse"), "text") == ["a fine text"]


async def test_an_embedder_that_does_not_answer_is_waited_for(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "PROVIDER_SECONDS", 0.1)
    collection = await filled(database, dsn, 3)
    embedder = other_model()
    embedder.fail_with = ProviderError("no answer", transient=True)
    job_id = await start(database, collection, embedder, **OTHER_MODEL)

    async def waits() -> bool:
        return (await job_of(database, collection, job_id)).error is not None

    async with working(database, dsn, embedder):
        await eventually(waits)
        assert (await job_of(database, collection, job_id)).error == (
            "waiting for the provider: no answer"
        )
        embedder.fail_with = None
        job = await finished(database, collection, job_id)
    assert (job.status, job.counts.indexed, job.error) == ("done", 3, None)


async def test_documents_do_not_wait_for_a_reindex(database: Database, dsn: str) -> None:
    collection = await filled(database, dsn, 3)
    gate = asyncio.Event()
    embedder = HashedEmbedder(dim=32, model="other", hang=gate)
    other = await make_collection(database, "other", provider="none", model=None, dim=None)
    jobs = [await start(database, collection, embedder, **OTHER_MODEL)]
    async with working(database, dsn, embedder, concurrency=2):
        await ingest(database, other, *texts(3))
        assert (await job_of(database, collection, jobs[0])).status != "done"
        gate.set()
        await finished(database, collection, jobs[0])


async def test_a_version_for_the_old_model_fails_by_name_after_the_swap(
    database: Database, dsn: str
) -> None:
    """It was checked when it was accepted, but for the generation of that moment."""
    collection = await filled(database, dsn, 1)
    own = {"doc_id": "own", "chunks": [{"id": "c", "text": "t", "vector": [1.0] * 64}]}
    embedder = other_model()
    async with working(database, dsn, embedder):
        job_id = await start(database, collection, embedder, **OTHER_MODEL)
        await finished(database, collection, job_id)
    late = await submit(database, collection, own)
    async with working(database, dsn, embedder):
        job = await finished(database, collection, late)
    assert [one.reason for one in job.failures] == [
        "the vector of chunk 0 has 64 dimensions, the collection has 32"
    ]


async def test_chunks_that_a_waiting_version_replaces_are_counted_as_stale(
    database: Database, dsn: str
) -> None:
    collection = await filled(database, dsn, 3)

    async def stale() -> int:
        async with database.administer() as connection:
            (record,) = await describe_collections(connection, TEAM, only=[collection.id])
        return record.stale_chunks

    assert await stale() == 0
    await submit(
        database, collection, {"doc_id": "d001", "text": "newer"}, {"doc_id": "e", "text": "new"}
    )
    assert await stale() == 1
    async with working(database, dsn, HashedEmbedder()):
        await ingest(database, collection, {"doc_id": "last", "text": "t"})
    assert await stale() == 0
