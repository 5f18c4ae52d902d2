"""A small HTTP/1.1 server in the test's own loop, with switches for everything that goes wrong."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 429: "Too Many Requests"}


@dataclass(frozen=True)
class Call:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """What is sent back: JSON, or bytes as they are."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"

    def encoded(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        lines = [
            f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Status')}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@dataclass(frozen=True)
class Delay:
    """Answer properly, but late."""

    seconds: float


class Hang:
    """Never answer."""


class Cut:
    """Close the connection instead of answering."""


class CutBody:
    """Promise a body and close the connection in the middle of it."""


Trouble = Answer | Delay | Hang | Cut | CutBody


def refusal(status: int, body: Any = None, **headers: str) -> Answer:
    """An error answer; `retry_after` becomes the header `Retry-After`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer({"detail": "scripted"} if body is None else body, status, named)


def garbage(body: bytes = b"<html>busy</html>", content_type: str = "text/html") -> Answer:
    """Status 200 and a body that nobody asked for."""
    return Answer(body, 200, {}, content_type)


class FakeServer:
    """Answers with `respond`; `troubles` come first, one a call, then `always` if it is set."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.troubles: deque[Trouble] = deque()
        self.always: Trouble | None = None
        self.in_flight = 0
        self.most_in_flight = 0
        self.called = asyncio.Event()
        self.abandoned = asyncio.Event()
        """Set when a client has left before its answer."""
        self.url = ""

    def respond(self, call: Call) -> Answer:
        raise NotImplementedError

    def next_trouble(self) -> Trouble | None:
        """What becomes of the next call, None for a proper answer."""
        return self.troubles.popleft() if self.troubles else self.always

    async def busy_with(self, calls: int) -> None:
        """Wait until so many calls are in flight."""
        while self.in_flight < calls:
            self.called.clear()
            await self.called.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while call := await _read_call(reader):
                if not await self._handle(call, reader, writer):
                    break
        writer.close()

    async def _handle(
        self, call: Call, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        self.calls.append(call)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.called.set()
        try:
            return await self._answer(call, reader, writer)
        finally:
            self.in_flight -= 1

    async def _answer(
        self, call: Call, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        trouble = self.next_trouble()
        if isinstance(trouble, Cut):
            return False
        if isinstance(trouble, CutBody):
            writer.write(Answer({"data": [1, 2, 3]}).encoded()[:-5])
            await writer.drain()
            return False
        seconds = trouble.seconds if isinstance(trouble, Delay) else 0.0
        if (isinstance(trouble, Hang) or seconds) and await _left(
            reader, None if isinstance(trouble, Hang) else seconds
        ):
            self.abandoned.set()
            return False
        answer = trouble if isinstance(trouble, Answer) else self.respond(call)
        writer.write(answer.encoded())
        await writer.drain()
        return True


async def _left(reader: asyncio.StreamReader, seconds: float | None) -> bool:
    """Whether the client closes the connection within the time."""
    try:
        async with asyncio.timeout(seconds):
            await reader.read(1)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


async def _read_call(reader: asyncio.StreamReader) -> Call | None:
    first = await reader.readline()
    if not first:
        return None
    method, path, _ = first.decode("latin-1").split(" ", 2)
    headers = {}
    while line := (await reader.readline()).decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if "chunked" in headers.get("transfer-encoding", ""):
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Call(method, path, headers, json.loads(body) if body else None)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


@contextlib.asynccontextmanager
async def running(fake: FakeServer) -> AsyncIterator[None]:
    """Listen on a free port of the loopback interface."""
    connections: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await fake._serve(reader, writer)
        finally:
            connections.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
