"""Scores packed posting lists in process; pure numpy over the lists of one segment."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.db.segments import Ordinals, PostingList

Scores = NDArray[np.float32]

LEVELS = 255
PROBED_LENGTH = 20_000
"""A list at least this long is looked up, not added, once it cannot change who is on top."""
SPARSE_SHARE = 16
"""Lists with fewer entries than this part of the rows are joined; else all scores are read."""


class WeightedList(msgspec.Struct, frozen=True):
    """A posting list and what one level of impact in it is worth."""

    postings: PostingList
    weight: float

    @property
    def bound(self) -> float:
        """The most that it can add to a score."""
        return self.weight * LEVELS


class Accumulator:
    """Scores of all rows of a segment in one array, all 0 between queries."""

    def __init__(self, rows: int) -> None:
        self._scores: Scores = np.zeros(rows, np.float32)

    def top(self, lists: Sequence[WeightedList], keep: int | None) -> tuple[Ordinals, Scores]:
        """The `keep` best rows (None: every row of the lists), best first, and their scores.

        Lists are added by falling weight. When those left could lift no other row to the top
        (MaxScore, Turtle & Flood 1995), they are only looked up for the rows that may get there.
        """
        ordered = sorted(lists, key=lambda one: -one.weight)
        left = sum(one.bound for one in ordered)
        for place, one in enumerate(ordered):
            if keep is not None and place and len(one.postings.ordinals) >= PROBED_LENGTH:
                rows = self._contenders(keep, left)
                if rows is not None:
                    self._look_up(rows, ordered[place:])
                    return self._take(rows, keep)
            self._scores[one.postings.ordinals] += one.postings.levels * np.float32(one.weight)
            left -= one.bound
        return self._take(self._touched(ordered), keep)

    def _contenders(self, keep: int, left: float) -> Ordinals | None:
        """The rows that may end on top, once `left` more could lift no unseen row there."""
        above = self._scores[self._scores > left]
        if len(above) < keep:
            return None
        last = np.partition(above, len(above) - keep)[len(above) - keep]
        return np.flatnonzero(self._scores >= last - left).astype(np.int32)

    def _touched(self, lists: Sequence[WeightedList]) -> Ordinals:
        entries = sum(len(one.postings.ordinals) for one in lists)
        if not entries:
            return np.empty(0, np.int32)
        if entries > len(self._scores) // SPARSE_SHARE:
            return np.flatnonzero(self._scores).astype(np.int32)
        return np.unique(np.concatenate([one.postings.ordinals for one in lists]))

    def _look_up(self, rows: Ordinals, lists: Sequence[WeightedList]) -> None:
        for one in lists:
            ordinals = one.postings.ordinals
            places = np.searchsorted(ordinals, rows)
            places[places == len(ordinals)] = 0
            held = ordinals[places] == rows
            gain = one.postings.levels[places[held]] * np.float32(one.weight)
            self._scores[rows[held]] += gain

    def _take(self, rows: Ordinals, keep: int | None) -> tuple[Ordinals, Scores]:
        scores = self._scores[rows]
        self._scores.fill(0)
        if keep is not None and keep < len(rows):
            best = np.argpartition(scores, len(scores) - keep)[-keep:]
            rows, scores = rows[best], scores[best]
        order = np.lexsort((rows, -scores))
        return rows[order], scores[order]
