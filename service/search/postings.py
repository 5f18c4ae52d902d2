"""Scores packed posting lists in process; pure numpy over the lists of one segment."""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.db.segments import Levels, Ordinals, PostingList

Scores = NDArray[np.float32]

LEVELS = 255
DENSE_SHARE = 8
"""A list with more entries than this part of the rows is kept as one level a row."""
SPARSE_SHARE = 64
"""Lists with fewer entries than this part of the rows are joined; else all scores are read."""
BLOCK = 64
"""Rows of which only the best one counts when the least score on top is looked for."""


class DenseList(msgspec.Struct, frozen=True):
    """The impact of one lexeme in every row of a segment, in levels; 0 where it is not."""

    levels: Levels
    rows: int
    """How many rows hold it."""


Postings: TypeAlias = PostingList | DenseList


class WeightedList(msgspec.Struct, frozen=True):
    """A posting list and what one level of impact in it is worth."""

    postings: Postings
    weight: float

    @property
    def bound(self) -> float:
        """The most that it can add to a score."""
        return self.weight * LEVELS


def densest(one: PostingList, rows: int) -> Postings:
    """The form in which a list of a segment with so many rows is added fastest."""
    if len(one.ordinals) * DENSE_SHARE <= rows:
        return one
    levels = np.zeros(rows, np.uint8)
    levels[one.ordinals] = one.levels
    return DenseList(levels, len(one.ordinals))


class Accumulator:
    """Scores of all rows of a segment in one array, all 0 between queries."""

    def __init__(self, rows: int) -> None:
        self._scores: Scores = np.zeros(rows, np.float32)
        self._gains: Scores = np.empty(rows, np.float32)

    def top(self, lists: Sequence[WeightedList], keep: int | None) -> tuple[Ordinals, Scores]:
        """The `keep` best rows (None: every row of the lists), best first, and their scores.

        When the common lexemes could lift no row without a rare one to the top (MaxScore, Turtle
        & Flood 1995), they are only looked up for the rows that may get there.
        """
        dense: list[tuple[Levels, np.float32]] = []
        sparse: list[Ordinals] = []
        for one in lists:
            postings, weight = one.postings, np.float32(one.weight)
            if isinstance(postings, DenseList):
                dense.append((postings.levels, weight))
            else:
                self._scores[postings.ordinals] += postings.levels * weight
                sparse.append(postings.ordinals)
        if not dense and sum(map(len, sparse)) * SPARSE_SHARE <= len(self._scores):
            return self._take(_joined(sparse), keep)
        left = sum(one.bound for one in lists if isinstance(one.postings, DenseList))
        rows = self._contenders(keep, left) if dense and sparse and keep else None
        if rows is not None:
            for levels, weight in dense:
                self._scores[rows] += levels[rows] * weight
            return self._take(rows, keep)
        for levels, weight in dense:
            np.multiply(levels, weight, out=self._gains)
            self._scores += self._gains
        return self._take(self._at_least(self._least_on_top(keep)), keep)

    def _contenders(self, keep: int, left: float) -> Ordinals | None:
        """The rows that may end on top, once `left` more could lift no unseen row there."""
        least = self._least_on_top(keep)
        if least <= left:
            return None
        rows = self._at_least(least - left)
        return rows if len(rows) * DENSE_SHARE <= len(self._scores) else None

    def _least_on_top(self, keep: int | None) -> float:
        """A score that `keep` rows reach: that many blocks have one row with it at least."""
        blocks = len(self._scores) // BLOCK
        if keep is None or blocks < keep:
            return 0.0
        best = self._scores[: blocks * BLOCK].reshape(BLOCK, blocks).max(axis=0)
        return float(np.partition(best, blocks - keep)[blocks - keep])

    def _at_least(self, score: float) -> Ordinals:
        held = self._scores >= np.float32(score) if score > 0 else self._scores > 0
        return np.flatnonzero(held).astype(np.int32)

    def _take(self, rows: Ordinals, keep: int | None) -> tuple[Ordinals, Scores]:
        scores = self._scores[rows]
        self._scores.fill(0)
        if keep is not None and keep < len(rows):
            best = _first_best(scores, keep)
            rows, scores = rows[best], scores[best]
        order = np.lexsort((rows, -scores))
        return rows[order], scores[order]


def _joined(ordinals: Sequence[Ordinals]) -> Ordinals:
    return np.unique(np.concatenate(ordinals)) if ordinals else np.empty(0, np.int32)


def _first_best(scores: Scores, keep: int) -> NDArray[np.intp]:
    """Places of the `keep` best scores, of equal ones the first."""
    least = np.partition(scores, len(scores) - keep)[len(scores) - keep]
    above = np.flatnonzero(scores > least)
    return np.append(above, np.flatnonzero(scores == least)[: keep - len(above)])
