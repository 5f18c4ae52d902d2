"""Headers that situate chunks: from headings, or from a model that reads each document once."""

from typing import Any

import msgspec
import pytest
from support.contextualizing import BY_HEADING, BY_MODEL, paragraphs, situating
from support.fake_anthropic import FakeAnthropic, error
from support.fake_http import Delay, refusal
from support.hashed_embedder import HashedEmbedder
from support.indexing import (
    column,
    eventually,
    fetch,
    finished,
    ingest,
    make_collection,
    rows,
    working,
)
from support.reindexing import current, job_of, reindexed, start

from service.db.jobs import JobInfo, list_jobs
from service.db.pool import Database
from service.indexing import backfill, rebuild
from service.indexing import situating as stage
from service.models import Collection

GUIDE = """\
# Keys

Every caller has one.

## Rotation

Ask for another one before the old one ends.
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(backfill, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(backfill, "LAST_RETRY_SECONDS", 0.05)


def document(texts: list[str]) -> dict[str, Any]:
    return {"doc_id": "a", "title": "A title", "text": "\n\n".join(texts)}


def asked(fake: FakeAnthropic) -> list[str]:
    """The passages that the model was asked about."""
    bodies = [call.body for call in fake.calls if call.path == "/v1/messages"]
    return [body["messages"][0]["content"].split("\n")[1] for body in bodies]


async def lexemes(database: Database, collection: Collection) -> list[str]:
    async with database.administer() as connection:
        found = await fetch(
            connection,
            "SELECT tsv::text AS tsv FROM braid.chunks WHERE generation_id = $1 ORDER BY position",
            collection.generation.id,
        )
    return column(found, "tsv")


async def context_jobs(database: Database, collection: Collection) -> list[JobInfo]:
    async with database.write(collection.team_id) as connection:
        jobs, _ = await list_jobs(connection, collection.id, limit=50, offset=0)
    return [job for job in jobs if job.kind == "context"]


async def test_headings_situate_chunks_for_words_and_not_for_vectors(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(
        database, chunk_size=16, chunk_overlap=0, contextual=BY_HEADING
    )
    async with working(database, dsn, embedder := HashedEmbedder()):
        await ingest(database, collection, {"doc_id": "a.md", "title": "Guide", "text": GUIDE})
    found = await rows(database, collection, "a.md")
    assert column(found, "context") == ["Guide", "Guide > Keys"]
    assert embedder.documents == column(found, "text")
    assert ["'keys'" in tsv for tsv in await lexemes(database, collection)] == [True, True]


async def test_another_heading_is_found_at_once_and_embeds_nothing_anew(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(
        database, chunk_size=16, chunk_overlap=0, contextual=BY_HEADING
    )
    async with working(database, dsn, embedder := HashedEmbedder()):
        await ingest(database, collection, {"doc_id": "a.md", "title": "Guide", "text": GUIDE})
        before = await rows(database, collection, "a.md")
        await ingest(database, collection, {"doc_id": "a.md", "title": "Manual", "text": GUIDE})
    after = await rows(database, collection, "a.md")
    assert column(after, "context") == ["Manual", "Manual > Keys"]
    assert column(after, "embedding") == column(before, "embedding")
    assert len(embedder.documents) == 2


async def test_headings_are_embedded_when_asked_for(database: Database, dsn: str) -> None:
    contextual = msgspec.structs.replace(BY_HEADING, embed=True)
    collection = await make_collection(
        database, chunk_size=16, chunk_overlap=0, contextual=contextual
    )
    async with working(database, dsn, embedder := HashedEmbedder()):
        await ingest(database, collection, {"doc_id": "a.md", "title": "Guide", "text": GUIDE})
    assert embedder.documents[1].startswith("Guide > Keys\n\n## Rotation")


async def test_a_long_document_is_written_to_the_cache_once_and_then_read(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "SETTLE_SECONDS", 0.4)
    collection = await make_collection(database, contextual=BY_MODEL, chunk_overlap=0)
    fake = FakeAnthropic(visible_after=0.3)
    fake.always = Delay(0.005)
    fake.context = lambda text: f"On {text.split(' of')[0].split('Paragraph ')[1]}."
    async with situating(database, dsn, fake) as embedder:
        job = await ingest(database, collection, document(paragraphs(60)))
        assert (fake.cache_writes, fake.cache_reads, len(fake.usages)) == (1, 59, 60)
        assert fake.usages[0]["cache_creation_input_tokens"] > 512
        assert fake.most_in_flight == BY_MODEL.concurrency
        found = await rows(database, collection, "a")
        assert column(found, "context") == [f"On {at}." for at in range(60)]
        assert set(embedder.documents) == {f"{row['context']}\n\n{row['text']}" for row in found}
        assert job.usage["context_calls"] == 60
        assert job.usage["context_cached_tokens"] == sum(
            usage["cache_read_input_tokens"] for usage in fake.usages
        )
        await ingest(database, collection, document(paragraphs(60)))
        assert (len(fake.usages), len(embedder.documents)) == (60, 60)


async def test_one_changed_paragraph_is_situated_and_embedded_alone(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, contextual=BY_MODEL, chunk_overlap=0)
    async with situating(database, dsn, fake := FakeAnthropic()) as embedder:
        texts = paragraphs(60)
        await ingest(database, collection, document(texts))
        before = await rows(database, collection, "a")
        texts[30] = paragraphs(31, version="second")[30]
        await ingest(database, collection, document(texts))
        after = await rows(database, collection, "a")
    assert [passage.strip() for passage in asked(fake)[60:]] == [texts[30].strip()]
    assert "cache_control" not in fake.calls[-1].body["system"][1]
    assert len(embedder.documents) == 61
    same = [one["id"] == other["id"] for one, other in zip(before, after, strict=True)]
    assert same == [at != 30 for at in range(60)]


async def test_headers_that_cannot_be_had_come_later_without_anyones_help(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, contextual=BY_MODEL, chunk_overlap=0)
    fake = FakeAnthropic()
    fake.always = error(401, "authentication_error", "no")
    async with situating(database, dsn, fake) as embedder:
        job = await ingest(database, collection, document(paragraphs(12)))
        assert (job.status, job.counts.indexed, job.usage["context_failures"]) == ("done", 1, 12)
        assert "12 chunks have no header yet" in job.warnings[0]
        assert len(fake.calls) < 5
        found = await rows(database, collection, "a")
        assert (set(column(found, "context")), set(column(found, "context_due"))) == (
            {None},
            {True},
        )
        plain = list(embedder.documents)
        fake.always = None

        async def made() -> bool:
            return all(column(await rows(database, collection, "a"), "context"))

        await eventually(made)
        await eventually(lambda: done(database, collection))
    found = await rows(database, collection, "a")
    assert not any(column(found, "context_due"))
    assert column(found, "text") == plain
    assert len(embedder.documents) == 24
    assert all("'about'" in tsv and "'title'" in tsv for tsv in await lexemes(database, collection))


async def done(database: Database, collection: Collection) -> bool:
    jobs = await context_jobs(database, collection)
    return [(job.status, job.counts.indexed) for job in jobs] == [("done", 1)]


async def test_a_chunk_that_fails_alone_does_not_hold_the_others_back(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, contextual=BY_MODEL, chunk_overlap=0)
    fake = FakeAnthropic()
    respond = fake.respond
    fake.respond = lambda call: (  # type: ignore[method-assign]
        refusal(400) if "Paragraph 3 " in call.body["messages"][0]["content"] else respond(call)
    )
    async with situating(database, dsn, fake):
        job = await ingest(database, collection, document(paragraphs(12)))
    found = await rows(database, collection, "a")
    assert column(found, "context_due") == [at == 3 for at in range(12)]
    assert (job.counts.indexed, job.usage["context_failures"]) == (1, 1)


async def test_what_a_model_refuses_to_say_is_not_asked_again(database: Database, dsn: str) -> None:
    collection = await make_collection(database, contextual=BY_MODEL, chunk_overlap=0)
    fake = FakeAnthropic()
    fake.refuses = True
    async with situating(database, dsn, fake):
        await ingest(database, collection, document(paragraphs(4)))
        await ingest(database, collection, document(paragraphs(4)))
        assert await context_jobs(database, collection) == []
    assert len(fake.usages) == 4
    found = await rows(database, collection, "a")
    assert column(found, "context") == [None] * 4


async def test_a_header_is_cleaned_and_bounded(database: Database, dsn: str) -> None:
    collection = await make_collection(database, contextual=BY_MODEL)
    fake = FakeAnthropic()
    fake.thinks = True
    fake.context = lambda _: "  on\x00 two \ud800\nlines " + "word " * 400
    async with situating(database, dsn, fake):
        await ingest(database, collection, {"doc_id": "a", "text": "a text"})
    (row,) = await rows(database, collection, "a")
    assert row["context"].startswith("on two lines word word")
    assert len(row["context"]) <= 1000
    assert row["context"].endswith("word")


async def test_a_document_below_the_models_minimum_is_named(database: Database, dsn: str) -> None:
    collection = await make_collection(database, contextual=BY_MODEL, chunk_overlap=0)
    async with situating(database, dsn, FakeAnthropic(least_cached=4096)):
        job = await ingest(database, collection, document(paragraphs(6)))
    assert job.warnings == [stage.UNCACHED.format("a")]


async def test_a_reindex_makes_headers_and_takes_over_those_that_stay_the_same(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, chunk_overlap=0)
    async with situating(database, dsn, fake := FakeAnthropic()) as embedder:
        await ingest(database, collection, document(paragraphs(12)))
        job, collection = await reindexed(database, collection, embedder, contextual=BY_MODEL)
        assert (job.status, len(fake.usages), len(embedder.documents)) == ("done", 12, 24)
        found = await rows(database, collection, "a")
        assert all(column(found, "context"))
        _, collection = await reindexed(database, collection, embedder, language="english")
        assert (len(fake.usages), len(embedder.documents)) == (12, 24)
        again = await rows(database, await current(database, collection), "a")
        assert column(again, "context") == column(found, "context")
        _, collection = await reindexed(database, collection, embedder, contextual=BY_HEADING)
    assert (len(fake.usages), len(embedder.documents)) == (12, 36)
    found = await rows(database, collection, "a")
    assert column(found, "context") == ["A title"] * 12


async def test_a_reindex_waits_for_a_model_that_is_out_of_reach(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "PROVIDER_SECONDS", 0.05)
    collection = await make_collection(database, chunk_overlap=0)
    fake = FakeAnthropic()
    fake.always = error(401, "authentication_error", "no")
    async with situating(database, dsn, fake) as embedder:
        await ingest(database, collection, document(paragraphs(4)))
        job_id = await start(database, collection, embedder, contextual=BY_MODEL)

        async def waiting() -> bool:
            job = await job_of(database, collection, job_id)
            return job.error is not None and "refuses the key" in job.error

        await eventually(waiting)
        fake.always = None
        job = await finished(database, collection, job_id)
    found = await rows(database, await current(database, collection), "a")
    assert all(column(found, "context"))
    assert (job.status, job.counts.failed, "context_failures" in job.usage) == ("done", 0, False)


async def test_teams_whose_flag_is_off_get_no_headers(database: Database, dsn: str) -> None:
    async def nobody(_team_id: int) -> bool:
        return False

    collection = await make_collection(database, contextual=BY_MODEL)
    async with situating(database, dsn, fake := FakeAnthropic(), headers_allowed=nobody):
        await ingest(database, collection, document(paragraphs(3)))
    assert fake.calls == []
    assert set(column(await rows(database, collection, "a"), "context_due")) == {False}
