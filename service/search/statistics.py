"""What queries ask of a corpus again and again, kept in process; no write path maintains it."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from service.db.lexical import (
    LexicalStatistics,
    lexemes_of_words,
    lexical_statistics,
    probe_frequencies,
)
from service.db.pool import Connection, Database
from service.instruments import CACHE_REQUESTS
from service.models import Generation
from service.telemetry import log
from service.text import Prepared

EXACT_ROWS = 2000
"""Up to this size every query counts its lexemes exactly; nothing is remembered."""
SMALL_SECONDS = 2.0
LARGE_SECONDS = 60.0
KEPT_SECONDS = 600.0
"""What expired less long ago is still used, while it is renewed in the background."""
MAX_LEXEMES = 200_000
MAX_WORDS = 200_000


class _Known(msgspec.Struct):
    statistics: LexicalStatistics
    expires: float
    probed: dict[str, int]


class StatisticsCache:
    """Rows and document frequencies by generation, renewed after a time to live."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[int, _Known] = {}
        self._words: dict[tuple[str, str], Sequence[str]] = {}
        self._renewals: dict[int, asyncio.Task[None]] = {}

    async def of(self, database: Database, generation: Generation) -> LexicalStatistics:
        """Rows and common lexemes of a generation.

        No query waits for the renewal of a large generation's: it goes on with what is there.
        """
        known = self._known.get(generation.id)
        now = self._clock()
        if known is None or now >= known.expires + KEPT_SECONDS:
            return (await self._renew(database, generation)).statistics
        if now >= known.expires:
            if known.statistics.rows <= EXACT_ROWS:
                return (await self._renew(database, generation)).statistics
            self._renew_later(database, generation)
        return known.statistics

    def forget(self) -> None:
        """Count everything again; queries on their way keep what they have."""
        for known in self._known.values():
            known.expires = self._clock() - KEPT_SECONDS

    async def _renew(self, database: Database, generation: Generation) -> _Known:
        statistics = await lexical_statistics(database, generation.id)
        seconds = SMALL_SECONDS if statistics.rows <= EXACT_ROWS else LARGE_SECONDS
        known = _Known(statistics, self._clock() + seconds, {})
        self._known[generation.id] = known
        self._forget_unused()
        return known

    def _renew_later(self, database: Database, generation: Generation) -> None:
        async def renew() -> None:
            try:
                await self._renew(database, generation)
            except Exception as error:  # noqa: BLE001 - what is known stays, and is tried again
                log.warning("statistics could not be renewed", error=type(error).__name__)
            finally:
                del self._renewals[generation.id]

        if generation.id not in self._renewals:
            self._renewals[generation.id] = asyncio.create_task(renew())

    async def frequencies(
        self, connection: Connection, generation: Generation, lexemes: Sequence[str]
    ) -> dict[str, int]:
        """Rows that hold each lexeme: sampled where common, counted where rare."""
        known = self._known[generation.id]
        unknown = [
            lexeme
            for lexeme in lexemes
            if lexeme not in known.statistics.common and lexeme not in known.probed
        ]
        CACHE_REQUESTS.add(len(lexemes) - len(unknown), "frequencies", "hit")
        if unknown:
            CACHE_REQUESTS.add(len(unknown), "frequencies", "miss")
            if len(known.probed) > MAX_LEXEMES:
                known.probed.clear()
            known.probed.update(await probe_frequencies(connection, generation.id, unknown))
        return {
            lexeme: known.statistics.common.get(lexeme) or known.probed[lexeme]
            for lexeme in lexemes
        }

    async def lexemes(
        self, connection: Connection, configuration: str, prepared: Prepared
    ) -> Mapping[str, int]:
        """The distinct lexemes of a prepared query and how often it holds each."""
        words = prepared.words.split()
        known = await self.lexemes_of(connection, configuration, words)
        counts = Counter(prepared.exact)
        for word in words:
            counts.update(known[word])
        return counts

    async def lexemes_of(
        self, connection: Connection, configuration: str, words: Iterable[str]
    ) -> dict[str, Sequence[str]]:
        """The lexemes of words: the same wherever a word stands, so each is asked for once."""
        distinct = set(words)
        if len(self._words) > MAX_WORDS:
            self._words.clear()
        unknown = [word for word in distinct if (configuration, word) not in self._words]
        if unknown:
            found = await lexemes_of_words(connection, configuration, unknown)
            self._words.update({(configuration, word): found[word] for word in unknown})
        return {word: self._words[configuration, word] for word in distinct}

    def _forget_unused(self) -> None:
        # Twice as long as they are used, so that no query loses them on its way.
        oldest = self._clock() - 2 * KEPT_SECONDS
        self._known = {key: known for key, known in self._known.items() if known.expires > oldest}
