"""A re-index while others write and search, its worker killed at any moment."""

import asyncio
import contextlib
import itertools
import random
import signal
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from support.hashed_embedder import HashedEmbedder
from support.indexing import (
    OneEmbedder,
    eventually,
    finished,
    ingest,
    make_collection,
    submit,
    working,
)
from support.indexing_process import LEASE_SECONDS, start_worker
from support.reindexing import current, job_of, start

from service.db.pool import Database
from service.errors import NotFoundError
from service.indexing.editing import delete_document, patch_metadata
from service.models import Collection
from service.search.lexical import CorpusCache
from service.search.packed import PackedIndex
from service.search.pipeline import SearchServices, search_collection
from service.search.request import Expand, Query, SearchRequest
from service.search.statistics import StatisticsCache

KILLS = 5
STABLE = 150
CHANGING = 20
MOST_SECONDS = 0.7
"""From a first sign of its work to the death of a worker."""
CONTENT = """
SELECT c.doc_id, min(c.text) AS text, count(*) AS chunks, c.metadata ->> 'turn' AS turn
FROM braid.chunks c WHERE c.generation_id = $1 GROUP BY c.doc_id, c.metadata ->> 'turn'
"""
EXPECTED = """
SELECT d.doc_id, d.text, 1 AS chunks, d.metadata ->> 'turn' AS turn
FROM braid.documents d WHERE d.collection_id = $1
"""


async def nothing_waits(database: Database) -> bool:
    row = await database.fetch_row(
        "SELECT NOT EXISTS (SELECT FROM braid.ingests WHERE status = 'pending')"
    )
    return row is not None and bool(row[0])


def changing(number: int, turn: int) -> dict[str, Any]:
    text = f"changing document {number} in its version {turn}"
    return {"doc_id": f"c{number}", "text": text, "metadata": {"turn": str(turn)}}


class Users:
    """Two write and two search until they are told to stop; what went wrong is kept."""

    def __init__(self, database: Database, collection: Collection) -> None:
        self._database = database
        self._collection = collection
        self._services = SearchServices(
            database,
            OneEmbedder(HashedEmbedder()),
            CorpusCache(StatisticsCache(), PackedIndex()),
        )
        self._stop = asyncio.Event()
        self.wrong: list[str] = []
        self.searches = 0
        self.writes = 0

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator["Users"]:
        tasks = [
            asyncio.create_task(self._run(work))
            for work in (
                self._write(0),
                self._write(1),
                self._search("text"),
                self._search("vector"),
            )
        ]
        try:
            yield self
        finally:
            self._stop.set()
            await asyncio.gather(*tasks)

    async def _run(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the test shows it
            self.wrong.append(repr(error))

    async def _write(self, half: int) -> None:
        chance = random.Random(half)
        for turn in itertools.count(1):
            if self._stop.is_set():
                return
            number = chance.randrange(CHANGING // 2) * 2 + half
            if chance.random() < 0.2:
                with contextlib.suppress(NotFoundError):
                    await delete_document(self._database, self._collection, f"c{number}")
            elif chance.random() < 0.3:
                with contextlib.suppress(NotFoundError):
                    patch = {"turn": f"patched {turn}"}
                    await patch_metadata(self._database, self._collection, f"c{number}", patch)
            else:
                await submit(self._database, self._collection, changing(number, turn))
            self.writes += 1
            await asyncio.sleep(0.05)

    async def _search(self, mode: Any) -> None:
        query = Query(text="stable")
        while not self._stop.is_set():
            collection = await current(self._database, self._collection)
            request = SearchRequest(
                query, mode=mode, k=STABLE, expand=Expand(neighbours=1), timeout_ms=60_000
            )
            answer = await search_collection(self._services, collection, request)
            assert answer.hits is not None
            found = sorted(hit.id for hit in answer.hits)  # type: ignore[union-attr]
            if answer.degraded:
                self.wrong.append(f"degraded: {answer.degraded}")
            expected = sorted(f"s{number}::0" for number in range(STABLE))
            if mode == "text" and found != expected:
                self.wrong.append(f"text search found {len(found)}, {len(set(found))} of them")
            if mode == "vector" and (len(found) != STABLE or len(set(found)) != STABLE):
                self.wrong.append(f"vector search found {len(found)}, {len(set(found))} of them")
            self.searches += 1
            await asyncio.sleep(0.02)


async def filled(database: Database, dsn: str) -> Collection:
    collection = await make_collection(database, language="english")
    given = [{"doc_id": f"s{at}", "text": f"stable text {at}"} for at in range(STABLE)]
    given += [changing(number, 0) for number in range(CHANGING)]
    async with working(database, dsn, HashedEmbedder()):
        await ingest(database, collection, *given)
    return collection


async def progress_of(database: Database) -> tuple[int, int]:
    """How far the build is, and how often its next documents were begun."""
    async with database.administer() as connection:
        row = await connection.fetchrow("SELECT built_to, attempts FROM braid.builds")
    return (0, 0) if row is None else (row["built_to"], row["attempts"])


async def is_past(database: Database, before: tuple[int, int]) -> bool:
    return await progress_of(database) != before


async def content(database: Database, statement: str, owner: int) -> set[tuple[Any, ...]]:
    async with database.administer() as connection:
        return {tuple(row) for row in await connection.fetch(statement, owner)}


async def test_a_reindex_killed_five_times_ends_right_while_others_write_and_search(
    database: Database, dsn: str
) -> None:
    chance = random.Random(20251130)
    collection = await filled(database, dsn)
    job_id = await start(database, collection, HashedEmbedder(), model="another", language="german")
    progress = []
    async with Users(database, collection).at_work() as users:
        for _ in range(KILLS):
            before = await progress_of(database)
            process = await asyncio.to_thread(start_worker, dsn)
            try:
                await eventually(lambda before=before: is_past(database, before), seconds=60)
                await asyncio.sleep(chance.uniform(0, MOST_SECONDS))
            finally:
                process.send_signal(signal.SIGKILL)
                await asyncio.to_thread(process.wait)
            progress.append((await job_of(database, collection, job_id)).counts.indexed)
        async with working(database, dsn, HashedEmbedder(), lease_seconds=LEASE_SECONDS):
            job = await finished(database, collection, job_id)
    assert users.wrong == []
    assert users.searches > 20
    assert users.writes > 20
    assert job.status == "done"
    assert any(0 < done < STABLE + CHANGING for done in progress), "the kills missed the work"
    after = await current(database, collection)
    assert (after.generation.model, after.generation.language) == ("another", "german")
    async with working(database, dsn, HashedEmbedder(), lease_seconds=LEASE_SECONDS):
        await ingest(database, after, {"doc_id": "last", "text": "one more"})
        await eventually(lambda: nothing_waits(database), seconds=60)
    # Every document is there once, as it was sent last.
    assert await content(database, CONTENT, after.generation.id) == await content(
        database, EXPECTED, collection.id
    )
