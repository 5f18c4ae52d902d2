"""The approximate index: built by the worker, used by searches, and never short of rows."""

from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest
from support.indexing import finished, working
from support.vectors import clustered, current, exact_ids, vector_collection

from service.db.candidates import CandidateQuery
from service.db.jobs import JobInfo
from service.db.pool import Database
from service.indexing.vector_index import request_index
from service.indexing.worker import Worker
from service.models import Collection, Vector
from service.search.dense import DenseAnswer, FilterShares, dense_leg
from service.search.request import Query, SearchRequest, plan_search

DIM = 32


@pytest.fixture
async def worker(database: Database, dsn: str) -> AsyncIterator[Worker]:
    async with working(database, dsn, None) as worker:
        yield worker


async def built(database: Database, collection: Collection) -> tuple[Collection, JobInfo]:
    job = await finished(database, collection, await request_index(database, collection, "hnsw"))
    assert job.status == "done", job
    return await current(database, collection), job


async def ask(
    database: Database, collection: Collection, vector: Vector, **request: object
) -> DenseAnswer:
    asked = SearchRequest(Query(vector=vector.tolist()), mode="vector", **request)  # type: ignore[arg-type]
    plan = plan_search(asked, collection)
    query = CandidateQuery(
        collection.generation.id, asked.scope, plan.filter, plan.pool, plan.per_document
    )
    return await dense_leg(database, FilterShares(), plan, query, vector)


def ids(answer: DenseAnswer) -> list[str]:
    return [one.chunk_id for one in answer.candidates]


async def index_names(dsn: str, collection: Collection) -> dict[str, bool]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT indexrelid::regclass::text AS name, indisvalid AS valid FROM pg_index"
            " WHERE indrelid = $1::text::regclass AND indexrelid::regclass::text ~ 'hnsw'",
            f"braid.chunks_{collection.generation.id}",
        )
    finally:
        await connection.close()
    return {row["name"].removeprefix("braid."): row["valid"] for row in rows}


async def test_an_index_on_demand_is_measured_and_used(database: Database, worker: Worker) -> None:
    vectors = clustered(2000, DIM)
    collection = await vector_collection(database, vectors)
    assert (await ask(database, collection, vectors[3])).method == "exact"
    collection, job = await built(database, collection)
    assert (job.kind, job.counts.documents) == ("index", 0)
    index = collection.generation.vector_index
    assert index is not None
    assert index.rows == 2000
    assert index.ef_search is not None
    answer = await ask(database, collection, vectors[3])
    assert answer.method == "hnsw"
    assert ids(answer)[:10] == exact_ids(vectors, vectors[3], range(2000), 10)
    exact = await ask(database, without_index(collection), vectors[3])
    assert [one.score for one in answer.candidates[:10]] == [
        one.score for one in exact.candidates[:10]
    ]


def without_index(collection: Collection) -> Collection:
    generation = msgspec.structs.replace(collection.generation, vector_index=None)
    return msgspec.structs.replace(collection, generation=generation)
