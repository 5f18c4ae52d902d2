"""What a process reads before the first query asks for it."""

from service.db.analyzers import load_analyzer
from service.db.candidates import CandidateQuery
from service.db.pool import Database
from service.db.segments import largest_generations
from service.models import Generation
from service.search.lexical import CorpusCache
from service.search.packed import PackedWeights, search_packed
from service.search.planning import any_of
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
    places = list(map(lexeme_hash, hot))
    async with database.read(generation.team_id) as connection:
        analyzer = await load_analyzer(connection, generation)
        segments = await corpus.packed.segments(connection, generation)
        if not segments:
            return
        await corpus.packed.lists(connection, segments, places)
        # A server process, too, is slow at what it does for the first time.
        await corpus.statistics.lexemes_of(connection, analyzer.configuration, hot)
        query = CandidateQuery(generation.id, "chunks", None, 1, None)
        asked = PackedWeights(dict.fromkeys(places[:1], 1.0), any_of(hot[:1]), generation.k1)
        await search_packed(connection, corpus.packed, segments, query, asked)
