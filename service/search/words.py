"""Scores the lexical candidates of several collections on one scale."""

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np

from service.db.pool import Database
from service.db.vectors import word_impacts
from service.models import Candidate, Generation
from service.search.legs import Legs
from service.search.pooling import Corpus, Impacts, Pool, pool_of, pooled_scores, word_space
from service.search.request import SearchPlan
from service.search.together import together


async def pool_words(
    database: Database,
    places: asyncio.Semaphore,
    plans: Sequence[SearchPlan],
    legs: Sequence[Legs],
) -> list[list[Candidate] | None]:
    """The lexical candidates of each collection with pooled BM25; None where there are none.

    Collections whose words are prepared alike are pooled. A row that is gone meanwhile keeps its
    score.
    """
    spaces: dict[tuple[str, str], list[Corpus]] = {}
    for plan, part in zip(plans, legs, strict=True):
        if part.lexical is not None and part.lexical.lexemes:
            generation = plan.collection.generation
            corpus = Corpus(generation, part.lexical.rows, part.lexical.lexemes)
            spaces.setdefault(word_space(generation), []).append(corpus)
    pools = {space: pool_of(corpora) for space, corpora in spaces.items()}

    async def one(generation: Generation, part: Legs) -> list[Candidate] | None:
        candidates = part.found.get("lexical")
        if not candidates:
            return None
        async with places:
            return await _rescored(database, generation, candidates, pools[word_space(generation)])

    return await together(
        [one(plan.collection.generation, part) for plan, part in zip(plans, legs, strict=True)]
    )


async def _rescored(
    database: Database, generation: Generation, candidates: Sequence[Candidate], pool: Pool
) -> list[Candidate]:
    rows = [one.row for one in candidates]
    async with database.read(generation.team_id) as connection:
        found = await word_impacts(connection, generation.id, rows, list(pool.weights))
    if not found:
        return list(candidates)
    lengths = np.array([length for length, _ in found.values()], np.float64)
    values = np.array([impacts for _, impacts in found.values()], np.float64)
    scores = pooled_scores(Impacts(values, lengths), generation, pool)
    by_row = dict(zip(found, scores, strict=True))
    return [
        msgspec.structs.replace(one, score=by_row.get(one.row, one.score)) for one in candidates
    ]
