"""Kill -9 at any moment of indexing: nothing is lost, and nothing is ever seen half."""

import asyncio
import contextlib
import os
import random
import signal
import tempfile
from pathlib import Path
from typing import Any

from support.embedded_processes import eventually as wait_until
from support.embedded_processes import is_gone, postmaster
from support.hashed_embedder import HashedEmbedder
from support.indexing import eventually, finished, make_collection, submit, working
from support.indexing_process import LEASE_SECONDS, SlowEmbedder, start_worker

from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate
from service.db.pool import Database, open_database
from service.errors import UnavailableError
from service.models import Collection

KILLS = 10
OLD_DOCUMENTS = 60
DOCUMENTS = 120
MOST_SECONDS = 1.0
VISIBLE = """
SELECT c.doc_id, d.status, split_part(min(c.text), ' ', 1) AS first,
    split_part(max(c.text), ' ', 1) AS last, count(*) AS chunks
FROM braid.searchable c JOIN braid.documents d ON d.id = c.document_id
WHERE c.generation_id = $1 GROUP BY c.doc_id, d.status
"""


def size(version: str, number: int) -> int:
    return 1 + (number * 7 + len(version) * 3) % 12


def document(version: str, number: int) -> dict[str, Any]:
    chunks = [
        {"id": f"{at}", "text": f"{version} of document {number}, part {at}"}
        for at in range(size(version, number))
    ]
    return {"doc_id": f"d{number}", "chunks": chunks}


def is_whole(row: Any) -> bool:
    """A visible document is ready and shows one version with all of its chunks."""
    expected = size(row["first"], int(row["doc_id"][1:]))
    whole = row["first"] == row["last"] and row["chunks"] == expected
    return bool(whole and row["status"] == "ready")


class Watcher:
    """Looks at the index again and again, as a search would see it."""

    def __init__(self, database: Database, collection: Collection) -> None:
        self._database = database
        self._collection = collection
        self._task: asyncio.Task[None] | None = None
        self.looks = 0
        self.broken: list[dict[str, Any]] = []

    async def __aenter__(self) -> "Watcher":
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def count(self, version: str) -> int:
        """Documents that are wholly visible in this version."""
        rows = await self._visible()
        return sum(row["first"] == version and is_whole(row) for row in rows)

    async def _visible(self) -> list[Any]:
        async with self._database.read(self._collection.team_id) as connection:
            return list(await connection.fetch(VISIBLE, self._collection.generation.id))

    async def _watch(self) -> None:
        most = 0
        while True:
            rows = await self._visible()
            self.broken += [dict(row) for row in rows if not is_whole(row)]
            # What was visible in one version or the other never disappears in between.
            self.broken += [{"visible": len(rows), "before": most}] if len(rows) < most else []
            most = len(rows)
            self.looks += 1
            await asyncio.sleep(0.005)


async def test_a_worker_killed_ten_times_loses_nothing_and_shows_nothing_half(
    database: Database, dsn: str
) -> None:
    chance = random.Random(20240607)
    collection = await make_collection(database)
    old = [document("first", number) for number in range(OLD_DOCUMENTS)]
    new = [document("second", number) for number in range(DOCUMENTS)]
    watcher = Watcher(database, collection)
    async with watcher:
        async with working(database, dsn, HashedEmbedder()):
            await finished(database, collection, await submit(database, collection, *old))
        jobs = [
            await submit(database, collection, *new[start : start + 40], mode="replace")
            for start in range(0, DOCUMENTS, 40)
        ]
        done = []
        for _ in range(KILLS):
            process = await asyncio.to_thread(start_worker, dsn)
            await asyncio.sleep(chance.uniform(0.1, MOST_SECONDS))
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
            done.append(await watcher.count("second"))
        async with working(database, dsn, HashedEmbedder(), lease_seconds=LEASE_SECONDS):
            ended = [await finished(database, collection, job_id) for job_id in jobs]
    assert watcher.broken == []
    assert watcher.looks > 100
    assert 0 < done[KILLS // 2] < DOCUMENTS, "the kills missed the work"
    assert [job.status for job in ended] == ["done"] * len(jobs)
    assert [job.counts.indexed for job in ended] == [40] * len(jobs)
    assert await watcher.count("second") == DOCUMENTS
    assert await watcher.count("first") == 0


async def test_the_database_killed_while_documents_are_indexed_loses_nothing() -> None:
    with tempfile.TemporaryDirectory(prefix="braid-", ignore_cleanup_errors=True) as folder:
        server = EmbeddedPostgres(Path(folder))
        await migrate(await asyncio.to_thread(server.start))
        database = await open_database(server.dsn(), size=6)
        try:
            await _kill_the_database_while_indexing(server, database)
        finally:
            await database.close()
            await asyncio.to_thread(server.stop)


async def _kill_the_database_while_indexing(server: EmbeddedPostgres, database: Database) -> None:
    collection = await make_collection(database)
    given = [document("first", number) for number in range(DOCUMENTS)]
    job_id = await submit(database, collection, *given)
    watcher = Watcher(database, collection)

    async def begun() -> bool:
        return await watcher.count("first") > 0

    async def answers() -> bool:
        with contextlib.suppress(UnavailableError):
            return await begun()
        return False

    async with working(database, server.dsn(), SlowEmbedder(), lease_seconds=LEASE_SECONDS):
        await eventually(begun)
        killed = postmaster(server.root)
        os.kill(killed, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: is_gone(killed))
        await asyncio.to_thread(server.start)
        await eventually(answers)
        assert await watcher.count("first") < DOCUMENTS, "the kill came too late"
        job = await finished(database, collection, job_id)
    assert (job.status, job.counts.indexed) == ("done", DOCUMENTS)
    assert await watcher.count("first") == DOCUMENTS
