"""A collection and a worker in the test's own database, without HTTP."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from service.db.catalog import NewCollection, insert_collection, lock_collection
from service.db.jobs import JobInfo
from service.db.pool import Connection, Database
from service.indexing.intake import submit_documents
from service.indexing.waiting import wait_for_job
from service.indexing.worker import Worker
from service.models import Collection, Generation, IncomingDocument, IngestMode, SearchDefaults
from service.providers.base import Embedder

TEAM = 1
WAIT_SECONDS = 30


class OneEmbedder:
    """Hands out the same embedder for every generation that has a provider."""

    def __init__(self, embedder: Embedder | None) -> None:
        self.embedder = embedder

    async def get(self, generation: Generation) -> Embedder | None:
        return None if generation.provider == "none" else self.embedder


async def make_collection(database: Database, name: str = "docs", **fields: Any) -> Collection:
    """A collection that is embedded by a hashed model of 64 dimensions, unless told otherwise."""
    given: dict[str, Any] = {
        "provider": "hashed",
        "model": "hashed",
        "dim": 64,
        "language": "simple",
        "analyzer": "language",
        "chunk_size": 64,
        "chunk_overlap": 8,
    }
    new = NewCollection(name=name, search=SearchDefaults(), **{**given, **fields})
    async with database.administer() as connection:
        collection_id, _ = await insert_collection(connection, TEAM, new)
        collection = await lock_collection(connection, collection_id)
    assert collection is not None
    return collection


@contextlib.asynccontextmanager
async def working(
    database: Database, dsn: str, embedder: Embedder | None, **options: Any
) -> AsyncIterator[Worker]:
    """A worker beside the test."""
    worker = Worker(database, dsn, OneEmbedder(embedder), **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


def documents(*given: dict[str, Any]) -> list[IncomingDocument]:
    """Documents as the API would have read them."""
    return msgspec.convert(list(given), list[IncomingDocument])


async def submit(
    database: Database,
    collection: Collection,
    *given: dict[str, Any],
    mode: IngestMode | None = None,
) -> int:
    return await submit_documents(database, collection, documents(*given), mode)


async def ingest(
    database: Database,
    collection: Collection,
    *given: dict[str, Any],
    mode: IngestMode | None = None,
) -> JobInfo:
    """Submit documents and wait for their job to end."""
    return await finished(
        database, collection, await submit(database, collection, *given, mode=mode)
    )


async def finished(database: Database, collection: Collection, job_id: int) -> JobInfo:
    """A job that must have ended."""
    job = await wait_for_job(database, collection, job_id, seconds=WAIT_SECONDS)
    assert job.status in ("done", "error"), job
    return job


async def eventually(condition: Callable[[], Awaitable[object]], seconds: float = 10) -> None:
    """Ask until it is true, for what nobody announces."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, "it never happened"
        await asyncio.sleep(0.01)


async def rows(database: Database, collection: Collection, doc_id: str) -> list[dict[str, Any]]:
    """The stored records of a document, chunks in reading order and then the summary."""
    async with database.administer() as connection:
        return await fetch(
            connection,
            "SELECT c.*, c.xmin::text AS version FROM braid.chunks c WHERE generation_id = $1"
            " AND doc_id = $2 ORDER BY type, position, chunk_id",
            collection.generation.id,
            doc_id,
        )


async def fetch(connection: Connection, statement: str, *arguments: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in await connection.fetch(statement, *arguments)]


def column(found: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in found]
