"""A load of documents while workers, the database and the providers fail, and what came of it.

`python -m support.load_faults DSN EMBEDDINGS_URL HEADERS_URL` is the worker that is killed.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from support.credentials import LOOPBACK
from support.embedded_processes import is_gone, postmaster
from support.fake_anthropic import FakeAnthropic, last_user_text
from support.fake_embeddings import KEY, FakeVoyage
from support.fake_http import Answer, Call, Cut, Delay, FakeServer, Hang, Trouble, refusal, running
from support.indexing import TEAM, documents, fetch, make_collection

from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate
from service.db.pool import Connection, Database, open_database
from service.errors import UnavailableError
from service.indexing import embedding
from service.indexing.intake import submit_documents
from service.indexing.worker import Worker
from service.models import Collection, Contextual, Credential
from service.providers import contextualizers
from service.providers.addresses import parse_allowed
from service.providers.contextualizers import Contextualizers
from service.providers.embedders import Embedders
from service.providers.outbound import Accounts, Outbound
from service.providers.registry import EmbedderOptions
from service.providers.remote_embedder import PROBE_TEXT

TROUBLE_SHARE = 0.3
CALL_SECONDS = 1.5
"""A call that hangs is given up after this."""
ANSWER_SECONDS = 0.03
LEASE_SECONDS = 1.0
IN_FLIGHT_SECONDS = 0.5
"""Calls of a worker that was just killed may still be answered."""
JOB_DOCUMENTS = 20
REPLACED_SHARE = 0.15
"""Of the documents that are sent twice, in two versions."""
PATIENCE_SECONDS = 120.0
"""Without any progress."""
ROOT = Path(__file__).resolve().parents[2]
HEADERS = Contextual(enabled=True, provider="claude", model="claude-test", version=1)

READY = "SELECT count(*) FROM braid.documents WHERE status = 'ready'"
OPEN = "SELECT count(*) FROM braid.jobs WHERE status IN ('pending', 'processing')"
ROWS = """
SELECT doc_id, chunk_id, position, text, context, context_due FROM braid.chunks
WHERE generation_id = ANY($1) ORDER BY doc_id, position
"""
STATES = "SELECT status, count(*) AS documents FROM braid.documents GROUP BY status"


@dataclass(frozen=True)
class Plan:
    """How much is loaded, and how often things break."""

    documents: int
    with_headers: int
    """Of the documents, those whose chunks a model situates."""
    kills: int
    restarts: int
    hangs: bool = True
    """Whether calls hang until they are given up; otherwise their connections are cut."""
    seed: int = 20240607


@dataclass
class Outcome:
    """What was found when everything was over."""

    seconds: float = 0.0
    kills: int = 0
    restarts: int = 0
    states: dict[str, int] = field(default_factory=dict)
    wrong_documents: list[str] = field(default_factory=list)
    missing_headers: int = 0
    calls: int = 0
    troubles: int = 0
    embedded: int = 0
    """Texts that the provider embedded."""
    embedded_again: int = 0
    headers: int = 0
    headers_again: int = 0
    unexplained: list[str] = field(default_factory=list)
    """Texts paid for twice although nothing was killed in between."""


class Unreliable(FakeServer):
    """Answers a share of its calls with 429, 500 or nothing, and notes what it was paid for."""

    chance = random.Random(7)
    hangs = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.paid: dict[str, list[float]] = {}
        self.troubled = 0

    def next_trouble(self) -> Trouble | None:
        if self.chance.random() >= TROUBLE_SHARE:
            return Delay(ANSWER_SECONDS)
        self.troubled += 1
        last: Trouble = Hang() if self.hangs else Cut()
        kinds = [refusal(429, retry_after="0.2"), refusal(500), last]
        return self.chance.choice(kinds)

    def respond(self, call: Call) -> Answer:
        answer = super().respond(call)
        if answer.status == 200:
            for text in texts_of(call.body):
                if text == PROBE_TEXT:
                    continue
                self.paid.setdefault(text, []).append(time.monotonic())
        return answer


class UnreliableEmbeddings(Unreliable, FakeVoyage):
    """Embeddings."""


class UnreliableHeaders(Unreliable, FakeAnthropic):
    """Headers."""


def texts_of(body: dict[str, Any]) -> list[str]:
    """The texts that a call is about."""
    if "messages" in body:
        return [last_user_text(body)]
    return [body["input"]] if isinstance(body["input"], str) else list(body["input"])


class Registered:
    """The two fake providers, by name."""

    def __init__(self, embeddings: str, headers: str) -> None:
        key = SecretStr(KEY)
        self._known = {
            "voyage": Credential(1, TEAM, "voyage", "voyage", embeddings, key),
            "claude": Credential(2, TEAM, "claude", "anthropic", headers, key),
        }

    async def find(self, _team_id: int, name: str) -> Credential | None:
        return self._known.get(name)


async def work(dsn: str, embeddings: str, headers: str) -> None:
    """Be a worker until killed."""
    embedding.CALL_SECONDS = contextualizers.CALL_SECONDS = CALL_SECONDS
    outbound = Outbound(parse_allowed(LOOPBACK))
    accounts = Accounts(Registered(embeddings, headers), outbound)
    database = await open_database(dsn, size=8)
    worker = Worker(
        database,
        dsn,
        Embedders(EmbedderOptions(), accounts=accounts),
        contextualizers=Contextualizers(accounts),
        lease_seconds=LEASE_SECONDS,
    )
    print("ready", flush=True)  # noqa: T201
    await worker.run()


def text_of(number: int, version: int) -> str:
    """A document of a few paragraphs, a chunk each; no two have a chunk in common."""
    return "\n\n".join(
        f"Part {part} of document {number}, version {version}. " + f"It is about {number}. " * 9
        for part in range(1 + (number + version) % 4)
    )


def pieces(text: str) -> list[str]:
    return [piece.strip() for piece in text.split("\n\n")]


class Load:
    """One run of a plan."""

    def __init__(self, plan: Plan, server: EmbeddedPostgres, database: Database) -> None:
        self._plan = plan
        self._server = server
        self._database = database
        self._chance = random.Random(plan.seed)
        self._embeddings = UnreliableEmbeddings()
        self._headers = UnreliableHeaders()
        self._embeddings.hangs = self._headers.hangs = plan.hangs
        self._worker: subprocess.Popen[bytes] | None = None
        self._breaks: list[float] = []
        self._collections: list[Collection] = []
        self._sent: dict[str, str] = {}
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        """Load everything while things break, then look."""
        began = time.monotonic()
        self._collections = [
            await make_collection(self._database, "plain", **self._settings(Contextual())),
            await make_collection(self._database, "situated", **self._settings(HEADERS)),
        ]
        async with running(self._embeddings), running(self._headers):
            await self._start_worker()
            sending = asyncio.create_task(self._send())
            await self._break()
            await sending
            await self._until(self._is_over)
            self._end_worker()
        self.outcome.seconds = time.monotonic() - began
        await self._look()
        return self.outcome

    def _settings(self, contextual: Contextual) -> dict[str, Any]:
        return {
            "provider": "voyage",
            "model": "voyage-test",
            "dim": 64,
            "chunk_size": 64,
            "chunk_overlap": 0,
            "contextual": contextual,
        }

    async def _send(self) -> None:
        """Send every document, some of them again in a second version."""
        numbers = list(range(self._plan.documents))
        batches = [numbers[at : at + JOB_DOCUMENTS] for at in range(0, len(numbers), JOB_DOCUMENTS)]
        for batch in batches:
            await self._submit(batch, 1)
            again = [number for number in batch if self._chance.random() < REPLACED_SHARE]
            if again:
                await self._submit(again, 2)

    async def _submit(self, numbers: Sequence[int], version: int) -> None:
        for collection, chosen in zip(self._collections, self._split(numbers), strict=True):
            texts = {f"d{number}": text_of(number, version) for number in chosen}
            given = documents(*({"doc_id": key, "text": text} for key, text in texts.items()))
            while given:
                try:
                    await submit_documents(self._database, collection, given)
                except UnavailableError:
                    await asyncio.sleep(0.1)
                else:
                    self._sent |= texts
                    break

    def _split(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        every = max(1, self._plan.documents // max(1, self._plan.with_headers))
        plain = [number for number in numbers if number % every or not self._plan.with_headers]
        return plain, [number for number in numbers if number not in plain]

    async def _break(self) -> None:
        """Kill workers and restart the database, evenly over the load."""
        plan = self._plan
        breaks = ["kill"] * plan.kills
        for at in range(plan.restarts):
            breaks.insert((at + 1) * len(breaks) // (plan.restarts + 1), "restart")
        for at, kind in enumerate(breaks):
            share = at / (len(breaks) + 1)
            await self._until(lambda share=share: self._has_ready(share * plan.documents))  # type: ignore[misc]
            await asyncio.sleep(self._chance.uniform(0.05, 0.6))
            if kind == "kill":
                self._end_worker()
                self.outcome.kills += 1
                await self._start_worker()
            else:
                await self._restart_database(self.outcome.restarts % 2 == 0)
                self.outcome.restarts += 1

    async def _start_worker(self) -> None:
        command = [sys.executable, "-m", "support.load_faults"]
        urls = [self._server.dsn(), self._embeddings.url, self._headers.url]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        self._worker = await asyncio.to_thread(
            subprocess.Popen, [*command, *urls], stdout=subprocess.PIPE, env=environment
        )
        assert self._worker.stdout is not None
        assert await asyncio.to_thread(self._worker.stdout.readline) == b"ready\n"
        threading_reader = asyncio.to_thread(self._worker.stdout.read)
        self._reading = asyncio.create_task(threading_reader)

    def _end_worker(self) -> None:
        assert self._worker is not None
        self._worker.send_signal(signal.SIGKILL)
        self._worker.wait()
        self._breaks.append(time.monotonic())

    async def _restart_database(self, gently: bool) -> None:
        self._breaks.append(time.monotonic())
        if gently:
            await asyncio.to_thread(self._server.stop)
        else:
            killed = postmaster(self._server.root)
            os.kill(killed, signal.SIGKILL)
            while not is_gone(killed):  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.02)
        await asyncio.to_thread(self._server.start)
        self._breaks.append(time.monotonic())

    async def _until(self, condition: Any) -> None:
        """Ask until it is so, as long as anything moves."""
        seen, since = -1, time.monotonic()
        while not await condition():
            calls = len(self._embeddings.calls) + len(self._headers.calls)
            if calls != seen:
                seen, since = calls, time.monotonic()
            assert time.monotonic() - since < PATIENCE_SECONDS, "nothing moves any more"
            await asyncio.sleep(0.05)

    async def _has_ready(self, count: float) -> bool:
        return await self._value(READY) >= count

    async def _is_over(self) -> bool:
        return await self._value(OPEN) == 0

    async def _value(self, statement: str) -> int:
        with contextlib.suppress(UnavailableError):
            async with self._database.administer() as connection:
                found: int = await connection.fetchval(statement)
                return found
        return -1

    async def _look(self) -> None:
        async with self._database.administer() as connection:
            await self._look_at_rows(connection)
        outcome, servers = self.outcome, (self._embeddings, self._headers)
        outcome.calls = sum(len(server.calls) for server in servers)
        outcome.troubles = sum(server.troubled for server in servers)
        outcome.embedded = sum(len(times) for times in self._embeddings.paid.values())
        outcome.embedded_again = outcome.embedded - len(self._embeddings.paid)
        outcome.headers = sum(len(times) for times in self._headers.paid.values())
        outcome.headers_again = outcome.headers - len(self._headers.paid)
        outcome.unexplained = [
            f"{text[:90]!r} after {second - first:.2f} s"
            for server in servers
            for text, times in server.paid.items()
            for first, second in pairwise(times)
            if not any(first <= at + IN_FLIGHT_SECONDS and at <= second for at in self._breaks)
        ]

    async def _look_at_rows(self, connection: Connection) -> None:
        generations = [one.generation.id for one in self._collections]
        found: dict[str, list[dict[str, Any]]] = {doc_id: [] for doc_id in self._sent}
        for row in await fetch(connection, ROWS, generations):
            found.setdefault(row["doc_id"], []).append(row)
        self.outcome.wrong_documents = [
            doc_id
            for doc_id, rows in found.items()
            if [row["text"].strip() for row in rows] != pieces(self._sent.get(doc_id, ""))
            or [row["chunk_id"] for row in rows] != [f"{doc_id}::{at}" for at in range(len(rows))]
        ]
        situated = {f"d{number}" for number in self._split(range(self._plan.documents))[1]}
        self.outcome.missing_headers = sum(
            row["context"] is None for doc_id in situated for row in found.get(doc_id, [])
        )
        states = await fetch(connection, STATES)
        self.outcome.states = Counter({row["status"]: row["documents"] for row in states})


@contextlib.asynccontextmanager
async def loading(plan: Plan) -> AsyncIterator[Load]:
    """A server of its own for one run."""
    with tempfile.TemporaryDirectory(prefix="braid-load-", ignore_cleanup_errors=True) as folder:
        server = EmbeddedPostgres(Path(folder))
        await migrate(await asyncio.to_thread(server.start))
        database = await open_database(server.dsn(), size=6)
        try:
            yield Load(plan, server, database)
        finally:
            await database.close()
            await asyncio.to_thread(server.stop)


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:4]))
