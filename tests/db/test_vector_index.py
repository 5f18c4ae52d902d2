"""The approximate index: built by the worker, measured, rebuilt when broken, dropped on request."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import asyncpg
import msgspec
import numpy as np
import pytest
from support.dense import ask, ids, without_index
from support.indexing import eventually, finished, ingest, working
from support.indexing_process import start_worker
from support.vectors import add_vectors, clustered, current, exact_ids, vector_collection

from service.db import vector_index as db_vector_index
from service.db.catalog import delete_collection
from service.db.jobs import JobInfo, get_job, insert_job
from service.db.pool import Database
from service.db.vector_index import open_builder
from service.indexing import recall, vector_index
from service.indexing.vector_index import request_index, request_index_if_due
from service.indexing.worker import Worker
from service.models import Collection

DIM = 32


@pytest.fixture
async def worker(database: Database, dsn: str) -> AsyncIterator[Worker]:
    async with working(database, dsn, None) as worker:
        yield worker


async def built(database: Database, collection: Collection) -> tuple[Collection, JobInfo]:
    job = await finished(database, collection, await request_index(database, collection, "hnsw"))
    assert job.status == "done", job
    return await current(database, collection), job


async def index_names(dsn: str, collection: Collection) -> dict[str, bool]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT c.relname AS name, i.indisvalid AS valid"
            " FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " WHERE i.indrelid = $1::text::regclass AND c.relname ~ 'hnsw'",
            f"braid.chunks_{collection.generation.id}",
        )
    finally:
        await connection.close()
    return {row["name"]: row["valid"] for row in rows}


@contextlib.asynccontextmanager
async def writing(dsn: str, collection: Collection) -> AsyncIterator[None]:
    """A transaction that has written to the table: building an index beside it has to wait."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            table = f"braid.chunks_{collection.generation.id:d}"
            await connection.execute(f"UPDATE {table} SET position = position WHERE id = 1")
            yield
    finally:
        await connection.close()


async def job_of(database: Database, collection: Collection, job_id: int) -> JobInfo:
    async with database.administer() as connection:
        job = await get_job(connection, collection.id, job_id)
    assert job is not None
    return job


async def test_an_index_on_demand_is_measured_and_used(
    database: Database, dsn: str, worker: Worker
) -> None:
    vectors = clustered(2000, DIM)
    collection = await vector_collection(database, vectors)
    assert (await ask(database, collection, vectors[3])).method == "exact"
    collection, job = await built(database, collection)
    assert (job.kind, job.counts.documents, job.warnings) == ("index", 0, [])
    index = collection.generation.vector_index
    assert index is not None
    assert index.rows == 2000
    assert index.ef_search is not None
    answer = await ask(database, collection, vectors[3])
    assert answer.method == "hnsw"
    assert ids(answer)[:10] == exact_ids(vectors, vectors[3], range(2000), 10)
    exact = await ask(database, without_index(collection), vectors[3])
    assert answer.candidates[:10] == exact.candidates[:10]
    assert await index_names(dsn, collection) == {f"chunks_{collection.generation.id}_hnsw": True}


async def test_an_index_on_demand_of_an_empty_collection_serves_what_comes_later(
    database: Database, worker: Worker
) -> None:
    collection, _ = await built(database, await vector_collection(database, clustered(0, DIM)))
    vectors = clustered(500, DIM)
    await add_vectors(database, collection, vectors)
    answer = await ask(database, collection, vectors[7])
    assert (answer.method, len(answer.candidates)) == ("hnsw", 40)


async def test_a_dropped_index_stays_away_until_it_is_asked_for(
    database: Database, dsn: str, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = clustered(600, DIM)
    collection, _ = await built(database, await vector_collection(database, vectors))
    job_id = await request_index(database, collection, "exact")
    assert (await finished(database, collection, job_id)).status == "done"
    collection = await current(database, collection)
    assert collection.generation.vector_index is None
    assert await index_names(dsn, collection) == {}
    assert (await ask(database, collection, vectors[3])).method == "exact"
    monkeypatch.setattr(db_vector_index, "EXACT_COMPONENTS", 100)
    assert not await request_index_if_due(database, collection.generation)
    collection, _ = await built(database, collection)
    assert (await ask(database, collection, vectors[3])).method == "hnsw"


async def test_the_index_is_built_by_itself_past_a_size(
    database: Database, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db_vector_index, "EXACT_COMPONENTS", 100 * DIM)
    monkeypatch.setattr(vector_index, "EXACT_COMPONENTS", 100 * DIM)
    collection = await vector_collection(database, clustered(90, DIM))
    for number in range(2):
        chunks = [
            {"id": f"{number}-{row}", "vector": vector.tolist()}
            for row, vector in enumerate(clustered(15, DIM, seed=number))
        ]
        await ingest(database, collection, {"doc_id": f"more{number}", "chunks": chunks})

    async def has_index() -> bool:
        return (await current(database, collection)).generation.vector_index is not None

    await eventually(has_index)


async def test_an_index_is_due_once_and_again_when_the_collection_has_grown(
    database: Database, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = await vector_collection(database, clustered(400, DIM))
    generation = collection.generation
    assert not await request_index_if_due(database, generation)
    monkeypatch.setattr(db_vector_index, "EXACT_COMPONENTS", 100 * DIM)
    monkeypatch.setattr(vector_index, "EXACT_COMPONENTS", 100 * DIM)
    monkeypatch.setattr(db_vector_index, "GROWTH_ROWS", 0)
    assert await request_index_if_due(database, generation)
    assert not await request_index_if_due(database, generation)

    async def rows() -> int:
        index = (await current(database, collection)).generation.vector_index
        return index.rows if index else 0

    async def measured_all() -> bool:
        return await rows() == 800

    async def measured() -> bool:
        return await rows() == 400

    await eventually(measured)
    await add_vectors(database, collection, clustered(400, DIM, seed=2), after=400)

    async def due() -> bool:
        return await request_index_if_due(database, generation)

    await eventually(due)
    await eventually(measured_all)


async def test_searches_and_writes_go_on_while_the_job_tells_where_the_build_is(
    database: Database, dsn: str, worker: Worker
) -> None:
    vectors = clustered(300, DIM)
    collection = await vector_collection(database, vectors)
    async with writing(dsn, collection):
        job_id = await request_index(database, collection, "hnsw")

        async def waits() -> bool:
            progress = (await job_of(database, collection, job_id)).progress
            return progress is not None and "waiting" in progress["phase"]

        await eventually(waits)
        chunk = {"id": "new", "vector": vectors[9].tolist()}
        await ingest(database, collection, {"doc_id": "new", "chunks": [chunk]})
        assert {"new", "c000009"} == set(ids(await ask(database, collection, vectors[9]))[:2])
    assert (await finished(database, collection, job_id)).status == "done"
    answer = await ask(database, await current(database, collection), vectors[9])
    assert answer.method == "hnsw"
    assert {"new", "c000009"} == set(ids(answer)[:2])


async def test_an_index_that_was_left_incomplete_is_built_anew(
    database: Database, dsn: str, worker: Worker
) -> None:
    collection = await vector_collection(database, clustered(300, DIM))
    name = f"chunks_{collection.generation.id}_hnsw"
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        f"CREATE INDEX {name} ON braid.chunks_{collection.generation.id} USING hnsw"
        f" ((embedding::halfvec({DIM})) halfvec_cosine_ops);"
        f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'braid.{name}'::regclass"
    )
    before = await connection.fetchval(f"SELECT 'braid.{name}'::regclass::oid")
    await built(database, collection)
    assert await index_names(dsn, collection) == {name: True}
    assert await connection.fetchval(f"SELECT 'braid.{name}'::regclass::oid") != before
    await connection.close()


async def test_a_worker_killed_while_it_builds_leaves_the_build_to_the_next(
    database: Database, dsn: str
) -> None:
    collection = await vector_collection(database, clustered(300, DIM))
    process = start_worker(dsn)
    name = f"chunks_{collection.generation.id}_hnsw"
    async with writing(dsn, collection):
        job_id = await request_index(database, collection, "hnsw")

        async def left_half() -> bool:
            return await index_names(dsn, collection) == {name: False}

        await eventually(left_half)
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        async with working(database, dsn, None, lease_seconds=0.6):
            await asyncio.sleep(0)
    async with working(database, dsn, None, lease_seconds=0.6):
        assert (await finished(database, collection, job_id)).status == "done"
    assert await index_names(dsn, collection) == {name: True}
    assert (await current(database, collection)).generation.vector_index is not None


async def test_one_worker_at_a_time_changes_the_indexes_of_a_generation(dsn: str) -> None:
    async with open_builder(dsn, memory_mb=None) as one, open_builder(dsn, memory_mb=1) as other:
        assert await one.claim(7)
        assert not await other.claim(7)
        assert await other.claim(8)


async def test_many_requests_and_workers_build_one_index(database: Database, dsn: str) -> None:
    collection = await vector_collection(database, clustered(300, DIM))
    async with working(database, dsn, None), working(database, dsn, None):
        jobs = [await request_index(database, collection, "hnsw") for _ in range(4)]
        for job_id in set(jobs):
            assert (await finished(database, collection, job_id)).status == "done"
    assert list(await index_names(dsn, collection)) == [f"chunks_{collection.generation.id}_hnsw"]


async def test_a_deleted_collection_ends_the_build_of_its_index(
    database: Database, dsn: str, worker: Worker
) -> None:
    collection = await vector_collection(database, clustered(300, DIM))
    table = f"braid.chunks_{collection.generation.id}"
    async with writing(dsn, collection):
        await request_index(database, collection, "hnsw")

        async def building() -> bool:
            return bool(await index_names(dsn, collection))

        await eventually(building)
        async with database.administer() as connection:
            await delete_collection(connection, collection.id)

        async def ended() -> bool:
            row = await database.fetch_row(
                "SELECT count(*) FROM pg_stat_progress_create_index"
                " WHERE relid = to_regclass($1::text)",
                table,
            )
            return row is not None and row[0] == 0

        await eventually(ended)


async def test_too_little_memory_becomes_a_warning_of_the_job(database: Database, dsn: str) -> None:
    collection = await vector_collection(database, clustered(3000, DIM))
    async with working(database, dsn, None, index_memory_mb=1):
        _, job = await built(database, collection)
    assert len(job.warnings) == 1
    assert "no longer fits into maintenance_work_mem" in job.warnings[0]


async def test_below_the_target_searches_stay_exact_unless_they_say_how_wide(
    database: Database, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "EF_SEARCH", (11,))
    vectors = np.random.default_rng(5).normal(size=(3000, 128)).astype(np.float32)
    collection, _ = await built(database, await vector_collection(database, vectors))
    index = collection.generation.vector_index
    assert index is not None
    assert index.ef_search is None
    row = await database.fetch_row(
        "SELECT index_recall, index_note FROM braid.generations WHERE id = $1",
        collection.generation.id,
    )
    assert row is not None
    assert row[0] < 0.99
    assert "below the target 0.99" in row[1]
    assert (await ask(database, collection, vectors[3])).method == "exact"
    wide = await ask(database, collection, vectors[3], ef_search=400)
    assert (wide.method, wide.ef_search) == ("hnsw", 400)


@pytest.mark.parametrize("target", [0.5, 0.99])
async def test_a_higher_target_takes_a_wider_search(
    database: Database, worker: Worker, monkeypatch: pytest.MonkeyPatch, target: float
) -> None:
    monkeypatch.setattr(recall, "EF_SEARCH", (11, 1000))
    vectors = np.random.default_rng(5).normal(size=(3000, 128)).astype(np.float32)
    collection = await vector_collection(database, vectors)
    async with database.administer() as connection:
        await connection.execute(
            "UPDATE braid.collections SET target_recall = $2 WHERE id = $1", collection.id, target
        )
    collection, _ = await built(database, collection)
    index = collection.generation.vector_index
    assert index is not None
    assert index.ef_search is not None
    assert index.ef_search == (11 if target == 0.5 else 1000)


async def test_changing_the_quantization_replaces_the_index(
    database: Database, dsn: str, worker: Worker
) -> None:
    vectors = clustered(1500, 128)
    collection, _ = await built(database, await vector_collection(database, vectors))
    async with database.administer() as connection:
        await connection.execute(
            "UPDATE braid.collections SET quantization = 'binary' WHERE id = $1", collection.id
        )
    collection, _ = await built(database, await current(database, collection))
    assert await index_names(dsn, collection) == {
        f"chunks_{collection.generation.id}_hnsw_binary": True
    }
    index = collection.generation.vector_index
    assert index is not None
    assert index.quantization == "binary"
    answer = await ask(database, collection, vectors[3], ef_search=400)
    exact = await ask(database, without_index(collection), vectors[3])
    assert answer.method == "hnsw"
    assert answer.candidates[:10] == exact.candidates[:10]


async def test_an_index_that_the_server_cannot_build_is_an_error_that_says_why(
    database: Database, dsn: str, worker: Worker
) -> None:
    collection = await vector_collection(database, clustered(20, DIM))
    wrong = msgspec.structs.replace(collection.generation, dim=16)
    async with database.administer() as connection:
        await connection.execute("UPDATE braid.generations SET dim = 16 WHERE id = $1", wrong.id)
    job = await finished(database, collection, await request_index(database, collection, "hnsw"))
    assert job.status == "error"
    assert job.error is not None
    assert "expected 16 dimensions, not 32" in job.error
    assert await index_names(dsn, collection) == {}


async def test_a_load_may_end_before_the_index_is_built_within_bounds(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = await vector_collection(database, clustered(400, DIM))
    async with database.administer() as connection:
        job_id = await insert_job(connection, 1, collection.id)
    monkeypatch.setattr(db_vector_index, "EXACT_COMPONENTS", 100 * DIM)
    assert not await request_index_if_due(database, collection.generation)
    monkeypatch.setattr(db_vector_index, "EXACT_COMPONENTS", 40 * DIM)
    assert await request_index_if_due(database, collection.generation)
    async with database.administer() as connection:
        await connection.execute("DELETE FROM braid.jobs WHERE kind = 'index'")
        await connection.execute("UPDATE braid.jobs SET status = 'done' WHERE id = $1", job_id)
    monkeypatch.setattr(db_vector_index, "EXACT_COMPONENTS", 100 * DIM)
    assert await request_index_if_due(database, collection.generation)
