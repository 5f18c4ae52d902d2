"""Four times as many searches as a process can answer: what becomes of them.

First the best rate is measured with a few patient clients, then searches arrive at a multiple of
it whether answered or not. Every twentieth has 400 words. Server, database and clients share the
machine.
"""

import argparse
from collections.abc import Sequence
from functools import partial

import httpx
import uvloop
from search_overhead import serving
from traffic import (
    Connections,
    Corpus,
    Table,
    Told,
    filled,
    on_own_server,
    percentile,
    resident_mb,
    statuses,
)

DEADLINE_SECONDS = 3.0
REFUSAL_SECONDS = 0.05
GROWTH = 1.1


async def best_rate(connections: Connections, seconds: float) -> float:
    """Searches a second with the number of clients that gets most."""
    best = 0.0
    for clients in (2, 4, 8, 10):
        told = await connections.keep_asking(seconds, clients)
        rate = sum(one.status == 200 for one in told) / seconds
        print(f"     {clients} patient clients: {rate:.0f} a second ({statuses(told)})", flush=True)
        best = max(best, rate)
    return best


def judge(told: Sequence[Told], best: float, seconds: float, memory: tuple[float, float]) -> int:
    """Print the promises and whether they were kept; how many were not."""
    table = Table()
    accepted = [one.seconds for one in told if one.status == 200]
    refused = [one.seconds for one in told if one.status == 429]
    goodput = len(accepted) / seconds
    table.line(
        "goodput at least 0.9 of the best",
        f"{goodput:.0f} of {best:.0f} a second",
        kept=goodput >= 0.9 * best,
    )
    table.line(
        "every answer is 200 or 429",
        statuses(told),
        kept={one.status for one in told} <= {200, 429},
    )
    late = sum(one > REFUSAL_SECONDS for one in refused)
    middle, last = (percentile(refused, share) * 1000 for share in (0.5, 0.99))
    shown = f"p50 {middle:.0f} p99 {last:.0f} ms, {late} of {len(refused)} later"
    table.line("every refusal within 50 ms", shown, kept=late == 0)
    slow = percentile(accepted, 0.99)
    table.line(
        "p99 of what was accepted within the deadline",
        f"{slow * 1000:.0f} ms",
        kept=slow <= DEADLINE_SECONDS,
    )
    degraded = sum(one.degraded for one in told)
    table.line("nothing degraded", str(degraded), kept=degraded == 0)
    before, after = memory
    table.line("memory flat", f"{before:.0f} -> {after:.0f} MB", kept=after <= GROWTH * before)
    return table.broken


async def measure(server: serving, known: Corpus, given: argparse.Namespace) -> int:
    async with filled(server, known) as client:
        connections = Connections(httpx.URL(client.base_url).port or 80, known.questions)
        await connections.keep_asking(given.warm_seconds, 4)
        best = await best_rate(connections, given.best_seconds)
        await connections.arrive(given.times * best, given.warm_seconds)
        before = resident_mb(server.process.pid)
        told = await connections.arrive(given.times * best, given.seconds)
        after = resident_mb(server.process.pid)
        print(f"     {given.times * best:.0f} searches a second for {given.seconds:.0f} s")
        return judge(told, best, given.seconds, (before, after))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the overload")
    parser.add_argument(
        "--best-seconds", type=float, default=5.0, help="of each measurement of the best rate"
    )
    parser.add_argument("--warm-seconds", type=float, default=5.0)
    parser.add_argument("--times", type=float, default=4.0, help="of the best rate")
    given = parser.parse_args()
    raise SystemExit(uvloop.run(on_own_server(partial(measure, given=given), given.chunks)))
