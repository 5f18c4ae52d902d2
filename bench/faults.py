"""Searches while databases and processes restart, replicas die or lag, clients are slow or idle.

Every answer is compared with the one that the same question had before. Server, databases and
clients share the machine.
"""

import argparse
import asyncio
import contextlib
import re
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import asyncpg
import httpx
import uvloop
from balancer import Balancer, balancing
from lexical import chunks
from search_overhead import KEY, serving
from support.replication import ReplicaServer, replica_of, replicated_primary
from traffic import PATH, Connections, Corpus, Table, Told, corpus, filled, percentile, statuses

from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate

CLIENTS = 4
RETURN_SECONDS = 2.0
LAG_LIMIT = 1.0
DOWN_SECONDS = 0.5
DRAIN_SECONDS = 1
SLOW, IDLE = 50, 200
IN_USE = re.compile(r'braid_db_replicas\{state="in use"\} (\d+)')


class Asking:
    """Clients that go on asking in the background, and the right answers."""

    def __init__(self, port: int, known: Corpus) -> None:
        self._connections = Connections(port, known.questions)
        self._questions = len(known.questions)
        self.right: dict[int, tuple[str, ...]] = {}

    async def learn(self) -> None:
        """Ask every question once, while nothing is wrong."""
        for _ in range(self._questions):
            told = await self._connections.ask()
            assert told.status == 200, told
            self.right[told.question] = told.ids

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[list[Told]]:
        """What was told in the meantime; complete at the end."""
        told: list[Told] = []
        over = asyncio.Event()

        async def one() -> None:
            while not over.is_set():
                told.append(await self._connections.ask())

        clients = [asyncio.create_task(one()) for _ in range(CLIENTS)]
        try:
            yield told
        finally:
            over.set()
            await asyncio.gather(*clients)

    def wrong(self, told: Sequence[Told]) -> int:
        """Whole answers that differ from the right ones."""
        answered = [one for one in told if one.status == 200 and not one.degraded]
        return sum(one.ids != self.right[one.question] for one in answered)


@contextlib.contextmanager
def plain() -> Iterator[EmbeddedPostgres]:
    """A server that nobody follows."""
    with tempfile.TemporaryDirectory(prefix="braid-bench-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder))
        postgres.start()
        try:
            yield postgres
        finally:
            postgres.stop()


@contextlib.asynccontextmanager
async def asking(server: serving, known: Corpus) -> AsyncIterator[tuple[Asking, httpx.AsyncClient]]:
    """A filled server and who asks it."""
    async with filled(server, known) as client:
        asked = Asking(server.port, known)
        await asked.learn()
        yield asked, client


async def restarts(table: Table, known: Corpus, times: int) -> None:
    """Stop and start the database under load."""
    with plain() as postgres:
        await migrate(postgres.dsn())
        async with asking(serving(postgres.dsn()), known) as (asked, _):
            back = []
            async with asked.going_on() as told:
                for _ in range(times):
                    await asyncio.sleep(RETURN_SECONDS)
                    await asyncio.to_thread(postgres.stop)
                    await asyncio.sleep(DOWN_SECONDS)
                    await asyncio.to_thread(postgres.start)
                    back.append(time.perf_counter())
                await asyncio.sleep(RETURN_SECONDS)
    waits = [_first_success(told, since) for since in back]
    wrong, slowest = asked.wrong(told), max(one.seconds for one in told)
    known_only = {one.status for one in told} <= {200, 503}
    table.line(
        f"database restarted {times} times: only 200 and 503", statuses(told), kept=known_only
    )
    table.line("  no wrong answer", str(wrong), kept=wrong == 0)
    table.line("  no search hangs", f"slowest {slowest * 1000:.0f} ms", kept=slowest < 5)
    shown = ", ".join(f"{one * 1000:.0f}" for one in waits) + " ms"
    table.line("  first success within 2 s of the return", shown, kept=max(waits) <= RETURN_SECONDS)


def _first_success(told: Sequence[Told], since: float) -> float:
    ends = (one.began + one.seconds for one in told if one.status == 200 and one.began >= since)
    return min(ends, default=float("inf")) - since


async def replicas(table: Table, known: Corpus) -> None:
    """Kill one of two replicas under load, then let the other one lag."""
    with (
        replicated_primary() as primary,
        replica_of(primary) as first,
        replica_of(primary) as second,
    ):
        await migrate(primary.dsn())
        server = serving(primary.dsn())
        server.environment |= {
            "BRAID_DATABASE_READ_URLS": f"{first.dsn('postgres')} {second.dsn('postgres')}",
            "BRAID_REPLICA_MAX_LAG_SECONDS": str(LAG_LIMIT),
        }
        async with asking(server, known) as (asked, client):
            await _in_use(client, 2)
            async with asked.going_on() as told:
                await asyncio.sleep(RETURN_SECONDS)
                await asyncio.to_thread(first.kill)
                await _in_use(client, 1)
                await asyncio.sleep(RETURN_SECONDS)
                noticed = await _lag(primary, second, client)
    failed = sum(one.status != 200 or one.degraded for one in told)
    wrong = asked.wrong(told)
    table.line(
        "replica killed under load: no failed search", f"{failed} of {len(told)}", kept=failed == 0
    )
    table.line("  no wrong answer", str(wrong), kept=wrong == 0)
    shown = f"{noticed * 1000:.0f} ms after the limit"
    table.line("lagging replica left out within 2 s", shown, kept=noticed <= RETURN_SECONDS)


async def _in_use(client: httpx.AsyncClient, wanted: int) -> None:
    async with asyncio.timeout(30):
        while True:
            found = IN_USE.search((await client.get("/metrics")).text)
            if found and int(found[1]) == wanted:
                return
            await asyncio.sleep(0.02)


async def _lag(
    primary: EmbeddedPostgres, replica: ReplicaServer, client: httpx.AsyncClient
) -> float:
    """Seconds from the moment at which a paused replica is too old until it is left out."""
    follower = await asyncpg.connect(replica.dsn("postgres"))
    writer = await asyncpg.connect(primary.dsn())
    await writer.execute("CREATE TABLE public.written (n int)")
    await follower.execute("SELECT pg_wal_replay_pause()")
    paused = time.perf_counter()

    async def write() -> None:
        while True:
            await writer.execute("INSERT INTO public.written VALUES (1)")
            await asyncio.sleep(0.05)

    writing = asyncio.create_task(write())
    await _in_use(client, 0)
    noticed = time.perf_counter() - paused - LAG_LIMIT
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    for connection in (writer, follower):
        await connection.close()
    return noticed


async def rolling_restarts(table: Table, known: Corpus, times: int) -> None:
    """Replace two search processes behind a balancer, one after the other, again and again."""
    with plain() as postgres, contextlib.ExitStack() as running:
        await migrate(postgres.dsn())
        async with filled(serving(postgres.dsn()), known), balancing() as balancer:
            serving_now = [await _joined(running, balancer, postgres.dsn()) for _ in range(2)]
            asked = Asking(balancer.port, known)
            await asked.learn()
            async with asked.going_on() as told:
                for _ in range(times * len(serving_now)):
                    serving_now.append(await _joined(running, balancer, postgres.dsn()))
                    oldest = serving_now.pop(0)
                    oldest.process.terminate()
                    await balancer.leave_out(oldest.port)
                    await asyncio.to_thread(oldest.process.wait, 60)
    failed, wrong = sum(one.status != 200 for one in told), asked.wrong(told)
    promise = f"rolling restart, {times} times: no failed search"
    table.line(promise, f"{failed} of {len(told)} ({statuses(told)})", kept=failed == 0)
    table.line("  no wrong answer", str(wrong), kept=wrong == 0)


async def _joined(running: contextlib.ExitStack, balancer: Balancer, dsn: str) -> serving:
    server = serving(dsn, "search")
    server.environment["BRAID_DRAIN_SECONDS"] = str(DRAIN_SECONDS)
    running.enter_context(server)
    await balancer.add(server.port)
    return server


async def slow_clients(table: Table, known: Corpus, seconds: float) -> None:
    """Connections that send a byte now and then, and others that send nothing at all."""
    with plain() as postgres:
        await migrate(postgres.dsn())
        async with asking(serving(postgres.dsn()), known) as (asked, client):
            alone = await _for_a_while(asked, seconds)
            async with _slow_and_idle(httpx.URL(client.base_url).port or 80):
                beside = await _for_a_while(asked, seconds)
                alive = (await client.get("/livez")).status_code
    before, after = (percentile([one.seconds for one in told], 0.95) for told in (alone, beside))
    failed = sum(one.status != 200 for one in beside)
    promise = f"{SLOW} slow and {IDLE} idle clients: no failed search"
    table.line(promise, f"{failed} of {len(beside)}, /livez {alive}", kept=failed == 0)
    shown = f"p95 {before * 1000:.0f} -> {after * 1000:.0f} ms"
    table.line("  the others as fast as before", shown, kept=after <= 1.5 * before)


async def _for_a_while(asked: Asking, seconds: float) -> list[Told]:
    async with asked.going_on() as told:
        await asyncio.sleep(seconds)
    return told


@contextlib.asynccontextmanager
async def _slow_and_idle(port: int) -> AsyncIterator[None]:
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(SLOW + IDLE)]
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: braid\r\nX-API-Key: {KEY}\r\nContent-Length: 9999\r\n\r\n"
    )

    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode())
        with contextlib.suppress(OSError):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.5)

    trickling = [asyncio.create_task(trickle(writer)) for _, writer in opened[:SLOW]]
    for reader, writer in opened[SLOW:]:
        writer.write(b"GET /livez HTTP/1.1\r\nHost: braid\r\n\r\n")
        await reader.readuntil(b"}")
    try:
        yield
    finally:
        for task in trickling:
            task.cancel()
        await asyncio.gather(*trickling, return_exceptions=True)
        for _, writer in opened:
            writer.close()


async def main(given: argparse.Namespace) -> int:
    """Run all of it; 1 when a promise was broken."""
    known = corpus(list(chunks(given.chunks)))
    table = Table()
    await restarts(table, known, given.restarts)
    await replicas(table, known)
    await slow_clients(table, known, given.seconds)
    await rolling_restarts(table, known, given.rolls)
    return int(table.broken > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=1500)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--rolls", type=int, default=2, help="times that both are replaced")
    parser.add_argument("--seconds", type=float, default=10.0, help="beside slow clients")
    raise SystemExit(uvloop.run(main(parser.parse_args())))
