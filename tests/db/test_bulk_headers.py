"""Headers by the provider's batches: submitted once, read whenever they end, by any worker."""

from collections.abc import Iterator

import msgspec
import pytest
from support.contextualizing import BY_MODEL, paragraphs, situating
from support.fake_anthropic import FakeAnthropic
from support.indexing import column, eventually, finished, ingest, make_collection, rows, submit

from service.db.jobs import get_job
from service.db.pool import Database
from service.indexing import bulk_headers
from service.indexing import situating as stage
from service.models import Collection

ALWAYS = msgspec.structs.replace(BY_MODEL, batch="always")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stage, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(bulk_headers, "POLL_SECONDS", 0.02)
    return


def single_calls(fake: FakeAnthropic) -> int:
    return sum(call.path == "/v1/messages" for call in fake.calls)


async def waits(database: Database, collection: Collection, job_id: int) -> bool:
    async with database.write(collection.team_id) as connection:
        job = await get_job(connection, collection.id, job_id)
    return job is not None and job.error == "waiting for a batch of headers"


async def test_a_batch_is_submitted_once_and_read_by_another_worker(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, contextual=ALWAYS, chunk_overlap=0)
    fake = FakeAnthropic()
    fake.context = lambda text: f"On {text.split(' of')[0].split('Paragraph ')[1]}."
    texts = {f"d{at}": "\n\n".join(paragraphs(4, version=f"{at}.")) for at in range(3)}
    given = [{"doc_id": key, "text": text} for key, text in texts.items()]
    async with situating(database, dsn, fake):
        job_id = await submit(database, collection, *given)
        await eventually(lambda: waits(database, collection, job_id))
    assert len(fake.batches) == 1
    fake.end_batches()
    async with situating(database, dsn, fake):
        job = await finished(database, collection, job_id)
    assert (len(fake.batches), single_calls(fake)) == (1, 0)
    assert (job.counts.indexed, job.usage["context_calls"]) == (3, 12)
    for doc_id in texts:
        found = await rows(database, collection, doc_id)
        assert column(found, "context") == [f"On {at}." for at in range(4)]
    sent = fake.batches["msgbatch_1"]["requests"]
    assert sent[0]["params"]["system"][1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


async def test_what_a_batch_leaves_open_is_asked_for_one_by_one(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, contextual=ALWAYS, chunk_overlap=0)
    fake = FakeAnthropic()
    async with situating(database, dsn, fake):
        text = "\n\n".join(paragraphs(6))
        job_id = await submit(database, collection, {"doc_id": "a", "text": text})
        await eventually(lambda: waits(database, collection, job_id))
        names = [one["custom_id"] for one in fake.batches["msgbatch_1"]["requests"]]
        fake.erring, fake.expiring = {names[1]}, {names[4]}
        fake.end_batches()
        await finished(database, collection, job_id)
    assert single_calls(fake) == 2
    assert all(column(await rows(database, collection, "a"), "context"))


async def test_batches_end_with_whole_documents(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_headers, "MAX_REQUESTS", 5)
    monkeypatch.setattr(bulk_headers, "DOCUMENTS", 2)
    collection = await make_collection(database, contextual=ALWAYS, chunk_overlap=0)
    fake = FakeAnthropic()
    async with situating(database, dsn, fake):
        given = [{"doc_id": f"d{n}", "text": "\n\n".join(paragraphs(3))} for n in range(5)]
        job_id = await submit(database, collection, *given)
        await eventually(lambda: waits(database, collection, job_id))
        fake.end_batches()
        job = await finished(database, collection, job_id)
    assert [len(one["requests"]) for one in fake.batches.values()] == [6, 6, 3]
    assert (job.counts.indexed, single_calls(fake)) == (5, 0)


async def test_small_jobs_ask_at_once_when_the_choice_is_automatic(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    contextual = msgspec.structs.replace(BY_MODEL, batch="auto")
    collection = await make_collection(database, contextual=contextual, chunk_overlap=0)
    async with situating(database, dsn, fake := FakeAnthropic()):
        text = "\n\n".join(paragraphs(6))
        await ingest(database, collection, {"doc_id": "a", "text": text})
        assert (len(fake.batches), single_calls(fake)) == (0, 6)
        monkeypatch.setattr(bulk_headers, "AUTO_CHUNKS", 3)
        job_id = await submit(database, collection, {"doc_id": "b", "text": text})
        await eventually(lambda: waits(database, collection, job_id))
        fake.end_batches()
        await finished(database, collection, job_id)
    assert (len(fake.batches), single_calls(fake)) == (1, 6)
