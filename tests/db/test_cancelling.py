"""A job that takes documents in ends early: what is indexed stays, what waits is given up."""

import asyncio
from collections.abc import Sequence

import pytest
from support.hashed_embedder import HashedEmbedder
from support.indexing import column, finished, ingest, make_collection, rows, submit, working

from service.db.jobs import list_jobs
from service.db.pool import Database
from service.errors import ConflictError, NotFoundError
from service.indexing.cancelling import cancel_job
from service.indexing.waiting import wait_for_job
from service.providers.base import EmbeddingBatch


class WaitingEmbedder(HashedEmbedder):
    """Tells when it is asked, and answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.let = asyncio.Event(), asyncio.Event()
        super().__init__(hang=self.let)

    async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
        self.asked.set()
        return await super().embed_documents(texts)


async def test_what_waits_is_given_up_and_what_is_visible_stays(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        await ingest(database, collection, {"doc_id": "a", "text": "the first version"})
    job_id = await submit(
        database,
        collection,
        {"doc_id": "a", "text": "the second version"},
        {"doc_id": "b", "text": "never seen"},
    )
    await cancel_job(database, collection, job_id, may_reindex=False)
    job = await wait_for_job(database, collection, job_id, seconds=0)
    assert job.status == "cancelled"
    assert (job.counts.indexed, job.counts.failed, job.counts.superseded) == (0, 0, 2)
    with pytest.raises(ConflictError):
        await cancel_job(database, collection, job_id, may_reindex=False)
    async with database.administer() as connection:
        documents = await connection.fetch(
            "SELECT doc_id, status, failure_reason FROM braid.documents ORDER BY doc_id"
        )
    assert [tuple(row) for row in documents] == [
        ("a", "ready", None),
        ("b", "error", "its job was cancelled before it was indexed"),
    ]
    async with working(database, dsn, HashedEmbedder()):
        await ingest(database, collection, {"doc_id": "c", "text": "another job goes on"})
        await ingest(database, collection, {"doc_id": "b", "text": "sent anew"})
    assert column(await rows(database, collection, "a"), "text") == ["the first version"]
    assert column(await rows(database, collection, "b"), "text") == ["sent anew"]


async def test_a_batch_that_is_at_work_writes_nothing_once_its_job_is_cancelled(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    embedder = WaitingEmbedder()
    async with working(database, dsn, embedder):
        job_id = await submit(database, collection, {"doc_id": "a", "text": "some words"})
        await embedder.asked.wait()
        await cancel_job(database, collection, job_id, may_reindex=False)
        embedder.let.set()
        after = await submit(database, collection, {"doc_id": "b", "text": "other words"})
        assert (await finished(database, collection, after)).counts.indexed == 1
    job = await wait_for_job(database, collection, job_id, seconds=0)
    assert (job.status, job.counts.superseded) == ("cancelled", 1)
    assert await rows(database, collection, "a") == []


async def test_an_unknown_job_is_not_found_and_one_that_is_over_stays(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    with pytest.raises(NotFoundError):
        await cancel_job(database, collection, 999, may_reindex=True)
    async with working(database, dsn, HashedEmbedder()):
        job = await ingest(database, collection, {"doc_id": "a", "text": "words"})
    with pytest.raises(ConflictError):
        await cancel_job(database, collection, job.job_id, may_reindex=True)
    waiting = await submit(database, collection, {"doc_id": "b", "text": "words"})
    async with database.write(collection.team_id) as connection:
        for status, ids in (("done", [job.job_id]), ("pending", [waiting]), ("error", [])):
            found, total = await list_jobs(
                connection, collection.id, status=status, limit=10, offset=0
            )
            assert ([one.job_id for one in found], total) == (ids, len(ids))
