"""Documents on their way into the index, on a real server."""

from typing import Any

import numpy as np
import pytest
from support.hashed_embedder import HashedEmbedder
from support.indexing import column, eventually, ingest, make_collection, rows, submit, working

from service.db.jobs import list_jobs
from service.db.pool import Database
from service.errors import InvalidRequestError
from service.indexing.waiting import wait_for_job
from service.models import Collection

TEXT = "\n\n".join(f"Paragraph {n} speaks of topic {n} and says little else." for n in range(40))


def with_chunks(doc_id: str, *chunks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"doc_id": doc_id, "chunks": list(chunks), **fields}


async def document_row(database: Database, collection: Collection, doc_id: str) -> dict[str, Any]:
    async with database.administer() as connection:
        row = await connection.fetchrow(
            "SELECT * FROM braid.documents WHERE collection_id = $1 AND doc_id = $2",
            collection.id,
            doc_id,
        )
    assert row is not None
    return dict(row)


async def test_raw_text_becomes_chunks_that_both_legs_can_find(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    embedder = HashedEmbedder()
    async with working(database, dsn, embedder):
        job = await ingest(
            database, collection, {"doc_id": "a", "text": TEXT, "title": "T", "metadata": {"n": 1}}
        )
    assert (job.status, job.counts.indexed, job.failures) == ("done", 1, [])
    found = await rows(database, collection, "a")
    assert len(found) > 3
    assert column(found, "chunk_id") == [f"a::{n}" for n in range(len(found))]
    assert column(found, "position") == list(range(len(found)))
    for row in found:
        assert TEXT[row["start_offset"] : row["end_offset"]] == row["text"]
        assert (row["title"], row["metadata"]) == ("T", '{"n": 1}')
        expected = embedder.vector(row["text"]).astype(np.float16)
        assert np.array_equal(row["embedding"].to_numpy(), expected)
        assert row["length"] >= len(row["text"].split())
    assert job.usage["embedding_tokens"] == sum(embedder.count_tokens(r["text"]) for r in found)
    stored = await document_row(database, collection, "a")
    assert (stored["status"], stored["text"], stored["title"]) == ("ready", TEXT, "T")


async def test_bm25_is_that_of_the_real_average_length(database: Database, dsn: str) -> None:
    collection = await make_collection(database, provider="none", model=None, dim=None)
    async with working(database, dsn, None):
        for n in range(3):
            chunks = [{"id": str(at), "text": "word " * (at + n + 1)} for at in range(10)]
            await ingest(database, collection, with_chunks(f"d{n}", *chunks))
    async with database.administer() as connection:
        row = await connection.fetchrow(
            """SELECT g.average_length, avg(c.length)::float8 AS real, bool_and(c.bm25 =
                   braid.bm25_document(c.tsv, c.length, g.average_length, g.k1, g.b)) AS same
               FROM braid.generations g JOIN braid.chunks c ON c.generation_id = g.id
               WHERE g.id = $1 GROUP BY g.id""",
            collection.generation.id,
        )
    assert row is not None
    assert row["average_length"] == row["real"] == pytest.approx(6.5)
    assert row["same"]


async def test_client_chunks_are_kept_as_given(database: Database, dsn: str) -> None:
    collection = await make_collection(database, dim=3)
    embedder = HashedEmbedder(3)
    async with working(database, dsn, embedder):
        await ingest(
            database,
            collection,
            with_chunks(
                "a",
                {"id": "both", "text": "text with vector", "vector": [1, 2, 3]},
                {"id": "vector", "vector": [0, 0.5, 0], "metadata": {"n": 2, "own": True}},
                {"id": "text", "text": "text alone", "position": 7},
                metadata={"n": 1},
                summary="what it is about",
            ),
        )
    found = {row["chunk_id"]: row for row in await rows(database, collection, "a")}
    assert found["both"]["embedding"].to_list() == [1, 2, 3]
    assert (found["vector"]["text"], found["vector"]["length"]) == ("", 0)
    assert found["vector"]["metadata"] == '{"n": 2, "own": true}'
    assert found["text"]["metadata"] == '{"n": 1}'
    assert embedder.documents == ["text alone", "what it is about"]
    assert [found[name]["position"] for name in ("both", "vector", "text")] == [0, 1, 7]
    assert (found["a"]["type"], found["a"]["text"]) == ("summary", "what it is about")
    assert found["both"]["start_offset"] is None


async def test_without_an_embedder_text_is_found_by_words_alone(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, provider="none", model=None, dim=None)
    async with working(database, dsn, None):
        job = await ingest(database, collection, {"doc_id": "a", "text": TEXT})
    assert job.usage == {"embedding_tokens": 0}
    found = await rows(database, collection, "a")
    assert {row["embedding"] for row in found} == {None}
    assert all(row["length"] > 0 for row in found)


async def test_an_unchanged_document_is_neither_embedded_nor_rewritten(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    embedder = HashedEmbedder()
    async with working(database, dsn, embedder):
        await ingest(database, collection, {"doc_id": "a", "text": TEXT, "title": "T"})
        before, embedded = await rows(database, collection, "a"), len(embedder.documents)
        job = await ingest(database, collection, {"doc_id": "a", "text": TEXT, "title": "T"})
    assert (job.counts.indexed, job.usage["embedding_tokens"]) == (1, 0)
    assert len(embedder.documents) == embedded
    after = await rows(database, collection, "a")
    assert column(after, "id") == column(before, "id")
    assert column(after, "version") == column(before, "version")


async def test_only_changed_chunks_are_embedded_and_the_others_move(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    embedder = HashedEmbedder()
    first = [f"# Part {n}\n\n" + f"Sentence of part {n}. " * 9 for n in range(8)]
    second = [first[0], "# New\n\n" + "A sentence that was not there. " * 8, *first[1:7]]
    async with working(database, dsn, embedder):
        await ingest(database, collection, {"doc_id": "a", "text": "\n\n".join(first)})
        before = {row["text"]: row for row in await rows(database, collection, "a")}
        embedder.documents.clear()
        await ingest(database, collection, {"doc_id": "a", "text": "\n\n".join(second)})
    after = await rows(database, collection, "a")
    text = "\n\n".join(second)
    assert column(after, "text") == [text[r["start_offset"] : r["end_offset"]] for r in after]
    assert column(after, "chunk_id") == [f"a::{n}" for n in range(len(after))]
    assert embedder.documents == [row["text"] for row in after if row["text"] not in before]
    assert len(embedder.documents) == 1
    for row in after:
        if row["text"] in before:
            assert row["id"] == before[row["text"]]["id"]


async def test_replace_leaves_nothing_of_the_old_version(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        await ingest(
            database,
            collection,
            {"doc_id": "a", "text": TEXT, "title": "T", "metadata": {"n": 1}, "summary": "old"},
        )
        await ingest(database, collection, with_chunks("a", {"id": "0", "text": "new"}),
                     mode="replace")  # fmt: skip
    (row,) = await rows(database, collection, "a")
    assert (row["chunk_id"], row["title"], row["metadata"]) == ("0", None, "{}")
    stored = await document_row(database, collection, "a")
    assert (stored["text"], stored["summary"], stored["title"]) == (None, None, None)


async def test_upsert_changes_the_chunks_it_names_and_keeps_the_rest(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    embedder = HashedEmbedder()
    chunks = [{"id": f"c{n}", "text": f"text {n}", "metadata": {"own": n}} for n in range(3)]
    async with working(database, dsn, embedder):
        await ingest(
            database,
            collection,
            with_chunks("a", *chunks, title="T", metadata={"lang": "en"}, summary="s"),
        )
        embedder.documents.clear()
        await ingest(
            database,
            collection,
            with_chunks("a", {"id": "c1", "text": "changed"}, {"id": "c9", "text": "added"}),
        )
    found = await rows(database, collection, "a")
    assert column(found, "chunk_id") == ["c0", "c1", "c2", "c9", "a"]
    assert column(found, "position") == [0, 1, 2, 3, 0]
    assert column(found, "text") == ["text 0", "changed", "text 2", "added", "s"]
    assert column(found, "metadata") == [
        '{"own": 0, "lang": "en"}',
        '{"lang": "en"}',
        '{"own": 2, "lang": "en"}',
        '{"lang": "en"}',
        '{"lang": "en"}',
    ]
    assert set(column(found, "title")) == {"T"}
    assert embedder.documents == ["changed", "added"]


async def test_upsert_with_new_document_fields_shows_them_on_every_record(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    chunks = [{"id": f"c{n}", "text": f"text {n}", "metadata": {"own": n}} for n in range(2)]
    async with working(database, dsn, HashedEmbedder()):
        await ingest(
            database, collection, with_chunks("a", *chunks, title="T", metadata={"v": 1, "x": 1})
        )
        await ingest(
            database,
            collection,
            with_chunks("a", {"id": "c2", "text": "t"}, title="U", metadata={"v": 2}),
        )
    found = await rows(database, collection, "a")
    assert set(column(found, "title")) == {"U"}
    assert column(found, "metadata") == ['{"v": 2, "own": 0}', '{"v": 2, "own": 1}', '{"v": 2}']


async def test_a_chunk_that_two_documents_name_belongs_to_each(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        for doc_id in ("a", "b"):
            await ingest(
                database, collection, with_chunks(doc_id, {"id": "0", "text": f"of {doc_id}"})
            )
    assert column(await rows(database, collection, "a"), "text") == ["of a"]
    assert column(await rows(database, collection, "b"), "text") == ["of b"]


async def test_a_document_with_nothing_to_index_fails_by_name_and_alone(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        job = await ingest(
            database,
            collection,
            {"doc_id": "good", "text": "something"},
            {"doc_id": "blank", "text": " \n\t\0"},
            with_chunks("hollow", {"id": "x", "text": "fine"}, {"id": "y", "text": "  "}),
        )
    assert (job.status, job.counts.indexed, job.counts.failed) == ("done", 1, 2)
    assert [(one.doc_id, one.reason) for one in job.failures] == [
        ("blank", "nothing to index: the text is blank"),
        ("hollow", "nothing to index: the text of chunk 1 is blank"),
    ]
    assert job.warnings == ["document 'blank': characters that cannot be stored were removed"]
    stored = await document_row(database, collection, "hollow")
    assert (stored["status"], stored["failure_reason"]) == ("error", job.failures[1].reason)
    assert await rows(database, collection, "hollow") == []


async def test_a_job_whose_every_document_failed_is_an_error(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        job = await ingest(database, collection, {"doc_id": "a", "text": " "})
    assert job.status == "error"
    assert job.error == (
        "every document failed, the first because: nothing to index: the text is blank"
    )


async def test_content_is_cleaned_and_ids_are_not_touched(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    dirty = "caf\0é \ud800ok"
    async with working(database, dsn, HashedEmbedder()):
        job = await ingest(
            database,
            collection,
            {
                "doc_id": "a",
                "text": dirty,
                "title": dirty,
                "source": dirty,
                "summary": dirty,
                "metadata": {"k": [dirty, {"l": dirty}]},
            },
        )
    assert len(job.warnings) == 1
    chunk, summary = await rows(database, collection, "a")
    for row in (chunk, summary):
        assert (row["text"], row["title"], row["source"]) == ("café ok",) * 3
        assert row["metadata"] == '{"k": ["café ok", {"l": "café ok"}]}'


async def test_more_words_than_a_tsvector_holds_are_cut_with_a_warning(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    many = " ".join(f"word{n:08d}" for n in range(120_000))
    fits = " ".join(f"w{n:x}" for n in range(40_000))
    async with working(database, dsn, HashedEmbedder()):
        job = await ingest(
            database,
            collection,
            with_chunks("a", {"id": "many", "text": many}, {"id": "fits", "text": fits}),
            with_chunks("b", {"id": "0", "text": "beside it"}),
        )
    assert (job.status, job.counts.indexed) == ("done", 2)
    cut = [warning for warning in job.warnings if "too many words" in warning]
    assert cut == ["document 'a': chunk 'many' has too many words, its end is not found by text"]
    found = {row["chunk_id"]: row for row in await rows(database, collection, "a")}
    assert found["many"]["text"] == many
    assert 20_000 < found["many"]["length"] < 120_000
    assert found["fits"]["length"] >= 40_000


async def test_a_token_of_three_thousand_characters_is_no_obstacle(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        job = await ingest(database, collection, {"doc_id": "a", "text": "x" * 3000 + " and more"})
    assert job.counts.indexed == 1


async def test_what_the_embedder_does_not_read_is_told(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder(max_tokens=20)):
        job = await ingest(
            database, collection, with_chunks("a", {"id": "long", "text": "word " * 30})
        )
    assert job.warnings == [
        "document 'a': chunk 'long' is longer than the embedder reads, its end has no vector"
    ]


async def test_raw_chunks_never_exceed_the_window_of_the_embedder(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, chunk_size=512, chunk_overlap=64)
    embedder = HashedEmbedder(max_tokens=40)
    async with working(database, dsn, embedder):
        job = await ingest(database, collection, {"doc_id": "a", "text": TEXT})
    assert job.warnings == []
    assert max(map(embedder.count_tokens, embedder.documents)) <= 40


async def test_a_document_may_name_its_language_if_the_server_knows_it(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    with pytest.raises(InvalidRequestError) as raised:
        await submit(database, collection, {"doc_id": "a", "text": "t", "language": "klingon"})
    assert raised.value.errors[0].pointer == "/documents/0/language"
    async with working(database, dsn, HashedEmbedder()):
        await ingest(database, collection, {"doc_id": "a", "text": "t", "language": "german"})
    assert (await document_row(database, collection, "a"))["language"] == "german"


async def test_a_thousand_documents_in_one_request(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    given = [{"doc_id": f"d{n}", "text": f"text of {n}"} for n in range(1000)]
    async with working(database, dsn, HashedEmbedder()):
        job = await ingest(database, collection, *given)
    assert (job.counts.documents, job.counts.indexed) == (1000, 1000)
    assert column(await rows(database, collection, "d999"), "text") == ["text of 999"]


async def test_a_refused_request_leaves_nothing_behind(database: Database) -> None:
    collection = await make_collection(database)
    with pytest.raises(InvalidRequestError):
        await submit(database, collection, {"doc_id": "a", "text": "t"}, {"doc_id": "b"})
    async with database.write(collection.team_id) as connection:
        assert await list_jobs(connection, collection.id, limit=10, offset=0) == ([], 0)
        assert await connection.fetchval("SELECT count(*) FROM braid.documents") == 0


async def test_waiting_ends_when_the_time_is_up(database: Database) -> None:
    collection = await make_collection(database)
    job_id = await submit(database, collection, {"doc_id": "a", "text": "t"})
    job = await wait_for_job(database, collection, job_id, seconds=0.05)
    assert (job.status, job.counts.documents, job.counts.indexed) == ("pending", 1, 0)
    assert (job.counts.superseded, job.counts.failed) == (0, 0)


async def test_jobs_are_listed_newest_first(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    made = [await submit(database, collection, {"doc_id": f"d{n}", "text": "t"}) for n in range(3)]
    async with database.write(collection.team_id) as connection:
        jobs, total = await list_jobs(connection, collection.id, limit=2, offset=0)
    assert ([job.job_id for job in jobs], total) == (made[:0:-1], 3)


async def test_statistics_are_there_after_a_load(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    table = f"braid.chunks_{collection.generation.id}"

    async def analyzed() -> object:
        async with database.administer() as connection:
            return await connection.fetchval(
                "SELECT last_analyze FROM pg_stat_all_tables WHERE relid = $1::text::regclass",
                table,
            )

    async with working(database, dsn, HashedEmbedder()):
        await ingest(database, collection, {"doc_id": "a", "text": TEXT})
        await eventually(analyzed)
