"""The dense leg at size: recall, filters, and what it costs beside hand-written SQL.

Loads client vectors into a server of its own (embedded PostgreSQL): one large collection and some
small ones, on clustered vectors, on hard ones (low rank plus noise), and on request on pieces of
this machine's files embedded by the local model. The worker builds and measures the index as it
would for a user. Truth comes from numpy, not from the database. Times compare within one run only.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
from embedding_cache import CachedEmbedder
from lexical import chunks as pieces
from numpy.typing import NDArray
from pgvector import HalfVector

from service.app import create_app_for, local_embedders
from service.db.candidates import CandidateQuery
from service.db.catalog import NewCollection, find_collection, insert_collection
from service.db.embedded import EmbeddedPostgres
from service.db.jobs import get_job
from service.db.migrate import migrate
from service.db.pool import Database, open_database
from service.indexing.vector_index import request_index, request_index_if_due
from service.indexing.worker import Worker
from service.models import Collection, Quantization, SearchDefaults, Vector
from service.providers.embedders import Embedders
from service.providers.registry import EmbedderOptions
from service.search.dense import FilterShares, dense_leg
from service.search.request import Query, SearchPlan, SearchRequest, plan_search
from service.settings import Settings

K = 10
POOL = 40
KEY = "key-of-the-benchmark-run"
EQUAL_SCORES = 1e-6
COLUMNS = (
    "generation_id",
    "team_id",
    "document_id",
    "type",
    "chunk_id",
    "doc_id",
    "position",
    "metadata",
    "text",
    "content_hash",
    "embedding",
)
BATCH = 5_000
Rows = NDArray[np.bool_]


class NoModels(Embedders):
    """Loads nothing: that would take the processor from the searches that are timed."""

    async def warm(self, *, documents: bool, queries: bool) -> None:
        pass


class Corpus(msgspec.Struct):
    """Vectors to store, and vectors to ask for that are not among them."""

    name: str
    stored: Vector
    asked: Vector


class Filtered(msgspec.Struct):
    """A filter and the rows that it lets through."""

    name: str
    filter: dict[str, Any] | None
    rows: Rows
    selective: bool


def clustered(chunks: int, dim: int, questions: int) -> Corpus:
    """Around a centre for every 200, as topics are."""
    chance = np.random.default_rng(7)
    centres = chance.standard_normal((max(1, chunks // 200), dim), np.float32)
    total = chunks + questions
    noise = chance.standard_normal((total, dim), np.float32)
    vectors = centres[chance.integers(0, len(centres), total)] + 0.7 * noise
    return _corpus("clustered", vectors, questions)


def hard(chunks: int, dim: int, questions: int) -> Corpus:
    """96 directions and noise: no clusters that a graph could follow."""
    chance = np.random.default_rng(8)
    basis = chance.standard_normal((96, dim), np.float32)
    total = chunks + questions
    vectors = chance.standard_normal((total, 96), np.float32) @ basis / np.sqrt(96)
    vectors += 0.5 * chance.standard_normal((total, dim), np.float32)
    return _corpus("hard", vectors, questions)


async def real(chunks: int, questions: int, cache: Path) -> Corpus:
    """Pieces of this machine's files, embedded by the local model (once, then kept in `cache`)."""
    found = await local_embedders(Settings()).find("local", "multilingual-e5-small", None)
    embedder = CachedEmbedder(found, cache / "embeddings.sqlite")
    texts = list(pieces(chunks + questions))
    vectors: list[Vector] = []
    for start in range(0, len(texts), 64):
        embedded = await embedder.embed_documents(texts[start : start + 64])
        vectors.append(embedded.vectors)
    chance = np.random.default_rng(9)
    mixed = np.concatenate(vectors)
    chance.shuffle(mixed)
    return _corpus("real", mixed, questions)


def _corpus(name: str, vectors: Vector, questions: int) -> Corpus:
    rounded = vectors.astype(np.float16).astype(np.float32)
    return Corpus(name, rounded[questions:], rounded[:questions])


def filters(chunks: int) -> list[Filtered]:
    """None, 50 %, 5 %, 0.5 %, 0.05 % and 12 rows; by equality and by range."""
    number = np.arange(chunks)
    found = [Filtered("no filter", None, np.ones(chunks, np.bool_), selective=False)]
    for name, parts in (("50 %", 2), ("5 %", 20), ("0.5 %", 200), ("0.05 %", 2000)):
        rows = number % parts == 0
        found.append(Filtered(name, {f"of_{parts}": 0}, rows, selective=parts > 2))
    found.append(Filtered("50 %, range", {"n": {"lt": chunks // 2}}, number < chunks // 2, False))
    found.append(Filtered("12 rows", {"dozen": True}, number < 12, selective=True))
    return found


def metadata(row: int) -> str:
    parts = {f"of_{parts}": row % parts for parts in (2, 20, 200, 2000)}
    return json.dumps({"n": row, **parts, "dozen": row < 12})


async def load(
    database: Database, name: str, vectors: Vector, quantization: Quantization = "none"
) -> Collection:
    """A collection with these vectors, copied straight into its table."""
    new = NewCollection(
        name=name,
        search=SearchDefaults(quantization=quantization),
        provider="none",
        model=None,
        dim=vectors.shape[1],
        language="simple",
        analyzer="language",
        chunk_size=512,
        chunk_overlap=64,
    )
    async with database.administer() as connection:
        collection_id, generation_id = await insert_collection(connection, 1, new)
    for start in range(0, len(vectors), BATCH):
        batch = enumerate(vectors[start : start + BATCH], start)
        records = [
            (generation_id, 1, row, "chunk", f"c{row}", f"d{row}", 0, metadata(row), "",
             bytes(16), HalfVector(vector))
            for row, vector in batch
        ]  # fmt: skip
        async with database.administer() as connection:
            await connection.execute(
                "INSERT INTO braid.documents (team_id, collection_id, doc_id, status)"
                " SELECT 1, $1, unnest($2::text[]), 'ready'",
                collection_id,
                [record[5] for record in records],
            )
            await connection.copy_records_to_table(
                f"chunks_{generation_id}", schema_name="braid", columns=COLUMNS, records=records
            )
    await database.fetch_row(f"VACUUM ANALYZE braid.chunks_{generation_id:d}")
    return await current(database, collection_id)


async def current(database: Database, collection_id: int) -> Collection:
    async with database.administer() as connection:
        found = await find_collection(connection, collection_id)
    assert found is not None
    return found


async def index(database: Database, collection: Collection) -> Collection:
    """Let the worker do what it does by itself after the last document, or asked if it is small."""
    started = time.perf_counter()
    due = await request_index_if_due(database, collection.generation)
    job_id = await request_index(database, collection, None if due else "hnsw")
    shown = ""
    while True:
        async with database.administer() as connection:
            job = await get_job(connection, collection.id, job_id)
        assert job is not None
        if job.progress and (phase := str(job.progress["phase"])) != shown:
            shown = phase
            print(f"  {time.perf_counter() - started:6.1f} s  {phase}", flush=True)
        if job.status in ("done", "error"):
            break
        await asyncio.sleep(0.25)
    collection = await current(database, collection.id)
    row = await database.fetch_row(
        "SELECT index_recall, index_note FROM braid.generations WHERE id = $1",
        collection.generation.id,
    )
    print(
        f"  {time.perf_counter() - started:6.1f} s  {job.status}:"
        f" {collection.generation.vector_index}, recall and note {tuple(row or ())},"
        f" warnings {job.warnings}",
        flush=True,
    )
    return collection


class Asking:
    """One collection asked in the product's way and by hand."""

    def __init__(self, database: Database, collection: Collection, corpus: Corpus) -> None:
        self.database = database
        self.collection = collection
        self.generation = collection.generation
        self.corpus = corpus
        self.shares = FilterShares()
        self.norms = np.linalg.norm(corpus.stored, axis=1)
        self.methods: dict[str, int] = {}

    def plan(self, condition: dict[str, Any] | None) -> SearchPlan:
        asked = Query(vector=self.corpus.asked[0].tolist())
        request = SearchRequest(asked, mode="vector", k=K, filter=condition)
        return plan_search(request, self.collection)

    async def leg(self, vector: Vector, plan: SearchPlan) -> list[tuple[str, float]]:
        query = CandidateQuery(self.generation.id, "chunks", plan.filter, POOL, None)
        answer = await dense_leg(self.database, self.shares, plan, query, vector)
        way = answer.method + (f" {answer.ef_search}" if answer.ef_search else "")
        self.methods[way] = self.methods.get(way, 0) + 1
        return [(one.chunk_id, one.score) for one in answer.candidates]

    async def by_hand(self, vector: Vector, ef_search: int | None) -> list[Any]:
        """What one would write who knows which method is right."""
        columns = "id, document_id, type, chunk_id, position"
        source, order = "braid.searchable", "embedding <=> $1"
        index, dim = self.generation.vector_index, self.generation.dim
        if ef_search is not None and index is not None:
            order = f"embedding::halfvec({dim}) <=> $1::halfvec({dim})"
            if index.quantization == "binary":
                row, asked = (f"binary_quantize({one})::bit({dim})" for one in order.split(" <=> "))
                source = (
                    f"(SELECT * FROM {source} WHERE generation_id = $2"
                    f" ORDER BY {row} <~> {asked} LIMIT {ef_search}) AS near"
                )
                order = "embedding <=> $1"
        async with self.database.read(1, ef_search=ef_search) as connection:
            return await connection.fetch(
                f"SELECT {columns}, 1 - (embedding <=> $1) FROM {source}"
                f" WHERE generation_id = $2 ORDER BY {order} LIMIT $3",
                HalfVector(vector),
                self.generation.id,
                POOL,
            )

    def truth(self, vector: Vector, rows: Rows) -> tuple[int, float]:
        """How many rows there are to find, and the least score among the best ten."""
        scores = self.corpus.stored[rows] @ vector / self.norms[rows] / np.linalg.norm(vector)
        count = min(K, len(scores))
        return count, float(np.partition(scores, -count)[-count])


async def recall(asking: Asking, filtered: Filtered) -> None:
    shares, fewest, equal = [], K, 0
    asking.methods.clear()
    plan = asking.plan(filtered.filter)
    for vector in asking.corpus.asked:
        found = (await asking.leg(vector, plan))[:K]
        count, least = asking.truth(vector, filtered.rows)
        good = sum(score >= least - EQUAL_SCORES for _, score in found)
        fewest = min(fewest, len(found))
        equal += good == count == len(found)
        shares.append(good / count)
    print(
        f"  {filtered.name:<12} {int(filtered.rows.sum()):>7} rows match   recall@10"
        f" {statistics.fmean(shares):.4f}   equal to exact {equal}/{len(shares)}"
        f"   fewest rows {fewest}   {asking.methods}",
        flush=True,
    )


async def race(
    ways: dict[str, Callable[[Vector], Awaitable[Any]]], asked: Sequence[Vector], rounds: int
) -> dict[str, float]:
    """p50 in ms of each way, all of them in turn for every question."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for vector in asked:
            for name, way in ways.items():
                started = time.perf_counter()
                await way(vector)
                if turn:
                    spent[name].append((time.perf_counter() - started) * 1000)
    return {name: statistics.median(times) for name, times in spent.items()}


async def speed(asking: Asking, rounds: int) -> None:
    asked, plan = list(asking.corpus.asked), asking.plan(None)
    found = asking.generation.vector_index
    if found is not None and found.ef_search is not None:
        ef_search = max(found.ef_search, POOL)
        p50 = await race(
            {
                "leg": lambda vector: asking.leg(vector, plan),
                "hand": lambda vector: asking.by_hand(vector, ef_search),
            },
            asked,
            rounds,
        )
        _show(f"hnsw, ef_search {ef_search}", p50)
        hnsw = p50["leg"]
    generation = msgspec.structs.replace(asking.generation, vector_index=None)
    collection = msgspec.structs.replace(asking.collection, generation=generation)
    exact = Asking(asking.database, collection, asking.corpus)
    unindexed = exact.plan(None)
    p50 = await race(
        {
            "leg": lambda vector: exact.leg(vector, unindexed),
            "hand": lambda vector: exact.by_hand(vector, None),
        },
        asked[:20],
        1,
    )
    _show("exact", p50)
    if found is not None and found.ef_search is not None:
        print(f"  hnsw is {p50['leg'] / hnsw:.1f} times faster than exact", flush=True)


def _show(name: str, p50: dict[str, float]) -> None:
    print(
        f"  {name:<22} p50 leg {p50['leg']:7.2f} ms   by hand {p50['hand']:7.2f} ms"
        f"   ratio {p50['leg'] / p50['hand']:.2f}",
        flush=True,
    )


async def delete(dsn: str, name: str, other: Asking) -> None:
    """Delete a collection over the API while another one is searched."""
    settings = Settings(database_url=dsn, root_api_key=KEY)
    app = create_app_for("index", settings, lambda *_given: NoModels(EmbedderOptions()))
    waits: list[float] = []
    answered: list[float] = []
    stop = asyncio.Event()
    plan = other.plan(None)

    async def search() -> None:
        while not stop.is_set():
            started = time.perf_counter()
            await other.leg(other.corpus.asked[len(waits) % len(other.corpus.asked)], plan)
            waits.append((time.perf_counter() - started) * 1000)

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            answered.append(time.perf_counter())
            await send(message)

        await app(scope, receive, note)

    async with app.lifespan():
        transport = httpx.ASGITransport(noting)
        headers = {"X-API-Key": KEY}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://bench", headers=headers, timeout=60
        ) as client:
            searching = [asyncio.create_task(search()) for _ in range(2)]
            await asyncio.sleep(0.5)
            before = len(waits)
            started = time.perf_counter()
            answer = await client.delete(f"/v1/collections/{name}")
            took = time.perf_counter() - started
            returned = answered[0] - started
            await asyncio.sleep(1.5)
            stop.set()
            await asyncio.gather(*searching)
    assert answer.status_code == 204, answer.text
    print(
        f"  deletion returned in {returned * 1000:.0f} ms, its tables gone in {took * 1000:.0f} ms;"
        f" {len(waits) - before} searches of another from then on, the slowest"
        f" {max(waits[before:]):.0f} ms (before {max(waits[:before]):.0f})",
        flush=True,
    )


async def small_collections(database: Database, corpus: Corpus, count: int, chunks: int) -> None:
    """Collections beside the large one find their own rows, all of them and no others."""
    worst, fewest = 1.0, K
    for number in range(count):
        part = Corpus(corpus.name, corpus.stored[number * chunks :][:chunks], corpus.asked[:20])
        collection = await load(database, f"{corpus.name}-small-{number}", part.stored)
        asking = Asking(database, collection, part)
        plan = asking.plan(None)
        for vector in part.asked:
            found = (await asking.leg(vector, plan))[:K]
            size, least = asking.truth(vector, np.ones(len(part.stored), np.bool_))
            good = sum(score >= least - EQUAL_SCORES for _, score in found)
            worst, fewest = min(worst, good / size), min(fewest, len(found))
    print(
        f"  {count} collections of {chunks}: least recall@10 {worst:.3f}, fewest rows {fewest}",
        flush=True,
    )


async def measure(database: Database, dsn: str, corpus: Corpus, given: argparse.Namespace) -> None:
    chunks, dim = corpus.stored.shape
    print(f"{corpus.name}: {chunks} chunks of {dim} dimensions", flush=True)
    started = time.perf_counter()
    collection = await load(database, corpus.name, corpus.stored, given.quantization)
    print(f"  loaded in {time.perf_counter() - started:.0f} s", flush=True)
    collection = await index(database, collection)
    if given.small:
        await small_collections(database, corpus, given.small, given.small_chunks)
    asking = Asking(database, collection, corpus)
    for filtered in filters(chunks):
        await recall(asking, filtered)
    await speed(asking, given.rounds)
    if given.small:
        other = await load(database, f"{corpus.name}-other", corpus.stored[: given.small_chunks])
        await delete(dsn, corpus.name, Asking(database, other, corpus))


async def main(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="braid-bench-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder), settings={"shared_buffers": "1GB"})
        dsn = postgres.start()
        try:
            await migrate(dsn)
            database = await open_database(dsn, size=6)
            embedders = local_embedders(Settings())
            worker = Worker(database, dsn, embedders, index_memory_mb=given.index_memory_mb)
            working = asyncio.create_task(worker.run())
            for kind in given.kinds.split(","):
                if kind == "real":
                    corpus = await real(given.real_chunks, given.questions, given.cache)
                else:
                    make = {"clustered": clustered, "hard": hard}[kind]
                    corpus = make(given.chunks, given.dim, given.questions)
                await measure(database, dsn, corpus, given)
            worker.stop()
            await working
            await embedders.close()
            await database.close()
        finally:
            postgres.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default="clustered,hard", help="of clustered, hard and real")
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--real-chunks", type=int, default=2_000)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "braid-dense")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", type=int, default=20, help="small collections beside")
    parser.add_argument("--small-chunks", type=int, default=1_000)
    parser.add_argument("--quantization", choices=("none", "binary"), default="none")
    parser.add_argument("--index-memory-mb", type=int, default=1_000)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(options))
