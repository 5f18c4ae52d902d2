"""The packed path while clients write and delete, and the first queries of a process."""

import asyncio
import random
import statistics
import time
from collections.abc import Sequence

import msgspec
from lexical_corpus import store

from service.db.candidates import CandidateQuery
from service.db.pool import Database, open_database
from service.indexing.packing import pack_if_grown
from service.models import Collection
from service.search.lexical import CorpusCache, LexicalAnswer, lexical_leg
from service.search.packed import PackedIndex
from service.search.request import Query, SearchRequest, plan_search
from service.search.statistics import StatisticsCache
from service.search.warm import warm_up

WRITERS = 8
FIRST_WRITTEN = 10_000_000
CHUNKS_A_DOCUMENT = 5
KEPT_DOCUMENTS = 40
ROUNDS = 3
TOP = 10
HOLD = "SELECT id FROM braid.generations WHERE id = $1 FOR SHARE"
DELETE = """
    DELETE FROM braid.chunks WHERE generation_id = $1 AND document_id > $2 AND document_id <= $3
"""


class Reader(msgspec.Struct, frozen=True):
    """Asks one collection the way a process of the product does."""

    database: Database
    collection: Collection
    corpus: CorpusCache

    async def answer(self, text: str) -> LexicalAnswer:
        """The first forty candidates."""
        plan = plan_search(SearchRequest(Query(text=text), mode="text"), self.collection)
        query = CandidateQuery(self.collection.generation.id, "chunks", None, 40, None)
        return await lexical_leg(self.database, self.corpus, plan, query)

    async def rows(self, text: str) -> list[int]:
        """The rows of the first forty candidates."""
        return [one.row for one in (await self.answer(text)).candidates]


class Writer:
    """Writes documents of made-up words, looks whether each is found, and deletes the oldest."""

    def __init__(self, number: int, reader: Reader) -> None:
        self.written = self.wrong = 0
        self._number = number
        self._reader = reader
        self._chance = random.Random(number)
        self._documents: list[tuple[int, str]] = []

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._write()
            if len(self._documents) > KEPT_DOCUMENTS:
                await self._delete()
        while self._documents:
            await self._delete()

    async def _write(self) -> None:
        first = FIRST_WRITTEN * (self._number + 1) + self.written * CHUNKS_A_DOCUMENT
        word = f"zq{self._number}x{self.written}zq"
        texts = [
            " ".join([word, *(f"zq{self._chance.randrange(5000)}w" for _ in range(100))])
            for _ in range(CHUNKS_A_DOCUMENT)
        ]
        generation = self._reader.collection.generation
        async with self._reader.database.write(generation.team_id) as connection:
            await connection.fetchval(HOLD, generation.id)
            await store(connection, generation.id, texts, first)
        self.written += 1
        self._documents.append((first, word))
        self.wrong += len(await self._reader.rows(word)) != CHUNKS_A_DOCUMENT

    async def _delete(self) -> None:
        first, word = self._documents.pop(0)
        generation = self._reader.collection.generation
        async with self._reader.database.write(generation.team_id) as connection:
            await connection.execute(DELETE, generation.id, first, first + CHUNKS_A_DOCUMENT)
        self.wrong += bool(await self._reader.rows(word))


async def under_writes(dsn: str, collection: Collection, asked: Sequence[str]) -> None:
    """Ask the same questions before, while clients write and delete, and when they are gone."""
    database = await open_database(dsn, size=2 * WRITERS)
    reader = Reader(database, collection, CorpusCache(StatisticsCache(), PackedIndex()))
    before, quiet = await _ask(reader, asked)
    stop = asyncio.Event()
    writers = [Writer(number, reader) for number in range(WRITERS)]
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.run(stop))
        group.create_task(_pack(database, collection, stop))
        rounds = [await _ask(reader, asked) for _ in range(ROUNDS)]
        stop.set()
    after, _ = await _ask(reader, asked)
    meanwhile = statistics.fmean(_overlap(tops, before) for tops, _ in rounds)
    busy = statistics.median(middle for _, middle in rounds)
    written = sum(writer.written for writer in writers)
    wrong = sum(writer.wrong for writer in writers)
    print(
        f"{WRITERS} clients writing: {written} documents written, found and deleted, {wrong} wrong"
        f" answers to the writers; p50 {quiet:.2f} -> {busy:.2f} ms;"
        f" top-10 overlap {meanwhile:.4f} meanwhile,"
        f" {_overlap(after, before):.4f} afterwards",
        flush=True,
    )
    await database.close()


async def _ask(reader: Reader, asked: Sequence[str]) -> tuple[list[list[int]], float]:
    tops, times = [], []
    for question in asked:
        started = time.perf_counter()
        tops.append((await reader.rows(question))[:TOP])
        times.append((time.perf_counter() - started) * 1000)
    return tops, statistics.median(times)


async def _pack(database: Database, collection: Collection, stop: asyncio.Event) -> None:
    """As the worker does after each job."""
    while not stop.is_set():
        await pack_if_grown(database, collection.generation)
        await asyncio.sleep(0.2)


def _overlap(tops: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> float:
    parts = [
        len(set(one) & set(other)) / len(other)
        for one, other in zip(tops, others, strict=True)
        if other
    ]
    return statistics.fmean(parts)


async def cold_starts(dsn: str, collection: Collection, asked: Sequence[str]) -> None:
    """The first queries of a new process, with and without what it reads at its start."""
    for warmed in (False, True):
        database = await open_database(dsn, size=2)
        reader = Reader(database, collection, CorpusCache(StatisticsCache(), PackedIndex()))
        started = time.perf_counter()
        if warmed:
            await warm_up(database, reader.corpus)
        warming = (time.perf_counter() - started) * 1000
        times = []
        for question in asked[:20]:
            started = time.perf_counter()
            await reader.rows(question)
            times.append((time.perf_counter() - started) * 1000)
        print(
            f"new process, {f'read ahead in {warming:.0f} ms' if warmed else 'nothing read ahead'}:"
            f" first query {times[0]:.1f} ms, next 19 p50 {statistics.median(times[1:]):.1f},"
            f" slowest {max(times[1:]):.1f}",
            flush=True,
        )
        await database.close()
