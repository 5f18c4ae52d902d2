"""BM25 over several collections as if their rows were one corpus; pure."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.db.lexical import QueryLexeme
from service.models import Generation
from service.search.planning import positions_of, weigh


class Corpus(msgspec.Struct, frozen=True):
    """One collection as its lexical leg saw it."""

    generation: Generation
    rows: int
    lexemes: Sequence[QueryLexeme]
    """Of the query, with the rows of this collection that hold each."""


class Pool(msgspec.Struct, frozen=True):
    """What the collections have in common: weights by the lexeme's position, and a length."""

    weights: Mapping[int, float]
    average_length: float


class Impacts(msgspec.Struct, frozen=True):
    """Document side of BM25 of some rows, and their lengths."""

    values: NDArray[np.float64]
    """Shape (rows, lexemes); 0 where the row does not hold the lexeme."""
    lengths: NDArray[np.float64]


def pool_of(corpora: Sequence[Corpus]) -> Pool:
    """Rows and document frequencies added up, and the average length over all rows."""
    rows = sum(corpus.rows for corpus in corpora)
    length = sum(corpus.rows * corpus.generation.average_length for corpus in corpora)
    together: dict[str, QueryLexeme] = {}
    for corpus in corpora:
        for one in corpus.lexemes:
            known = together.get(one.lexeme)
            frequency = one.frequency + (known.frequency if known else 0)
            together[one.lexeme] = QueryLexeme(one.lexeme, one.tf, frequency)
    average = length / rows if rows else corpora[0].generation.average_length
    return Pool(positions_of(weigh(together.values(), rows)), average)


def pooled_scores(impacts: Impacts, generation: Generation, pool: Pool) -> list[float]:
    """BM25 of the rows with the pool's weights and average length.

    An impact is `tf (k1 + 1) / (tf + K)` with `K = k1 (1 - b + b length / average)`; solved for tf
    it gives the impact that the row would have in the pool. Columns are those of `pool.weights`.
    """
    weights = np.array(list(pool.weights.values()))
    k1, b = generation.k1, generation.b
    if k1 == 0:
        return list((impacts.values @ weights).tolist())
    relative = impacts.lengths[:, None]
    own = k1 * (1 - b + b * relative / generation.average_length)
    pooled = k1 * (1 - b + b * relative / pool.average_length)
    room = np.maximum(k1 + 1 - impacts.values, 1e-6)
    tf = impacts.values * own / room
    with np.errstate(invalid="ignore"):
        values = np.where(tf > 0, tf * (k1 + 1) / (tf + pooled), 0.0)
    return list((values @ weights).tolist())


def word_space(generation: Generation) -> tuple[str, str]:
    """What generations share whose lexemes are the same words."""
    return (generation.language, generation.analyzer)
