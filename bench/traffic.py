"""Searches over kept connections, as cheap for the machine as Python can send them."""

import asyncio
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from lexical import chunks
from search_http import bodies, clustered
from search_overhead import KEY, load, ready, serving

from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate

HUNG_SECONDS = 20.0
MAX_CONNECTIONS = 2000
PATH = "/v1/collections/bench/search"


class Corpus(msgspec.Struct):
    """What is searched, and questions about it."""

    texts: list[str]
    vectors: Any
    questions: list[bytes]


class Told(msgspec.Struct, frozen=True):
    """What came of one search: status (0 without an answer), ids of the hits, times in seconds."""

    status: int
    ids: tuple[str, ...]
    began: float
    seconds: float
    question: int
    degraded: bool = False


def corpus(texts: list[str]) -> Corpus:
    """Texts with clustered vectors; every twentieth question has 400 words."""
    vectors = clustered(len(texts))
    asked = bodies(texts, vectors)
    words = " ".join(texts).split()
    for at in range(0, len(asked), 20):
        body = msgspec.json.decode(asked[at])
        body["query"]["text"] = " ".join(words[at * 400 : (at + 1) * 400]) or "nothing"
        asked[at] = msgspec.json.encode(body)
    return Corpus(texts, vectors, asked)


async def on_own_server(measure: Callable[[serving, Corpus], Awaitable[int]], size: int) -> int:
    """Run a measurement beside a PostgreSQL of its own; 1 when it broke a promise."""
    known = corpus(list(chunks(size)))
    with tempfile.TemporaryDirectory(prefix="braid-bench-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder))
        dsn = postgres.start()
        try:
            await migrate(dsn)
            return int(await measure(serving(dsn), known) > 0)
        finally:
            postgres.stop()


@asynccontextmanager
async def filled(server: serving, known: Corpus | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a running server, whose collection is filled when a corpus is given."""
    with server as url:
        async with httpx.AsyncClient(
            base_url=url, headers={"X-API-Key": KEY}, timeout=120
        ) as client:
            await ready(client)
            if known is not None:
                await load(client, known.texts, known.vectors, language="english")
            yield client


class Connections:
    """Kept connections to one port; as many as are needed at once."""

    def __init__(self, port: int, questions: Sequence[bytes]) -> None:
        self._port = port
        self._requests = [_request(body) for body in questions]
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._turn = itertools.cycle(range(len(questions)))

    async def ask(self) -> Told:
        """Ask the next question; what was told."""
        question = next(self._turn)
        began = time.perf_counter()
        status, ids, degraded = 0, tuple[str, ...](), False
        try:
            async with asyncio.timeout(HUNG_SECONDS):
                status, content = await self._exchange(self._requests[question])
        except (OSError, asyncio.IncompleteReadError):
            content = b""
        seconds = time.perf_counter() - began
        if status == 200:
            answer = msgspec.json.decode(content, type=_Answer)
            ids, degraded = tuple(hit.id for hit in answer.hits), bool(answer.degraded)
        return Told(status, ids, began, seconds, question, degraded)

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        reader, writer = (
            self._free.pop()
            if self._free
            else await asyncio.open_connection("127.0.0.1", self._port)
        )
        try:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            content = await reader.readexactly(int(head.split(b"content-length:")[1].split()[0]))
        except BaseException:
            writer.close()
            raise
        if b"connection: close" in head:
            writer.close()
        else:
            self._free.append((reader, writer))
        return int(head.split()[1]), content

    async def keep_asking(self, seconds: float, clients: int) -> list[Told]:
        """So many clients, each with one question after the other."""
        until = time.perf_counter() + seconds

        async def one() -> list[Told]:
            told = []
            while time.perf_counter() < until:
                told.append(await self.ask())
            return told

        return [
            told for part in await asyncio.gather(*(one() for _ in range(clients))) for told in part
        ]

    async def arrive(self, rate: float, seconds: float) -> list[Told]:
        """So many questions a second, whether those before were answered or not."""
        began, asked = time.perf_counter(), list[asyncio.Task[Told]]()
        for at in range(int(rate * seconds)):
            pause = began + at / rate - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            asked.append(asyncio.create_task(self.ask()))
        return list(await asyncio.gather(*asked))


class _Hit(msgspec.Struct):
    id: str


class _Answer(msgspec.Struct):
    hits: list[_Hit]
    degraded: list[Any]


def _request(body: bytes) -> bytes:
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: braid\r\nX-API-Key: {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def statuses(told: Sequence[Told]) -> str:
    """How often each status came; 0 is no answer."""
    return ", ".join(
        f"{status}: {count}"
        for status, count in sorted(Counter(one.status for one in told).items())
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a share of them does not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def resident_mb(pid: int) -> float:
    """Memory of a process and all below it."""
    pids, total = [pid], 0
    for one in pids:
        children = Path(f"/proc/{one}/task").glob("*/children")
        pids += [int(child) for path in children for child in path.read_text().split()]
        total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * 4096
    return total / 1e6


class Table:
    """Promises, what was measured, and whether they were kept."""

    def __init__(self) -> None:
        self.broken = 0

    def line(self, promise: str, measured: str, *, kept: bool) -> None:
        """Print one."""
        self.broken += not kept
        print(f"{'ok  ' if kept else 'FAIL'} {promise:<58} {measured}", flush=True)
