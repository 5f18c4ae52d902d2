"""Hybrid search over HTTP on many real chunks, beside the least that such a search can be.

Loads pieces of the text that this machine has, with clustered client vectors, through the API;
waits until the worker has built both indexes; then asks the product (one process) and
`bare_path.py` the same questions in turn, with one client and with eight. Server, database and
clients share the machine.
"""

import argparse
import asyncio
import itertools
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
from lexical import chunks, questions
from search_overhead import KEY, load, ready, serving

from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate

DIM = 256
CLUSTERS = 800
QUESTIONS = 300
CLIENTS = 8
PRODUCT = "/v1/collections/bench/search"
BARE = "/search"


def clustered(count: int) -> np.ndarray[Any, Any]:
    """Unit vectors around some centres; shape (count, DIM)."""
    rng = np.random.default_rng(11)
    centres = rng.standard_normal((CLUSTERS, DIM))
    vectors = centres[rng.integers(0, CLUSTERS, count)] + rng.standard_normal((count, DIM))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def bodies(texts: Sequence[str], vectors: np.ndarray[Any, Any]) -> list[bytes]:
    """Sentences of the corpus, each with the vector of some chunk, slightly moved."""
    rng = np.random.default_rng(5)
    asked = questions(texts, QUESTIONS)
    near = vectors[rng.integers(0, len(vectors), len(asked))]
    near = near + rng.standard_normal(near.shape) * 0.02
    return [
        msgspec.json.encode({"query": {"text": text, "vector": vector.tolist()}, "k": 10})
        for text, vector in zip(asked, near, strict=True)
    ]


async def indexed(client: httpx.AsyncClient, rows: int) -> int:
    """Wait for the HNSW index and the packed postings; the active generation."""
    await client.post("/v1/collections/bench/index")
    while True:
        info = (await client.get("/v1/collections/bench")).json()
        found = (
            await client.post(PRODUCT, json={"query": {"text": "return the value"}, "mode": "text"})
        ).json()
        packed = found["stages"]["lexical"]["path"] == "packed"
        if info["index"] == "hnsw" and packed and info["chunks"] == rows:
            generation: int = info["generation"]
            return generation
        await asyncio.sleep(1)


async def client(port: int, path: str, asked: Sequence[bytes], seconds: float) -> list[float]:
    """Ask one question after the other over a kept connection; milliseconds of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    spent = []
    until = time.perf_counter() + seconds
    for body in itertools.cycle(asked):
        started = time.perf_counter()
        if started >= until:
            break
        head = (
            f"POST {path} HTTP/1.1\r\nHost: braid\r\nX-API-Key: {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 200"), answer
        content = await reader.readexactly(int(answer.split(b"content-length:")[1].split()[0]))
        spent.append((time.perf_counter() - started) * 1000)
        assert path == BARE or b'"degraded":[]' in content, content[:500]
    writer.close()
    return spent


async def run(
    port: int, path: str, asked: Sequence[bytes], clients: int, seconds: float
) -> list[float]:
    shares = [asked[start:] + asked[:start] for start in range(0, clients * 37, 37)]
    spent = await asyncio.gather(*(client(port, path, share, seconds) for share in shares))
    return [ms for one in spent for ms in one]


async def compare(product: int, bare: int, asked: list[bytes], seconds: float) -> None:
    """Both in turn, so that what else the machine does hits both."""
    for clients in (1, CLIENTS):
        timed: dict[str, list[float]] = {PRODUCT: [], BARE: []}
        for path, port in ((PRODUCT, product), (BARE, bare)):
            await run(port, path, asked, clients, 2.0)
        for path, port in ((PRODUCT, product), (BARE, bare)) * 4:
            timed[path] += await run(port, path, asked, clients, seconds / 4)
        middle = {path: statistics.median(spent) for path, spent in timed.items()}
        rate = {path: len(spent) / seconds for path, spent in timed.items()}
        for path, name in ((PRODUCT, "braid"), (BARE, "bare path")):
            slow = sorted(timed[path])[int(len(timed[path]) * 0.95)]
            print(
                f"{clients} client(s), {name:<10} p50 {middle[path]:6.2f} ms   p95 {slow:6.2f} ms"
                f"   {rate[path]:6.0f} searches a second"
            )
        print(
            f"{clients} client(s), braid / bare path: p50 {middle[PRODUCT] / middle[BARE]:.2f},"
            f" searches a second {rate[PRODUCT] / rate[BARE]:.2f}",
            flush=True,
        )


class serving_bare:  # noqa: N801 - reads as what it does
    """`bare_path.py` as a process of its own."""

    def __init__(self, dsn: str, generation: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = os.environ | {
            "BRAID_DATABASE_URL": dsn,
            "BARE_GENERATION": str(generation),
        }

    def __enter__(self) -> int:
        command = [sys.executable, "-m", "granian", "--interface", "asgi", "--no-ws"]
        command += ["--log-level", "error", "--port", str(self.port), "bare_path:app"]
        folder = Path(__file__).parent
        self.process = subprocess.Popen(command, env=self.environment, cwd=folder)
        return int(self.port)

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(20)


async def listening(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return


async def prepared(dsn: str, texts: list[str], vectors: np.ndarray[Any, Any]) -> int:
    with serving(dsn) as url:
        async with httpx.AsyncClient(
            base_url=url, headers={"X-API-Key": KEY}, timeout=120
        ) as connected:
            await ready(connected)
            if (await connected.get("/v1/collections/bench")).status_code == 404:
                started = time.perf_counter()
                await load(connected, texts, vectors, language="english")
                print(f"{len(texts)} chunks loaded in {time.perf_counter() - started:.0f} s")
            started = time.perf_counter()
            generation = await indexed(connected, len(texts))
            print(f"indexed in {time.perf_counter() - started:.0f} s more", flush=True)
            return generation


async def main(count: int, seconds: float, kept: Path | None) -> None:
    texts = list(chunks(count))
    vectors = clustered(len(texts))
    asked = bodies(texts, vectors)
    with tempfile.TemporaryDirectory(prefix="braid-bench-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(kept or Path(folder), settings={"shared_buffers": "1GB"})
        dsn = postgres.start()
        try:
            await migrate(dsn)
            generation = await prepared(dsn, texts, vectors)
            with serving(dsn, role="search") as url, serving_bare(dsn, generation) as bare:
                async with httpx.AsyncClient(base_url=url) as connected:
                    await ready(connected)
                await listening(bare)
                await compare(httpx.URL(url).port or 80, bare, asked, seconds)
        finally:
            postgres.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=150_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--data-dir", type=Path, help="folder to keep the loaded corpus in")
    given = parser.parse_args()
    asyncio.run(main(given.chunks, given.seconds, given.data_dir))
