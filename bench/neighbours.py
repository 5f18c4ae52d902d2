"""What 64 clients of one team cost another team's searches.

A client that is refused comes back after the `Retry-After` that it was told. Server, database and
clients share the machine.
"""

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial

import httpx
import msgspec
import uvloop
from search_overhead import KEY, load, serving
from traffic import PATH, Corpus, Table, filled, on_own_server, percentile

TIMES = 2.0
Times = list[float]


class Heavy(msgspec.Struct):
    """What the clients of the team that fills the gate met."""

    answered: int = 0
    refused: int = 0
    other: int = 0


async def light(client: httpx.AsyncClient, known: Corpus, seconds: float) -> Times:
    """One client of the other team, with one question after the other; how long each took."""
    until, told = time.perf_counter() + seconds, list[float]()
    for at in range(1_000_000):
        began = time.perf_counter()
        if began > until:
            break
        question = known.questions[at % len(known.questions)]
        answer = await client.post(PATH, content=question)
        answer.raise_for_status()
        told.append(time.perf_counter() - began)
    return told


async def heavy(
    client: httpx.AsyncClient, questions: Sequence[bytes], ended: asyncio.Event, met: Heavy
) -> None:
    """One of the many clients, until told to end."""
    for at in range(1_000_000):
        if ended.is_set():
            return
        answer = await client.post(PATH, content=questions[at % len(questions)])
        if answer.status_code == 429:
            met.refused += 1
            await asyncio.sleep(float(answer.headers["retry-after"]))
        elif answer.status_code == 200:
            met.answered += 1
        else:
            met.other += 1


@contextlib.asynccontextmanager
async def other_team(client: httpx.AsyncClient, known: Corpus) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a second team that has the same collection."""
    await client.post("/v1/teams", json={"name": "other"})
    headers = {"X-API-Key": KEY, "X-Team": "other", "Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=client.base_url, headers=headers, timeout=60) as other:
        await load(other, known.texts, known.vectors, language="english")
        yield other


async def measure(server: serving, known: Corpus, given: argparse.Namespace) -> int:
    """Print the promise and whether it was kept; how many were not."""
    limits = httpx.Limits(max_connections=given.clients)
    headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
    async with (
        filled(server, known) as root,
        other_team(root, known) as other,
        httpx.AsyncClient(
            base_url=root.base_url, headers=headers, limits=limits, timeout=60
        ) as many,
    ):
        await light(other, known, given.warm_seconds)
        alone = await light(other, known, given.seconds)
        ended, met = asyncio.Event(), Heavy()
        clients = [
            asyncio.create_task(heavy(many, known.questions[at:], ended, met))
            for at in range(given.clients)
        ]
        await asyncio.sleep(given.warm_seconds)
        beside = await light(other, known, given.seconds)
        ended.set()
        await asyncio.gather(*clients)
    return judge(alone, beside, met, given)


def judge(alone: Times, beside: Times, met: Heavy, given: argparse.Namespace) -> int:
    table = Table()
    before, after = (percentile(times, 0.95) * 1000 for times in (alone, beside))
    halves = [percentile(times, 0.5) * 1000 for times in (alone, beside)]
    print(f"     the {given.clients} clients: {met}; p50 {halves[0]:.1f} -> {halves[1]:.1f} ms")
    shown = f"{before:.1f} -> {after:.1f} ms ({after / before:.2f} times, {len(beside)} searches)"
    table.line("p95 of the other team within twice", shown, kept=after <= TIMES * before)
    table.line("nothing but 200 and 429", str(met.other), kept=not met.other)
    return table.broken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=3000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--warm-seconds", type=float, default=3.0)
    given = parser.parse_args()
    raise SystemExit(uvloop.run(on_own_server(partial(measure, given=given), given.chunks)))
