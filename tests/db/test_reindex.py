"""A re-index: what is carried over, what is made anew, what may not be."""

from typing import Any

import numpy as np
import pytest
from support.hashed_embedder import HashedEmbedder
from support.indexing import (
    column,
    fetch,
    finished,
    ingest,
    make_collection,
    rows,
    submit,
    working,
)
from support.reindexing import current, reindexed, start

from service.db.disposal import discard_expired, remove_leftovers
from service.db.partitions import drop_orphan_partitions
from service.db.pool import Connection, Database
from service.errors import ConflictError
from service.indexing.editing import delete_document, patch_metadata
from service.indexing.reindexing import start_rollback
from service.models import Collection

CONSISTENT = """
SELECT bool_and(c.bm25 = braid.bm25_document(c.tsv, c.length, g.average_length, g.k1, g.b))
FROM braid.generations g JOIN braid.chunks c ON c.generation_id = g.id WHERE g.id = $1
"""
LONG = " ".join(f"word{number}" for number in range(200))
CARRIED = (
    *("type", "chunk_id", "doc_id", "position", "title", "source", "metadata", "text"),
    *("context", "start_offset", "end_offset", "own_vector"),
)
CLIENT: dict[str, Any] = {"provider": "none", "model": None, "dim": 3}


async def matching(database: Database, collection: Collection, word: str) -> list[str]:
    """Chunks that the active generation's lexical index finds by a word."""
    generation = (await current(database, collection)).generation
    async with database.read(1) as connection:
        found = await connection.fetch(
            "SELECT chunk_id FROM braid.searchable WHERE generation_id = $1"
            " AND tsv @@ to_tsquery($2::text::regconfig, $3) ORDER BY chunk_id",
            generation.id,
            generation.language,
            word,
        )
    return [row["chunk_id"] for row in found]


async def is_consistent(database: Database, collection: Collection) -> bool:
    async with database.administer() as connection:
        consistent: bool = await connection.fetchval(CONSISTENT, collection.generation.id)
    return consistent


async def vectors(database: Database, collection: Collection) -> dict[str, list[float]]:
    async with database.administer() as connection:
        found = await connection.fetch(
            "SELECT chunk_id, embedding FROM braid.chunks WHERE generation_id = $1"
            " AND embedding IS NOT NULL",
            collection.generation.id,
        )
    return {row["chunk_id"]: row["embedding"].to_list() for row in found}


async def test_a_new_language_is_used_after_the_swap_without_an_embedding_call(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, language="english")
    embedder = HashedEmbedder()
    async with working(database, dsn, embedder):
        await ingest(
            database, collection, {"doc_id": "a", "text": "la factura pendiente de la flor"}
        )
        before = await vectors(database, collection)
        # English takes the plural s from the others, but not the es.
        assert await matching(database, collection, "flores") == []
        embedder.documents.clear()
        job, after = await reindexed(database, collection, embedder, language="spanish")
    assert (job.status, job.kind) == ("done", "reindex")
    assert (job.counts.documents, job.counts.indexed, job.counts.failed) == (1, 1, 0)
    assert after.generation.id != collection.generation.id
    assert after.generation.language == "spanish"
    assert await matching(database, after, "facturas & pendientes & flores") == ["a::0"]
    assert embedder.documents == []
    assert job.usage["embedding_tokens"] == 0
    assert await vectors(database, after) == before
    assert await is_consistent(database, after)


async def test_everything_that_clients_gave_is_carried_over(database: Database, dsn: str) -> None:
    collection = await make_collection(database, **CLIENT, language="english")
    async with working(database, dsn, None):
        await ingest(
            database,
            collection,
            {
                "doc_id": "a",
                "title": "Title",
                "source": "wiki",
                "metadata": {"year": 2020},
                "summary": "about keys",
                "chunks": [
                    {"id": "both", "text": "keys", "vector": [1, 0, 0], "metadata": {"n": 1.5}},
                    {"id": "vector", "vector": [0, 1, 0], "position": 7},
                    {"id": "text", "text": "doors"},
                ],
            },
            {"doc_id": "raw", "text": "some text of its own", "metadata": {"year": 2021}},
        )
        before = {name: await rows(database, collection, name) for name in ("a", "raw")}
        async with database.administer() as connection:
            await connection.execute(
                "UPDATE braid.chunks SET context = 'header' WHERE chunk_id = 'text'"
            )
        job, after = await reindexed(database, collection, language="german", k1=2.0, b=0.5)
        carried = {name: await rows(database, after, name) for name in ("a", "raw")}
        assert job.status == "done"
        for name, old in before.items():
            for row in old:
                row["context"] = "header" if row["chunk_id"] == "text" else None
            assert [[row[f] for f in CARRIED] for row in carried[name]] == [
                [row[f] for f in CARRIED] for row in old
            ]
        assert await vectors(database, after) == await vectors(database, collection)
        assert await matching(database, after, "header") == ["text"]
        assert await matching(database, after, "title") == ["a", "both", "text", "vector"]
        assert (after.generation.k1, after.generation.b) == (2.0, 0.5)
        assert await is_consistent(database, after)
        # The hashes are right too: the same again changes nothing.
        kept = {name: column(found, "id") for name, found in carried.items()}
        await ingest(
            database, after, {"doc_id": "raw", "text": "some text of its own"}, mode="replace"
        )
        await ingest(
            database,
            after,
            {"doc_id": "a", "chunks": [{"id": "vector", "vector": [0, 1, 0], "position": 7}]},
        )
        assert column(await rows(database, after, "raw"), "id") == kept["raw"]
        assert column(await rows(database, after, "a"), "id") == kept["a"]


async def test_other_chunk_sizes_split_raw_text_anew_and_nothing_else(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    embedder = HashedEmbedder()
    chunks = [{"id": "mine", "text": LONG}]
    async with working(database, dsn, embedder):
        await ingest(
            database,
            collection,
            {"doc_id": "long", "text": LONG, "metadata": {"k": 1}, "summary": "words"},
            {"doc_id": "short", "text": "a few words", "metadata": {"k": 2}},
            {"doc_id": "given", "chunks": chunks},
        )
        await patch_metadata(database, collection, "long", {"k": 3})
        embedder.documents.clear()
        job, after = await reindexed(database, collection, embedder, chunk_size=32, chunk_overlap=4)
    assert job.status == "done"
    long = await rows(database, after, "long")
    assert len(long) > len(await rows(database, collection, "long"))
    assert column(long, "chunk_id") == [*(f"long::{at}" for at in range(len(long) - 1)), "long"]
    assert column(long, "position") == [*range(len(long) - 1), 0]
    assert {row["metadata"] for row in long} == {'{"k": 3}'}
    assert [LONG[row["start_offset"] : row["end_offset"]] for row in long[:-1]] == column(
        long[:-1], "text"
    )
    assert column(await rows(database, after, "given"), "text") == [LONG]
    # Only what was split otherwise is embedded: not the short text, the summary, the client's.
    old = set(column(await rows(database, collection, "long"), "text"))
    assert sorted(embedder.documents) == sorted(set(column(long[:-1], "text")) - old)
    assert job.usage["embedding_tokens"] > 0


async def test_another_model_embeds_all_texts_and_drops_vectors_of_the_old_one(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database)
    async with working(database, dsn, HashedEmbedder()):
        await ingest(
            database,
            collection,
            {"doc_id": "raw", "text": "raw text", "summary": "a summary"},
            {"doc_id": "own", "chunks": [{"id": "c", "text": "own", "vector": [1.0] * 64}]},
        )
    other = HashedEmbedder(dim=32, model="other")
    async with working(database, dsn, other):
        job, after = await reindexed(database, collection, other, model="other", dim=32)
    assert job.status == "done"
    assert sorted(other.documents) == ["a summary", "own", "raw text"]
    made = await vectors(database, after)
    assert {name: len(vector) for name, vector in made.items()} == {
        "raw::0": 32,
        "raw": 32,
        "c": 32,
    }
    assert np.allclose(made["c"], other.vector("own"), atol=1e-3)
    assert column(await rows(database, after, "own"), "own_vector") == [False]


async def test_vectors_of_clients_cannot_be_made_by_a_model(database: Database, dsn: str) -> None:
    collection = await make_collection(database, **CLIENT)
    async with working(database, dsn, None):
        await ingest(
            database,
            collection,
            {"doc_id": "a", "chunks": [{"id": "c", "text": "t", "vector": [1, 0, 0]}]},
        )
    embedder = HashedEmbedder()
    with pytest.raises(ConflictError, match="its clients'"):
        await start(database, collection, embedder, provider="hashed", model="hashed", dim=64)
    with pytest.raises(ConflictError, match="its clients'"):
        await start(database, collection, None, dim=4)


async def test_a_collection_of_texts_alone_may_get_a_model(database: Database, dsn: str) -> None:
    collection = await make_collection(database, provider="none", model=None, dim=None)
    embedder = HashedEmbedder()
    async with working(database, dsn, embedder):
        await ingest(database, collection, {"doc_id": "a", "text": "a text"})
        assert await vectors(database, collection) == {}
        job, after = await reindexed(
            database, collection, embedder, provider="hashed", model="hashed", dim=64
        )
    assert job.status == "done"
    assert list(await vectors(database, after)) == ["a::0"]


async def test_what_changes_meanwhile_is_right_after_the_swap(database: Database, dsn: str) -> None:
    collection = await make_collection(database, **CLIENT, language="english")

    def given(name: str, text: str, **fields: Any) -> dict[str, Any]:
        return {"doc_id": name, "chunks": [{"id": name, "text": text}], **fields}

    async with working(database, dsn, None):
        await ingest(
            database,
            collection,
            *(given(name, "before", metadata={"v": 1}) for name in ("a", "b", "c", "d")),
        )
    job_id = await start(database, collection, language="german")
    await patch_metadata(database, collection, "a", {"v": 2})
    await delete_document(database, collection, "b")
    await submit(database, collection, given("c", "after"), given("e", "new"))
    async with working(database, dsn, None):
        job = await finished(database, collection, job_id)
        assert job.status == "done"
        await ingest(database, collection, given("f", "later"))
        after = await current(database, collection)
        await patch_metadata(database, after, "d", {"v": 4})
    found = {}
    async with database.administer() as connection:
        for row in await fetch(
            connection,
            "SELECT chunk_id, text, metadata FROM braid.chunks WHERE generation_id = $1",
            after.generation.id,
        ):
            found[row["chunk_id"]] = (row["text"], row["metadata"])
    assert found == {
        "a": ("before", '{"v": 2}'),
        "c": ("after", '{"v": 1}'),
        "d": ("before", '{"v": 4}'),
        "e": ("new", "{}"),
        "f": ("later", "{}"),
    }


async def test_a_rollback_returns_to_the_old_settings_with_the_new_documents(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, language="english")
    embedder = HashedEmbedder()
    texts = {"a": "la factura", "b": "el perro", "c": "la casa"}
    async with working(database, dsn, embedder):
        await ingest(database, collection, *({"doc_id": n, "text": t} for n, t in texts.items()))
        _, middle = await reindexed(database, collection, embedder, language="spanish")
        await ingest(database, middle, {"doc_id": "b", "text": "los gatos"})
        await ingest(database, middle, {"doc_id": "d", "text": "las flores"})
        await delete_document(database, middle, "c")
        await patch_metadata(database, middle, "a", {"seen": True})
        untouched = column(await rows(database, collection, "a"), "id")
        embedder.documents.clear()
        job = await finished(database, middle, await start_rollback(database, middle))
        after = await current(database, collection)
        assert (job.status, job.counts.documents, job.counts.indexed) == ("done", 2, 2)
        assert after.generation == collection.generation or after.generation.id == (
            collection.generation.id
        )
        assert after.generation.language == "english"
        assert await matching(database, after, "factura | gatos | flores") == [
            "a::0",
            "b::0",
            "d::0",
        ]
        assert await matching(database, after, "casa | perro") == []
        (row,) = await rows(database, after, "a")
        assert (row["id"], row["metadata"]) == (untouched[0], '{"seen": true}')
        assert embedder.documents == [], "both generations have the same model"
        # And forth again.
        again = await finished(database, after, await start_rollback(database, after))
        assert (again.status, again.counts.documents) == ("done", 0)
        assert (await current(database, after)).generation.id == middle.generation.id


async def test_without_an_earlier_generation_there_is_no_rollback(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, **CLIENT)
    with pytest.raises(ConflictError, match="no earlier generation"):
        await start_rollback(database, collection)
    async with working(database, dsn, None, keep_seconds=0):
        await reindexed(database, collection, language="english")
    with pytest.raises(ConflictError, match="no earlier generation"):
        await start_rollback(database, collection)


async def test_the_old_generation_is_dropped_when_its_time_is_over(
    database: Database, dsn: str
) -> None:
    collection = await make_collection(database, **CLIENT)
    async with working(database, dsn, None, keep_seconds=0):
        await ingest(database, collection, {"doc_id": "a", "text": "text"})
        _, after = await reindexed(database, collection, language="english")

    async def tables(connection: Connection) -> list[str]:
        return [
            row["name"]
            for row in await connection.fetch(
                "SELECT relname AS name FROM pg_class WHERE relname ~ '^chunks_[0-9]+$'"
            )
        ]

    old, new = f"chunks_{collection.generation.id}", f"chunks_{after.generation.id}"
    assert await discard_expired(database) == 0, "a search may still be reading it"
    async with database.administer() as connection:
        await connection.execute(
            "UPDATE braid.builds SET retired_at = retired_at - interval '3 minutes'"
        )
        assert sorted(await tables(connection)) == sorted([old, new])
    assert await discard_expired(database) == 1
    assert await drop_orphan_partitions(database) == []
    await remove_leftovers(database)
    async with database.administer() as connection:
        assert await tables(connection) == [new]
        left = await connection.fetch("SELECT id FROM braid.generations")
    assert [row["id"] for row in left] == [after.generation.id]
