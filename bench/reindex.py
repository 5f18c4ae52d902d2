"""A re-index while clients search and write: what they notice of it.

One embedded PostgreSQL, a search API and a worker as processes of their own. Eight clients search
(hybrid, with vectors of their own) and two write, first without and then during a re-index from
English to Spanish; during a second one the worker is killed five times. Targets: no error, no
empty, short or doubled answer, and a p95 of at most twice that without. At last a collection of
100,000 chunks is deleted while the clients search on.
"""

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import httpx
import msgspec
import numpy as np
from search_overhead import KEY, corpus, ready, serving

from service.db.builds import builds_under_way
from service.db.catalog import NewCollection, insert_collection, lock_collection
from service.db.embedded import EmbeddedPostgres
from service.db.jobs import JobInfo
from service.db.migrate import migrate
from service.db.pool import Database, open_database
from service.indexing.intake import submit_documents
from service.indexing.reindexing import plan_reindex, start_reindex
from service.indexing.waiting import wait_for_job
from service.models import Collection, IncomingChunk, IncomingDocument, SearchDefaults
from service.providers.embedders import Embedders
from service.providers.registry import EmbedderOptions

TEAM = 1
NAME = "bench"
CHUNKS_A_DOCUMENT = 5
SEARCHERS, WRITERS, KILLS, K = 8, 2, 5, 10
WARM_SEARCHES = 1_000
MOST_SECONDS = 3.0
"""Between the first sign of life of a worker and its death."""
BATCH = 50
LARGE_CHUNKS = 100_000

COPY = """
INSERT INTO braid.chunks (generation_id, team_id, document_id, type, chunk_id, doc_id, position,
    text, content_hash, length, tsv, bm25, embedding, own_vector)
SELECT $1, team_id, $3::bigint, type, chunk_id || '-' || $3::bigint, doc_id, position, text,
    content_hash, length, tsv, bm25, embedding, own_vector
FROM braid.chunks WHERE generation_id = $2
"""
ADD_DOCUMENTS = """
INSERT INTO braid.documents (team_id, collection_id, doc_id, status)
SELECT $1, $2, 'd' || n, 'ready' FROM generate_series(1, $3::int) AS n
"""
VISIBLE = """
SELECT d.doc_id, count(*) AS chunks, min(c.metadata ->> 'v') AS first,
    max(c.metadata ->> 'v') AS last
FROM braid.documents d JOIN braid.chunks c ON c.document_id = d.id
WHERE c.generation_id = $1 GROUP BY d.doc_id
"""


class Corpus:
    """Documents of a few chunks each; a new version has the same texts, vectors and chunk ids."""

    def __init__(self, chunks: int, dim: int) -> None:
        self.texts, self.vectors = corpus(chunks, dim, np.random.default_rng(7))
        self.documents = chunks // CHUNKS_A_DOCUMENT
        self.versions = [0] * self.documents

    def document(self, number: int) -> IncomingDocument:
        """The document as it shall be now."""
        rows = range(number * CHUNKS_A_DOCUMENT, (number + 1) * CHUNKS_A_DOCUMENT)
        version = self.versions[number]
        chunks = [
            IncomingChunk(
                id=f"c{row}",
                text=f"{self.texts[row]} version{version}",
                vector=self.vectors[row].tolist(),
            )
            for row in rows
        ]
        metadata = {"v": f"{version:06}"}
        return IncomingDocument(doc_id=f"d{number}", chunks=chunks, metadata=metadata)

    def question(self, chance: random.Random) -> bytes:
        """Eight words of a chunk and a vector near its own, as a request."""
        row = chance.randrange(len(self.texts))
        words = chance.sample(self.texts[row].split(), 8)
        query = {"text": " ".join(words), "vector": (self.vectors[row] + 0.01).tolist()}
        return msgspec.json.encode({"query": query, "k": K, "timeout_ms": 60_000})


class Load:
    """Clients at work, and what they saw."""

    def __init__(self, database: Database, corpus: Corpus, port: int) -> None:
        self._database = database
        self._corpus = corpus
        self._port = port
        self._stop = asyncio.Event()
        self.milliseconds: list[float] = []
        self.wrong: list[str] = []
        self.writes = 0

    @asynccontextmanager
    async def at_work(self, *, writers: int = WRITERS) -> AsyncIterator["Load"]:
        """Search and write until the block ends."""
        work = [self._search(number) for number in range(SEARCHERS)]
        work += [self._write(number, writers) for number in range(writers)]
        tasks = [asyncio.create_task(one) for one in work]
        try:
            yield self
        finally:
            self._stop.set()
            await asyncio.gather(*tasks)

    async def _search(self, number: int) -> None:
        chance = random.Random(number)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while not self._stop.is_set():
            body = self._corpus.question(chance)
            began = time.perf_counter()
            status, answer = await _ask(reader, writer, body)
            self.milliseconds.append((time.perf_counter() - began) * 1000)
            self._check(status, answer)
        writer.close()

    def _check(self, status: int, answer: bytes) -> None:
        found = msgspec.json.decode(answer)
        ids = [hit["id"] for hit in found.get("hits", [])]
        if status != 200 or found["degraded"]:
            self.wrong.append(f"status {status}, degraded {found.get('degraded')}")
        elif len(ids) != K or len(set(ids)) != K:
            self.wrong.append(f"{len(ids)} hits, {len(set(ids))} of them different")

    async def _write(self, number: int, writers: int) -> None:
        chance = random.Random(100 + number)
        corpus = self._corpus
        while not self._stop.is_set():
            document = chance.randrange(corpus.documents // writers) * writers + number
            corpus.versions[document] += 1
            collection = await collection_of(self._database)
            try:
                job_id = await submit_documents(
                    self._database, collection, [corpus.document(document)]
                )
                await wait_for_job(self._database, collection, job_id, seconds=10)
            except Exception as error:  # noqa: BLE001 - reported at the end
                self.wrong.append(f"write: {error!r}")
            self.writes += 1

    def percentile(self, share: float) -> float:
        """Milliseconds of a search that this share of searches did not exceed."""
        return sorted(self.milliseconds)[int(len(self.milliseconds) * share)]

    def report(self, name: str) -> None:
        """Print what the clients saw."""
        print(
            f"{name:<34} {len(self.milliseconds):6} searches, p50 {self.percentile(0.5):7.1f} ms,"
            f" p95 {self.percentile(0.95):7.1f} ms, slowest {max(self.milliseconds):7.1f} ms;"
            f" {self.writes} writes; wrong: {len(self.wrong)}"
        )
        for wrong in self.wrong[:5]:
            print(f"    {wrong}")


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> tuple[int, bytes]:
    head = (
        f"POST /v1/collections/{NAME}/search HTTP/1.1\r\nHost: braid\r\nX-API-Key: {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(answer.split(b"content-length:")[1].split()[0])
    return int(answer.split()[1]), await reader.readexactly(length)


class Worker:
    """`braid worker` as a process, to be killed."""

    running: ClassVar[list["Worker"]] = []

    def __init__(self, dsn: str) -> None:
        environment = os.environ | {"BRAID_DATABASE_URL": dsn, "BRAID_LOG_LEVEL": "error"}
        command = [sys.executable, "-m", "service.cli", "worker"]
        self._process = subprocess.Popen(command, env=environment)
        Worker.running.append(self)

    async def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait for the end."""
        Worker.running.remove(self)
        self._process.send_signal(number)
        await asyncio.to_thread(self._process.wait, 30)


async def end_workers() -> None:
    """End those that are left."""
    for worker in list(Worker.running):
        await worker.end()


async def collection_of(database: Database) -> Collection:
    """The collection with the generation that is active now."""
    async with database.administer() as connection:
        row = await connection.fetchval("SELECT id FROM braid.collections WHERE name = $1", NAME)
        collection = await lock_collection(connection, row)
    assert collection is not None
    return collection


async def filled(database: Database, corpus: Corpus, dim: int) -> None:
    """The collection with all of its documents."""
    await make_collection(database, NAME, dim)
    collection = await collection_of(database)
    job_id = 0
    for start in range(0, corpus.documents, BATCH):
        numbers = range(start, min(start + BATCH, corpus.documents))
        documents = [corpus.document(number) for number in numbers]
        job_id = await submit_documents(database, collection, documents)
        await wait_for_job(database, collection, job_id, seconds=600)


async def make_collection(database: Database, name: str, dim: int) -> int:
    """An empty collection for client vectors; its id."""
    new = NewCollection(
        name=name,
        search=SearchDefaults(),
        provider="none",
        model=None,
        dim=dim,
        language="english",
        analyzer="language",
        chunk_size=512,
        chunk_overlap=64,
    )
    async with database.administer() as connection:
        return (await insert_collection(connection, TEAM, new))[0]


async def idle(database: Database) -> None:
    """Wait until no job is left, such as the first build of a vector index."""
    while await _jobs_left(database):  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0.2)


async def _jobs_left(database: Database) -> bool:
    async with database.administer() as connection:
        left: bool = await connection.fetchval(
            "SELECT EXISTS (SELECT FROM braid.jobs WHERE status IN ('pending', 'processing'))"
        )
    return left


async def begun(database: Database, language: str) -> int:
    """The job of a re-index to another language."""
    collection = await collection_of(database)
    wanted = msgspec.structs.replace(collection.generation, language=language)
    embedders = Embedders(EmbedderOptions())
    plan = await plan_reindex(database, embedders, collection.generation, wanted)
    return await start_reindex(database, collection, wanted, plan)


async def finished(database: Database, job_id: int) -> JobInfo:
    """The job when it has ended."""
    collection = await collection_of(database)
    job = await wait_for_job(database, collection, job_id, seconds=1800)
    assert job.status == "done", job
    return job


async def killed(database: Database, dsn: str) -> None:
    """Kill the worker five times, each at a random moment after it got on, and start another."""
    chance = random.Random(5)
    for _ in range(KILLS):
        before = await carried(database)
        while await carried(database) == before:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.05)
        await asyncio.sleep(chance.uniform(0, MOST_SECONDS))
        await Worker.running[0].end(signal.SIGKILL)
        print(f"    killed at {await carried(database)} documents")
        Worker(dsn)


async def carried(database: Database) -> int:
    """Documents that the build holds."""
    collection = await collection_of(database)
    async with database.administer() as connection:
        builds = await builds_under_way(connection, [collection.id])
    return builds[collection.id].indexed if builds else -1


async def check(database: Database, corpus: Corpus) -> None:
    """Every document is there, whole, in its last version."""
    await idle(database)
    collection = await collection_of(database)
    async with database.administer() as connection:
        rows = await connection.fetch(VISIBLE, collection.generation.id)
    expected = {f"d{at}": f"{version:06}" for at, version in enumerate(corpus.versions)}
    wrong = [
        row["doc_id"]
        for row in rows
        if row["chunks"] != CHUNKS_A_DOCUMENT
        or not row["first"] == row["last"] == expected[row["doc_id"]]
    ]
    print(f"    documents {len(rows)} of {corpus.documents}, not as sent last: {len(wrong)}")


async def delete_large(database: Database, load: Load, url: str, dim: int) -> None:
    """Delete a collection of 100,000 chunks while the clients search."""
    source = await collection_of(database)
    large = await make_collection(database, "large", dim)
    async with database.administer() as connection:
        made = await lock_collection(connection, large)
        assert made is not None
        size = await connection.fetchval(
            "SELECT count(*) FROM braid.chunks WHERE generation_id = $1", source.generation.id
        )
        await connection.execute(ADD_DOCUMENTS, TEAM, large, LARGE_CHUNKS)
        for turn in range(-(-LARGE_CHUNKS // size)):
            await connection.execute(COPY, made.generation.id, source.generation.id, turn)
    async with (
        httpx.AsyncClient(base_url=url, headers={"X-API-Key": KEY}) as client,
        load.at_work(writers=0),
    ):
        await asyncio.sleep(3)
        began = time.perf_counter()
        answer = await client.delete("/v1/collections/large", timeout=60)
        seconds = time.perf_counter() - began
        assert answer.status_code == 204, answer.text
        await asyncio.sleep(5)
    load.report(f"deleted {LARGE_CHUNKS} chunks in {seconds:.3f} s")


async def main(chunks: int, dim: int, seconds: float, parts: Sequence[str]) -> None:
    corpus = Corpus(chunks, dim)
    with tempfile.TemporaryDirectory(prefix="braid-bench-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder))
        dsn = postgres.start()
        try:
            await migrate(dsn)
            database = await open_database(dsn, size=8)
            try:
                await measure_all(database, dsn, corpus, seconds=seconds, parts=parts)
            finally:
                await end_workers()
                await database.close()
        finally:
            postgres.stop()


async def measure_all(
    database: Database, dsn: str, corpus: Corpus, *, seconds: float, parts: Sequence[str]
) -> None:
    """Load the corpus, then measure re-indexes and a deletion."""
    Worker(dsn)
    began, dim = time.perf_counter(), corpus.vectors.shape[1]
    await filled(database, corpus, dim)
    await idle(database)
    took = time.perf_counter() - began
    print(f"{len(corpus.texts)} chunks of {dim} dimensions loaded in {took:.0f} s")
    if "reindex" in parts:
        async with ready_server(dsn, "search") as url:
            port = httpx.URL(url).port or 80
            await measure(database, dsn, corpus, port=port, seconds=seconds)
    if "delete" in parts:
        async with ready_server(dsn, "all") as url:
            load = Load(database, corpus, httpx.URL(url).port or 80)
            await delete_large(database, load, url, dim)


@asynccontextmanager
async def ready_server(dsn: str, role: str) -> AsyncIterator[str]:
    """`braid serve` as a process that answers; its address."""
    with serving(dsn, role) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            await ready(client)
        yield url


async def measure(
    database: Database, dsn: str, corpus: Corpus, *, port: int, seconds: float
) -> None:
    """Search and write without a re-index, during one, and while its worker is killed."""
    async with Load(database, corpus, port).at_work() as warm:
        while len(warm.milliseconds) < WARM_SEARCHES:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.1)
    without = await loaded(database, corpus, port, seconds)
    without.report("without, before")
    async with Load(database, corpus, port).at_work() as during:
        began = time.perf_counter()
        job = await finished(database, await begun(database, "spanish"))
        took = time.perf_counter() - began
    during.report("during a re-index")
    print(f"    {took:.0f} s, {chunks_a_second(corpus, took)}, counts {job.counts}")
    await check(database, corpus)
    after = await loaded(database, corpus, port, seconds)
    after.report("without, after")
    without.milliseconds += after.milliseconds
    ratio = during.percentile(0.95) / without.percentile(0.95)
    print(f"    p95 during / without {ratio:.2f} (target at most 2)")
    async with Load(database, corpus, port).at_work() as load:
        job_id = await begun(database, "german")
        await killed(database, dsn)
        await finished(database, job_id)
    load.report(f"with the worker killed {KILLS} times")
    await check(database, corpus)


async def loaded(database: Database, corpus: Corpus, port: int, seconds: float) -> Load:
    """The load without a re-index."""
    async with Load(database, corpus, port).at_work() as load:
        await asyncio.sleep(seconds)
    return load


def chunks_a_second(corpus: Corpus, seconds: float) -> str:
    return f"{len(corpus.texts) / seconds:.0f} chunks a second"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=20, help="of the load without a re-index")
    parser.add_argument("--only", choices=["reindex", "delete"], help="one of the two parts")
    given = parser.parse_args()
    parts = [given.only] if given.only else ["reindex", "delete"]
    asyncio.run(main(given.chunks, given.dim, given.seconds, parts))
