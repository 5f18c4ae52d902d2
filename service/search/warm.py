"""What a process reads before the first query asks for it."""

from service.db.analyzers import load_analyzer
from service.db.pool import Database
from service.db.segments import largest_generations
from service.models import Generation
from service.search.lexical import CorpusCache
from service.text import lexeme_hash

WARMED_GENERATIONS = 32
HOT_LEXEMES = 200
"""Of a generation's most common ones: queries ask for them most, and their lists are longest."""


async def warm_up(database: Database, corpus: CorpusCache) -> None:
    """Read what the first queries of the largest collections would have to wait for."""
    # The largest one last: what does not fit the cache any more is what was read first.
    for generation in reversed(await largest_generations(database, WARMED_GENERATIONS)):
        await _warm(database, corpus, generation)


async def _warm(database: Database, corpus: CorpusCache, generation: Generation) -> None:
    common = (await corpus.statistics.of(database, generation)).common
    hot = sorted(common, key=lambda lexeme: -common[lexeme])[:HOT_LEXEMES]
    async with database.read(generation.team_id) as connection:
        await load_analyzer(connection, generation)
        segments = await corpus.packed.segments(connection, generation)
        for segment in segments:
            await corpus.packed.open(connection, segment)
        if segments:
            await corpus.packed.lists(connection, segments, list(map(lexeme_hash, hot)))
