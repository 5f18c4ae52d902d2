"""The lexical leg at size: this leg against every ranking that stock Postgres offers.

Builds a corpus from the documentation and sources that this machine's Python installation holds,
loads it with the product's own preparation, and asks the same questions in one run with one
connection: AND and OR with ts_rank_cd, OR with ts_rank, exact BM25, the bounded GIN path and the
packed path. Then the packed path once more while clients write and delete, and the first query of
a process and of a server. Only ratios within one run mean anything.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from lexical_corpus import ENGLISH, chunks, prepared_collection, questions
from lexical_live import cold_starts, under_writes

from service.db.candidates import CandidateQuery
from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate
from service.db.pool import Connection, Database, open_database
from service.models import Collection
from service.search.lexical import CorpusCache, LexicalAnswer, lexical_leg
from service.search.packed import PackedIndex
from service.search.request import Query, SearchRequest, plan_search
from service.search.statistics import StatisticsCache
from service.text import prepare, tsvector_literal

TOP = 10
LIMIT = 40

STOCK = """
    SELECT id FROM braid.searchable WHERE generation_id = $1 AND tsv @@ $2::text::tsquery
    ORDER BY {rank}(tsv, $2::text::tsquery) DESC, id LIMIT 40
"""
QUERY_TEXT = """
    SELECT string_agg('''' || replace(replace(lexeme, '\\', '\\\\'), '''', '''''') || '''', $3)
    FROM unnest($1::text::tsvector || to_tsvector('english', $2))
"""


class Timing(msgspec.Struct):
    """Milliseconds a question, and the rows it put on top."""

    wall: list[float]
    cpu: float
    tops: list[list[int]]


def backend_cpu(pid: int) -> float:
    """CPU milliseconds that a server process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


async def timed(
    pid: int, asked: Sequence[str], ask: Callable[[str], Awaitable[list[int]]], rounds: int
) -> Timing:
    for question in asked:
        await ask(question)
    timing = Timing([], 0.0, [])
    cpu = backend_cpu(pid) + time.process_time() * 1000
    for turn in range(rounds):
        for question in asked:
            started = time.perf_counter()
            top = await ask(question)
            timing.wall.append((time.perf_counter() - started) * 1000)
            if turn == 0:
                timing.tops.append(top[:TOP])
    spent = backend_cpu(pid) + time.process_time() * 1000 - cpu
    timing.cpu = spent / len(timing.wall)
    return timing


def show(name: str, timing: Timing, exact: Timing | None) -> None:
    wall = sorted(timing.wall)
    middle, slow = statistics.median(wall), wall[int(len(wall) * 0.95)]
    shared = "       "
    if exact is not None:
        parts = [
            len(set(one) & set(other)) / len(other)
            for one, other in zip(timing.tops, exact.tops, strict=False)
            if other
        ]
        shared = f"{statistics.fmean(parts):7.3f}"
    print(
        f"{name:<26} p50 {middle:8.2f}  p95 {slow:8.2f}  p95/p50 {slow / middle:5.1f}"
        f"  CPU {timing.cpu:8.2f} ms  top-10 overlap {shared}",
        flush=True,
    )


class Ways:
    """The same question asked in each way on one connection."""

    def __init__(self, database: Database, collection: Collection) -> None:
        self.database = database
        self.collection = collection
        self.generation = collection.generation
        self.corpus = CorpusCache(StatisticsCache(), PackedIndex())
        self.unpacked = CorpusCache(StatisticsCache(), NoSegments())

    async def _tsquery(self, connection: Connection, text: str, glue: str) -> str:
        made = prepare(text, ENGLISH)
        exact = tsvector_literal(made.exact)
        found: str | None = await connection.fetchval(QUERY_TEXT, exact, made.words, glue)
        return found or ""

    def stock(self, rank: str, glue: str) -> Callable[[str], Awaitable[list[int]]]:
        statement = STOCK.format(rank=rank)

        async def ask(text: str) -> list[int]:
            async with self.database.read(1) as connection:
                tsquery = await self._tsquery(connection, text, glue)
                rows = await connection.fetch(statement, self.generation.id, tsquery)
            return [row["id"] for row in rows]

        return ask

    def leg(self, corpus: CorpusCache, budget: int) -> Callable[[str], Awaitable[list[int]]]:
        async def ask(text: str) -> list[int]:
            answer = await self.answer(text, corpus, budget)
            return [one.row for one in answer.candidates]

        return ask

    async def answer(self, text: str, corpus: CorpusCache, budget: int) -> LexicalAnswer:
        generation = msgspec.structs.replace(self.generation, row_budget=budget)
        collection = msgspec.structs.replace(self.collection, generation=generation)
        plan = plan_search(SearchRequest(Query(text=text), mode="text"), collection)
        query = CandidateQuery(generation.id, "chunks", None, LIMIT, None)
        return await lexical_leg(self.database, corpus, plan, query)


class NoSegments(PackedIndex):
    """As if nothing were packed."""

    async def segments(self, connection: Any, generation: Any) -> tuple[()]:  # noqa: ARG002
        return ()


async def compare(ways: Ways, pid: int, asked: Sequence[str]) -> None:
    few = asked[: max(20, len(asked) // 8)]
    unbounded = 10**9
    exact = await timed(pid, asked, ways.leg(ways.unpacked, unbounded), 1)
    show("exact BM25, no budget", exact, None)
    show("AND, ts_rank_cd", await timed(pid, asked, ways.stock("ts_rank_cd", " & "), 1), exact)
    show("OR, ts_rank_cd", await timed(pid, few, ways.stock("ts_rank_cd", " | "), 1), exact)
    show("OR, ts_rank", await timed(pid, few, ways.stock("ts_rank", " | "), 1), exact)
    show("this leg, bounded GIN", await timed(pid, asked, ways.leg(ways.unpacked, 8000), 2), exact)
    show("this leg, packed", await timed(pid, asked, ways.leg(ways.corpus, 8000), 3), exact)


async def hard_questions(ways: Ways, pid: int, asked: Sequence[str], texts: Sequence[str]) -> None:
    usual = await timed(pid, asked, ways.leg(ways.corpus, 8000), 1)
    middle = statistics.median(usual.wall)
    hard = {
        "only common words": "return the value if it is not none or the name of a file",
        "400 pasted words": " ".join(" ".join(texts[:8]).split()[:400]),
        "a word that most chunks hold": "the if in self",
    }
    for name, question in hard.items():
        timing = await timed(pid, [question], ways.leg(ways.corpus, 8000), 15)
        p50 = statistics.median(timing.wall)
        print(f"{name:<30} p50 {p50:7.2f} ms   {p50 / middle:5.1f} times the usual p50")


async def main(count: int, asked_count: int, kept: Path | None) -> None:
    texts = list(chunks(count))
    asked = questions(texts, asked_count)
    with tempfile.TemporaryDirectory(prefix="braid-bench-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(kept or Path(folder), settings={"shared_buffers": "1GB"})
        dsn = await asyncio.to_thread(postgres.start)
        try:
            await migrate(dsn)
            database = await open_database(dsn, size=1)
            collection = await prepared_collection(database, texts)
            await sizes(database, collection.generation.id, len(texts))
            async with database.read(1) as connection:
                pid = await connection.fetchval("SELECT pg_backend_pid()")
            ways = Ways(database, collection)
            await compare(ways, pid, asked)
            await hard_questions(ways, pid, asked, texts)
            await under_writes(dsn, ways.collection, asked)
            await database.close()
            await cold_starts(dsn, ways.collection, asked)
            await asyncio.to_thread(postgres.stop)
            dsn = await asyncio.to_thread(postgres.start)
            print("after a restart of the server:")
            await cold_starts(dsn, ways.collection, asked)
        finally:
            await asyncio.to_thread(postgres.stop)


async def sizes(database: Database, generation_id: int, rows: int) -> None:
    row = await database.fetch_row(
        "SELECT sum(pg_column_size(tsv)), sum(pg_column_size(bm25)),"
        f" pg_relation_size('braid.chunks_{generation_id:d}_tsv_idx'),"
        " pg_total_relation_size('braid.postings')"
        " FROM braid.chunks WHERE generation_id = $1",
        generation_id,
    )
    assert row is not None
    names = ("tsvector", "sparsevec", "GIN", "packed postings")
    print(
        "bytes a chunk: "
        + ", ".join(f"{name} {int(size) // rows}" for name, size in zip(names, row, strict=True))
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=150_000)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--data-dir", type=Path, help="folder to keep the loaded corpus in")
    given = parser.parse_args()
    asyncio.run(main(given.chunks, given.questions, given.data_dir))
