"""A balancer of connections, as a cluster's: new ones go to those that say they are ready."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import httpx

PROBE_SECONDS = 0.05
READY_SECONDS = 60.0


class Balancer:
    """Passes bytes on; what is open stays with the process that it was opened to."""

    def __init__(self) -> None:
        self.port = 0
        self._ports: list[int] = []
        self._ready: list[int] = []
        self._changed = asyncio.Condition()
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self._turn = itertools.count()
        self._client = httpx.AsyncClient(trust_env=False)

    async def add(self, port: int) -> None:
        """Take in a process, and wait until it is ready."""
        self._ports.append(port)
        async with asyncio.timeout(READY_SECONDS), self._changed:
            await self._changed.wait_for(lambda: port in self._ready)

    async def leave_out(self, port: int) -> None:
        """Wait until a process is not ready any more, and forget it."""
        async with asyncio.timeout(READY_SECONDS), self._changed:
            await self._changed.wait_for(lambda: port not in self._ready)
        self._ports.remove(port)

    async def probe(self) -> None:
        """Ask again and again who is ready."""
        while True:
            self._ready = [port for port in self._ports if await self._is_ready(port)]
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(PROBE_SECONDS)

    async def _is_ready(self, port: int) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return (await self._client.get(f"http://127.0.0.1:{port}/readyz")).is_success
        return False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.closing(writer):
            self._open[writer] = asyncio.current_task()
            ready = self._ready
            if not ready:
                return
            port = ready[next(self._turn) % len(ready)]
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(there_writer), contextlib.suppress(OSError):
                ways = [_pass_on(reader, there_writer), _pass_on(there_reader, writer)]
                tasks = [asyncio.create_task(way) for way in ways]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def end(self) -> None:
        """Close what is still open."""
        for writer in self._open:
            writer.close()
        await asyncio.gather(*filter(None, self._open.values()), return_exceptions=True)
        await self._client.aclose()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while content := await reader.read(65536):
        writer.write(content)
        await writer.drain()


@contextlib.asynccontextmanager
async def balancing() -> AsyncIterator[Balancer]:
    """A balancer that listens, without a process behind it."""
    balancer = Balancer()
    server = await asyncio.start_server(balancer.serve, "127.0.0.1", 0)
    balancer.port = server.sockets[0].getsockname()[1]
    probing = asyncio.create_task(balancer.probe())
    try:
        yield balancer
    finally:
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        server.close()
        await balancer.end()
