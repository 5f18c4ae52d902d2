"""What indexing does when the embedder, the database or the worker itself fails."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
import stamina
from support.contextualizing import paragraphs
from support.hashed_embedder import HashedEmbedder
from support.indexing import (
    OneEmbedder,
    column,
    eventually,
    fetch,
    finished,
    ingest,
    make_collection,
    rows,
    submit,
    working,
)

from service.db.jobs import get_job
from service.db.pool import Database
from service.errors import ProviderError
from service.indexing import batch, job
from service.indexing.worker import Worker
from service.models import Collection
from service.providers.base import EmbeddingBatch


@pytest.fixture(autouse=True)
def _no_waiting_within_a_call() -> Iterator[None]:
    stamina.set_testing(True, attempts=1)
    yield
    stamina.set_testing(False)


class Picky(HashedEmbedder):
    """Raises an error for every batch that holds a certain word."""

    def __init__(self, word: str, error: BaseException) -> None:
        super().__init__()
        self.word = word
        self.error = error

    async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
        if any(self.word in text for text in texts):
            raise self.error
        return await super().embed_documents(texts)


async def ingests(database: Database) -> list[dict[str, Any]]:
    async with database.administer() as connection:
        return await fetch(connection, "SELECT * FROM braid.ingests ORDER BY id")


async def status_of(database: Database, collection: Collection, doc_id: str) -> tuple[str, Any]:
    async with database.administer() as connection:
        row = await connection.fetchrow(
            "SELECT status, failure_reason FROM braid.documents"
            " WHERE collection_id = $1 AND doc_id = $2",
            collection.id,
            doc_id,
        )
    assert row is not None
    return row["status"], row["failure_reason"]


async def test_a_passing_failure_is_waited_out_and_says_so(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    embedder = HashedEmbedder(fail_with=ProviderError("too busy", transient=True))
    async with working(database, dsn, embedder):
        job_id = await submit(database, collection, {"doc_id": "a", "text": "t"})

        async def waiting() -> bool:
            async with database.write(collection.team_id) as connection:
                found = await get_job(connection, collection.id, job_id)
            return found is not None and (found.status, found.error) == (
                "pending",
                "waiting for the embedder: too busy",
            )

        await eventually(waiting)
        assert [one["attempts"] for one in await ingests(database)] == [0]
        embedder.fail_with = None
        ended = await finished(database, collection, job_id)
    assert (ended.status, ended.error, ended.counts.indexed) == ("done", None, 1)


async def test_the_wait_that_the_provider_asks_for_is_kept(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    embedder = HashedEmbedder(fail_with=ProviderError("slow down", transient=True, retry_after=120))
    async with working(database, dsn, embedder):
        await submit(database, collection, {"doc_id": "a", "text": "t"})

        async def delay() -> float | None:
            async with database.administer() as connection:
                seconds: float | None = await connection.fetchval(
                    "SELECT extract(epoch FROM execute_after - updated)::float8"
                    " FROM braid.pgqueuer WHERE attempts > 0"
                )
            return seconds

        await eventually(delay)
        assert await delay() == pytest.approx(120, abs=1)


async def test_other_jobs_go_on_while_one_waits(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    error = ProviderError("slow down", transient=True, retry_after=120)
    async with working(database, dsn, Picky("stuck", error), concurrency=1):
        await submit(database, collection, {"doc_id": "a", "text": "stuck"})
        await ingest(database, collection, {"doc_id": "b", "text": "free"})
    assert column(await rows(database, collection, "b"), "text") == ["free"]


async def test_a_provider_that_never_answers_fails_the_documents_in_the_end(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "PATIENCE_SECONDS", 0.0)
    collection = await make_collection(database)
    embedder = HashedEmbedder(fail_with=ProviderError("nobody home", transient=True))
    async with working(database, dsn, embedder):
        ended = await ingest(database, collection, {"doc_id": "a", "text": "t"})
    assert (ended.status, ended.failures[0].reason) == ("error", "nobody home")


async def test_a_text_that_the_embedder_refuses_fails_its_document_only(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    texts = {f"d{n}": f"text {n}" for n in range(9)} | {"bad": "cursed text"}
    async with working(database, dsn, Picky("cursed", ProviderError("not this text"))):
        ended = await ingest(
            database, collection, *({"doc_id": key, "text": text} for key, text in texts.items())
        )
    assert (ended.status, ended.counts.indexed, ended.counts.failed) == ("done", 9, 1)
    assert [(one.doc_id, one.reason) for one in ended.failures] == [("bad", "not this text")]
    failed = [one for one in await ingests(database) if one["status"] == "error"]
    assert len(failed) == 1
    assert failed[0]["payload"] is not None


async def test_an_embedder_that_cannot_be_had_fails_every_document_with_the_reason(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    embedder = HashedEmbedder(fail_with=ProviderError("the key is not accepted"))
    async with working(database, dsn, embedder):
        ended = await ingest(
            database, collection, *({"doc_id": f"d{n}", "text": f"t {n}"} for n in range(3))
        )
    assert ended.status == "error"
    assert ended.error == "every document failed, the first because: the key is not accepted"
    assert await status_of(database, collection, "d2") == ("error", "the key is not accepted")


async def test_what_was_visible_stays_visible_when_a_new_version_fails(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    embedder = Picky("cursed", ProviderError("not this text"))
    async with working(database, dsn, embedder):
        await ingest(database, collection, {"doc_id": "a", "text": "old"})
        before = await rows(database, collection, "a")
        ended = await ingest(database, collection, {"doc_id": "a", "text": "cursed"})
        assert ended.status == "error"
        assert await rows(database, collection, "a") == before
        assert await status_of(database, collection, "a") == ("ready", "not this text")
        await ingest(database, collection, {"doc_id": "a", "text": "new"})
    assert await status_of(database, collection, "a") == ("ready", None)
    assert column(await rows(database, collection, "a"), "text") == ["new"]


async def test_a_document_that_breaks_the_planning_fails_alone(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = batch.plan_records

    def breaking(doc_id: str, *rest: Any) -> Any:
        if doc_id == "bad":
            raise RecursionError
        return plan(doc_id, *rest)

    monkeypatch.setattr(batch, "plan_records", breaking)
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        ended = await ingest(
            database, collection, {"doc_id": "bad", "text": "t"}, {"doc_id": "good", "text": "t"}
        )
    assert [(one.doc_id, one.reason) for one in ended.failures] == [
        ("bad", "internal error (RecursionError)")
    ]
    assert ended.counts.indexed == 1


async def test_rows_that_the_database_refuses_fail_their_document_only(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = batch.plan_records

    def out_of_bounds(doc_id: str, *rest: Any) -> Any:
        records = plan(doc_id, *rest)
        return [replace_position(one, -1) for one in records] if doc_id == "bad" else records

    def replace_position(record: Any, position: int) -> Any:
        return msgspec.structs.replace(record, position=position)

    monkeypatch.setattr(batch, "plan_records", out_of_bounds)
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        ended = await ingest(
            database,
            collection,
            {"doc_id": "bad", "text": "a"},
            {"doc_id": "good", "text": "b"},
            {"doc_id": "fine", "text": "c"},
        )
    assert [(one.doc_id, one.reason) for one in ended.failures] == [
        ("bad", "the database refused its chunks (23514)")
    ]
    assert (ended.counts.indexed, ended.usage["embedding_tokens"]) == (2, 3)


async def test_a_document_that_stops_the_worker_is_put_aside_and_the_others_are_not(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error outside everything that is caught stands for a crash: attempts stay counted."""
    monkeypatch.setattr(job, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(job, "LAST_RETRY_SECONDS", 0.01)
    collection = await make_collection(database)
    texts = {f"d{n}": f"text {n}" for n in range(20)} | {"poison": "poison"}
    async with working(database, dsn, Picky("poison", MemoryError()), lease_seconds=1):
        ended = await ingest(
            database, collection, *({"doc_id": key, "text": text} for key, text in texts.items())
        )
    assert (ended.status, ended.counts.indexed, ended.counts.failed) == ("done", 20, 1)
    assert [(one.doc_id, one.reason) for one in ended.failures] == [
        ("poison", "gave up: the worker stopped 12 times while it indexed this document")
    ]
    attempts = {one["attempts"] for one in await ingests(database) if one["status"] == "done"}
    assert max(attempts) <= 3


async def test_stopping_hands_jobs_back_at_once(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    embedder = HashedEmbedder(hang=asyncio.Event())
    async with working(database, dsn, embedder, grace_seconds=0.1):
        job_id = await submit(database, collection, {"doc_id": "a", "text": "t"})

        async def begun() -> bool:
            return any(one["attempts"] for one in await ingests(database))

        await eventually(begun)
    async with database.administer() as connection:
        queued = await fetch(connection, "SELECT status::text, payload FROM braid.pgqueuer")
    assert [one["status"] for one in queued] == ["queued"]
    async with working(database, dsn, HashedEmbedder()):
        ended = await finished(database, collection, job_id)
    assert ended.counts.indexed == 1


async def test_a_worker_that_is_cancelled_hands_its_jobs_back_too(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    slow = HashedEmbedder(hang=asyncio.Event())
    task = asyncio.create_task(Worker(database, dsn, OneEmbedder(slow), grace_seconds=0.1).run())
    job_id = await submit(database, collection, {"doc_id": "a", "text": "t"})

    async def begun() -> bool:
        return any(one["attempts"] for one in await ingests(database))

    await eventually(begun)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with working(database, dsn, HashedEmbedder()):
        ended = await finished(database, collection, job_id)
    assert ended.counts.indexed == 1


async def test_a_job_that_lost_its_place_in_the_queue_is_found_again(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    job_id = await submit(database, collection, {"doc_id": "a", "text": "t"})
    async with database.administer() as connection:
        await connection.execute("DELETE FROM braid.pgqueuer")
    async with working(database, dsn, HashedEmbedder()):
        ended = await finished(database, collection, job_id)
    assert ended.counts.indexed == 1


async def test_the_queue_leaves_nothing_behind(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        await ingest(database, collection, {"doc_id": "a", "text": "t"})
    async with database.administer() as connection:
        assert await connection.fetchval("SELECT count(*) FROM braid.pgqueuer") == 0
        assert [one["payload"] for one in await ingests(database)] == [None]


async def test_a_version_whose_embedding_fails_leaves_the_one_before_it_whole(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, chunk_overlap=0)
    first, second = paragraphs(10), paragraphs(4, version="second")
    async with working(database, dsn, embedder := HashedEmbedder()):
        await ingest(database, collection, {"doc_id": "a", "text": "\n\n".join(first)})
        before = await rows(database, collection, "a")
        embedder.fail_with = ProviderError("out of order", transient=True)
        job_id = await submit(database, collection, {"doc_id": "a", "text": "\n\n".join(second)})

        async def waiting() -> bool:
            async with database.write(collection.team_id) as connection:
                found = await get_job(connection, collection.id, job_id)
            return found is not None and found.error == "waiting for the embedder: out of order"

        await eventually(waiting)
        assert len(before) == 10
        assert await rows(database, collection, "a") == before
        embedder.fail_with = None
        ended = await finished(database, collection, job_id)
    after = await rows(database, collection, "a")
    assert (ended.status, [text.strip() for text in column(after, "text")]) == (
        "done",
        [text.strip() for text in second],
    )


async def test_vectors_made_before_a_failure_are_not_paid_for_again(
    database: Database, dsn: str
) -> None:
    class Once(HashedEmbedder):
        """The third call fails once."""

        calls = 0

        async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
            self.calls += 1
            if self.calls == 3:
                raise ProviderError("busy", transient=True, retry_after=11)
            return await super().embed_documents(texts)

    collection = await make_collection(database)
    texts = [f"text {at} of many" for at in range(300)]
    chunks = [{"id": f"{at}", "text": text} for at, text in enumerate(texts)]
    async with working(database, dsn, embedder := Once()):
        job_id = await submit(database, collection, {"doc_id": "a", "chunks": chunks})

        async def waiting() -> bool:
            async with database.write(collection.team_id) as connection:
                found = await get_job(connection, collection.id, job_id)
            return found is not None and found.error == "waiting for the embedder: busy"

        await eventually(waiting)
        assert 0 < len(embedder.documents) < 300
        async with database.administer() as connection:
            await connection.execute("UPDATE braid.pgqueuer SET execute_after = now()")
        await finished(database, collection, job_id)
        assert sorted(embedder.documents) == sorted(texts)
        async with database.administer() as connection:
            assert await connection.fetchval("SELECT count(*) FROM braid.prepared") == 0
