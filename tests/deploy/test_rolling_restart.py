"""A rolling restart under load: nobody notices."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from support.api import ROOT_KEY
from support.served import child_environment

ROOT = Path(__file__).parents[2]
SECONDS = 120
HEADERS = {"x-api-key": ROOT_KEY}
DRAIN_SECONDS = 1.0
CLIENTS = 4


class Server:
    """One process of the deployment and the connections to it that are kept alive."""

    def __init__(self, dsn: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "service.cli", "serve", "--role", "all"]
        self.process = subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=ROOT,
            env=child_environment(dsn, drain_seconds=str(DRAIN_SECONDS)),
            stdout=subprocess.DEVNULL,
        )
        self.ready = False
        self.answered = 0
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=HEADERS, timeout=SECONDS, trust_env=False
        )

    async def probe(self) -> None:
        with contextlib.suppress(httpx.TransportError):
            self.ready = (await self.client.get("/readyz")).status_code == 200
            return
        self.ready = False

    async def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(self.process.wait, SECONDS)
        await self.client.aclose()
        return status


class Balancer:
    """Sends each request to the next ready server, as a Kubernetes service does; never again."""

    def __init__(self) -> None:
        self.servers: list[Server] = []
        self.failures: list[str] = []
        self.progress = asyncio.Condition()
        self._turn = 0

    async def probe(self) -> None:
        while True:
            for server in list(self.servers):
                await server.probe()
            await asyncio.sleep(0.1)

    async def search(self) -> None:
        ready = [server for server in self.servers if server.ready]
        if not ready:
            self.failures.append("no server is ready")
            return
        self._turn += 1
        server = ready[self._turn % len(ready)]
        try:
            answer = await server.client.post("/v1/collections/books/search", json=QUESTION)
            if answer.status_code != 200 or answer.json()["hits"][0]["doc_id"] != "whale":
                self.failures.append(f"{answer.status_code} {answer.text}")
        except httpx.TransportError as error:
            self.failures.append(repr(error))
        async with self.progress:
            server.answered += 1
            self.progress.notify_all()

    async def load(self) -> None:
        while True:
            await self.search()

    async def added(self, dsn: str) -> Server:
        server = Server(dsn)
        self.servers.append(server)
        async with asyncio.timeout(SECONDS):
            while not server.ready:
                assert server.process.poll() is None
                await asyncio.sleep(0.05)
        return server


# The deadline is generous: the machine that runs the tests also starts servers meanwhile.
QUESTION = {"query": {"text": "white whale"}, "mode": "text", "timeout_ms": 30_000}


@pytest.fixture
async def balancer() -> AsyncIterator[Balancer]:
    made = Balancer()
    probing = asyncio.create_task(made.probe())
    yield made
    probing.cancel()
    for server in made.servers:
        await server.end()


async def answers_after(balancer: Balancer, server: Server, more: int) -> None:
    enough = server.answered + more
    async with asyncio.timeout(SECONDS), balancer.progress:
        await balancer.progress.wait_for(lambda: server.answered >= enough)


async def test_a_rolling_restart_under_load_fails_no_request(dsn, balancer):
    old = [await balancer.added(dsn) for _ in range(2)]
    await fill(old[0].client)
    load = [asyncio.create_task(balancer.load()) for _ in range(CLIENTS)]
    for leaving in old:
        await answers_after(balancer, leaving, 20)
        new = await balancer.added(dsn)
        assert await leaving.end() == 0
        balancer.servers.remove(leaving)
        await answers_after(balancer, new, 20)
    for task in load:
        task.cancel()
    await asyncio.gather(*load, return_exceptions=True)
    assert balancer.failures == []


async def fill(client: httpx.AsyncClient) -> None:
    settings = {"name": "books", "embedding": {"provider": "none"}}
    assert (await client.post("/v1/collections", json=settings)).status_code == 201
    document = {"doc_id": "whale", "text": "The white whale, and the captain who hunts it."}
    answer = await client.post(
        "/v1/collections/books/documents?wait=true", json={"documents": [document]}
    )
    assert answer.json()["counts"]["indexed"] == 1
