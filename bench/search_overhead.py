"""What a hybrid search over HTTP costs beyond the SQL of its slower leg.

Loads client vectors into a server of its own (embedded PostgreSQL, one process), then measures
in one run: each leg's own SQL through the product's pool, and the whole search over HTTP. The
target is a ratio of at most 1.5 at 10,000 chunks.
"""

import argparse
import asyncio
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np

from service.db.candidates import CandidateQuery
from service.db.dense import exact_candidates
from service.db.embedded import EmbeddedPostgres
from service.db.keys import find_root_access
from service.db.migrate import migrate
from service.db.pool import Database, open_database
from service.search.lexical import CorpusCache, lexical_leg
from service.search.packed import PackedIndex
from service.search.request import Query, SearchRequest, plan_search
from service.search.statistics import StatisticsCache

KEY = "key-of-the-benchmark-run"
WORDS_A_CHUNK = 120
VOCABULARY = 30_000
BATCH = 250


def corpus(
    chunks: int, dim: int, rng: np.random.Generator
) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Chunks of Zipf-distributed words, and vectors around 50 centres."""
    ranks = np.minimum(rng.zipf(1.3, (chunks, WORDS_A_CHUNK)), VOCABULARY)
    texts = [" ".join(f"w{rank}x" for rank in row) for row in ranks]
    centres = rng.standard_normal((50, dim))
    vectors = centres[rng.integers(0, 50, chunks)] + rng.standard_normal((chunks, dim))
    return texts, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def questions(texts: list[str], vectors: np.ndarray[Any, Any], count: int) -> list[Query]:
    """Eight words of a chunk and its vector, slightly moved."""
    chosen = random.Random(7).sample(range(len(texts)), count)
    return [
        Query(
            text=" ".join(random.Random(at).sample(texts[at].split(), 8)),
            vector=(vectors[at] + 0.01).tolist(),
        )
        for at in chosen
    ]


async def load(
    client: httpx.AsyncClient,
    texts: list[str],
    vectors: np.ndarray[Any, Any],
    language: str = "simple",
) -> None:
    embedding = {"provider": "none", "dim": vectors.shape[1]}
    await client.post(
        "/v1/collections", json={"name": "bench", "language": language, "embedding": embedding}
    )
    for start in range(0, len(texts), BATCH):
        rows = range(start, min(start + BATCH, len(texts)))
        documents = [
            {
                "doc_id": f"d{row}",
                "chunks": [{"id": f"c{row}", "text": texts[row], "vector": vectors[row].tolist()}],
            }
            for row in rows
        ]
        answer = await client.post(
            "/v1/collections/bench/documents",
            json={"documents": documents},
            params={"wait": "true"},
            timeout=120,
        )
        answer.raise_for_status()


async def timed(name: str, calls: list[Callable[[], Awaitable[Any]]], rounds: int) -> float:
    for call in calls:
        await call()
    spent = []
    for _ in range(rounds):
        for call in calls:
            started = time.perf_counter()
            await call()
            spent.append((time.perf_counter() - started) * 1000)
    median, slow = statistics.median(spent), sorted(spent)[int(len(spent) * 0.95)]
    print(f"{name:<34} p50 {median:7.2f} ms   p95 {slow:7.2f} ms")
    return median


async def ask(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], body: bytes) -> bytes:
    """One search over a kept connection, with as little client as there can be."""
    reader, writer = connection
    head = (
        "POST /v1/collections/bench/search HTTP/1.1\r\nHost: braid\r\n"
        f"X-API-Key: {KEY}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert answer.startswith(b"http/1.1 200"), answer
    return await reader.readexactly(int(answer.split(b"content-length:")[1].split()[0]))


async def measure(database: Database, port: int, asked: list[Query]) -> None:
    access = await find_root_access(database, "default", "bench")
    assert access is not None
    collection = access.collection
    assert collection is not None
    statistics_cache = CorpusCache(StatisticsCache(), PackedIndex())
    legs = CandidateQuery(collection.generation.id, "chunks", None, 40, None)

    async def dense(query: Query) -> None:
        plan = plan_search(SearchRequest(query), collection)
        assert plan.vector is not None
        async with database.read(1) as connection:
            await exact_candidates(connection, legs, plan.vector)

    async def lexical(query: Query) -> None:
        plan = plan_search(SearchRequest(query), collection)
        await lexical_leg(database, statistics_cache, plan, legs)

    async def http(body: bytes) -> None:
        assert b'"degraded":[]' in await ask(connection, body)

    rounds = 3
    slower = max(
        await timed("dense leg, its SQL", [lambda q=q: dense(q) for q in asked], rounds),
        await timed("lexical leg, its SQL", [lambda q=q: lexical(q) for q in asked], rounds),
    )
    connection = await asyncio.open_connection("127.0.0.1", port)
    bodies = [
        msgspec.json.encode({"query": {"text": query.text, "vector": query.vector}, "k": 10})
        for query in asked
    ]
    whole = await timed("hybrid over HTTP", [lambda b=b: http(b) for b in bodies], rounds)
    connection[1].close()
    print(f"hybrid over HTTP / slower leg's SQL {whole / slower:.2f} (target at most 1.5)")


async def main(chunks: int, dim: int, queries: int) -> None:
    rng = np.random.default_rng(7)
    texts, vectors = corpus(chunks, dim, rng)
    with tempfile.TemporaryDirectory(prefix="braid-bench-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder))
        dsn = postgres.start()
        try:
            await migrate(dsn)
            with serving(dsn) as url:
                headers = {"X-API-Key": KEY}
                async with httpx.AsyncClient(base_url=url, headers=headers) as client:
                    await ready(client)
                    started = time.perf_counter()
                    await load(client, texts, vectors)
                    rate = chunks / (time.perf_counter() - started)
                    print(f"{chunks} chunks of {dim} dimensions, loaded at {rate:.0f} a second")
                    database = await open_database(dsn, size=4)
                    await measure(
                        database, httpx.URL(url).port or 80, questions(texts, vectors, queries)
                    )
                    await database.close()
        finally:
            postgres.stop()


class serving:  # noqa: N801 - reads as what it does
    """`braid serve` as a process of its own."""

    def __init__(self, dsn: str, role: str = "all") -> None:
        self.role = role
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = os.environ | {
            "BRAID_DATABASE_URL": dsn,
            "BRAID_ROOT_API_KEY": KEY,
            "BRAID_PORT": str(self.port),
            "BRAID_LOG_LEVEL": "warning",
        }

    def __enter__(self) -> str:
        command = [sys.executable, "-m", "service.cli", "serve", "--role", self.role]
        self.process = subprocess.Popen(command, env=self.environment)
        return f"http://127.0.0.1:{self.port}"

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(20)


async def ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if (await client.get("/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=384, help="384: the bundled model's")
    parser.add_argument("--queries", type=int, default=100)
    given = parser.parse_args()
    asyncio.run(main(given.chunks, given.dim, given.queries))
