"""The fast path of the lexical leg: packed posting lists, scored in process, then verified."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from service.db.candidates import CandidateQuery
from service.db.pool import Connection, server_of
from service.db.segments import (
    Ids,
    PackedQuery,
    PostingList,
    Segment,
    SegmentContents,
    live_segments,
    packed_candidates,
    posting_lists,
    segment_contents,
)
from service.instruments import CACHE_REQUESTS
from service.models import Candidate, Generation
from service.search.postings import (
    LEVELS,
    Accumulator,
    Postings,
    Scores,
    WeightedList,
    densest,
)

SEGMENT_SECONDS = 2.0
"""A retired segment stays readable for minutes, so a look at the list of them may be this old."""
CACHED_LIST_BYTES = 64_000_000
CACHED_CONTENTS = 64
MARGIN = 16
"""Rows beyond the wanted ones, for what rounding to levels may have put in the wrong place."""
GROWTH = 4
"""What is looked at grows by it while too little of it is there still and passes the filter."""
FILTERED_ROWS = 1_000
"""A filter that leaves too little of so many rows is selective: other ways serve it better."""


class PackedAnswer(msgspec.Struct, frozen=True):
    """Candidates, the best first, and whether rounding can have left out a better one."""

    candidates: list[Candidate]
    exact: bool


class _Opened(msgspec.Struct, frozen=True):
    contents: SegmentContents
    accumulator: Accumulator


class _Listed(msgspec.Struct, frozen=True):
    segments: tuple[Segment, ...]
    expires: float


class PackedIndex:
    """Segments of generations, what they hold, and the lists that queries ask for most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._listed: dict[tuple[str, int], _Listed] = {}
        self._opened: OrderedDict[int, _Opened] = OrderedDict()
        self._lists: OrderedDict[tuple[int, int], Postings] = OrderedDict()
        self._bytes = 0

    def forget(self) -> None:
        """Read everything again."""
        self._listed, self._opened, self._lists, self._bytes = {}, OrderedDict(), OrderedDict(), 0

    async def segments(self, connection: Connection, generation: Generation) -> tuple[Segment, ...]:
        """The segments of a generation; none while it is small."""
        # A replica may not have yet what the primary has: each server says what it has.
        key = (server_of(connection), generation.id)
        listed = self._listed.get(key)
        if listed is None or listed.expires <= self._clock():
            segments = tuple(await live_segments(connection, generation.id))
            listed = _Listed(segments, self._clock() + SEGMENT_SECONDS)
            self._listed[key] = listed
        return listed.segments

    async def lists(
        self, connection: Connection, segments: Sequence[Segment], lexemes: Sequence[int]
    ) -> dict[tuple[int, int], Postings]:
        """The lists of lexemes by segment and lexeme; those that exist."""
        keys = [(segment.id, lexeme) for segment in segments for lexeme in lexemes]
        found = {key: self._lists[key] for key in keys if key in self._lists}
        for key in found:
            self._lists.move_to_end(key)
        missing = {lexeme for segment, lexeme in keys if (segment, lexeme) not in found}
        CACHE_REQUESTS.add(len(found), "postings", "hit")
        if missing:
            CACHE_REQUESTS.add(len(keys) - len(found), "postings", "miss")
            fetched = await posting_lists(connection, [one.id for one in segments], list(missing))
            for segment in segments:
                for lexeme in missing:
                    key = (segment.id, lexeme)
                    found[key] = self._keep(key, fetched.get(key, NO_ROWS), segment.rows)
        return found

    def _keep(self, key: tuple[int, int], one: PostingList, rows: int) -> Postings:
        if key not in self._lists:
            self._lists[key] = densest(one, rows)
            self._bytes += _size(self._lists[key])
        kept = self._lists[key]
        while self._bytes > CACHED_LIST_BYTES:
            self._bytes -= _size(self._lists.popitem(last=False)[1])
        return kept

    async def open(self, connection: Connection, segment: Segment) -> _Opened | None:
        """What a segment's ordinals stand for, and where to add up its scores."""
        opened = self._opened.get(segment.id)
        if opened is None:
            contents = await segment_contents(connection, segment.id)
            if contents is None:
                return None
            opened = _Opened(contents, Accumulator(segment.rows))
            self._opened[segment.id] = opened
            while len(self._opened) > CACHED_CONTENTS:
                self._opened.popitem(last=False)
        self._opened.move_to_end(segment.id)
        return opened


NO_ROWS = PostingList(np.empty(0, np.int32), np.empty(0, np.uint8))


def _size(one: Postings) -> int:
    ordinals = one.ordinals.nbytes if isinstance(one, PostingList) else 0
    return 200 + ordinals + one.levels.nbytes


class PackedWeights(msgspec.Struct, frozen=True):
    """A query as the lists need it."""

    by_position: Mapping[int, float]
    """idf x query tf by the lexeme's position (from 1)."""
    tsquery: str
    """What a row must match to be a candidate."""
    k1: float


class _Best(msgspec.Struct, frozen=True):
    """The rows with the best packed scores."""

    rows: Ids
    scores: Scores
    crowded: frozenset[int]
    """Documents of which rows were left out because they have enough better ones."""
    complete: bool
    """Nothing but rows of crowded documents was left out."""


_Scored: TypeAlias = list[tuple[_Opened, list[WeightedList]]]


async def search_packed(
    connection: Connection,
    index: PackedIndex,
    segments: Sequence[Segment],
    query: CandidateQuery,
    asked: PackedWeights,
) -> PackedAnswer | None:
    """The best rows of a generation by BM25.

    Packed scores only choose the rows; those still there come back with their exact scores,
    merged with the rows not yet packed. None when a segment has just been forgotten, or when the
    filter leaves so few rows that it should be asked first.
    """
    scored = await _scored(connection, index, segments, asked)
    if scored is None:
        return None
    keep = query.limit * (1 if query.filter is None else GROWTH) + MARGIN
    most = None
    if query.per_document is not None and query.filter is None:
        # Who is first in a document is decided by exact scores, among a few more than wanted.
        most = 2 * query.per_document + MARGIN
    error = (asked.k1 + 1) / LEVELS * sum(asked.by_position.values())
    while True:
        best = _best_rows(scored, query, keep, most)
        packed = PackedQuery(
            best.rows.tolist(), segments[-1].upper, asked.tsquery, asked.by_position
        )
        found = await packed_candidates(connection, query, packed)
        candidates = _ranked(found, query)
        last = candidates[-1].score if candidates else 0.0
        worst = float(best.scores[-1]) if len(best.scores) else 0.0
        if not _has_room(best.crowded, found, query):
            # Fresh rows may fill the place of packed ones that died or do not pass the filter,
            # although better packed rows have not been looked at.
            filled = len(candidates) >= query.limit and last >= worst - error
            if best.complete or filled:
                break
            if _is_selective(query, keep, len(candidates)):
                return None
        keep *= GROWTH
        most = most and most * GROWTH
    return PackedAnswer(candidates, exact=best.complete or last >= worst + error)


async def _scored(
    connection: Connection, index: PackedIndex, segments: Sequence[Segment], asked: PackedWeights
) -> _Scored | None:
    weights = asked.by_position
    lists = await index.lists(connection, segments, list(weights))
    level = (asked.k1 + 1) / LEVELS
    scored = []
    for segment in segments:
        opened = await index.open(connection, segment)
        if opened is None:
            return None
        weighted = [
            WeightedList(lists[segment.id, lexeme], weight * level)
            for lexeme, weight in weights.items()
            if lists[segment.id, lexeme].rows
        ]
        scored.append((opened, weighted))
    return scored


def _has_room(crowded: frozenset[int], found: Iterable[Candidate], query: CandidateQuery) -> bool:
    """Whether a document lost so many rows that those left out of it are wanted after all."""
    if not crowded or query.per_document is None:
        return False
    left = Counter(one.document for one in found)
    return any(left[document] < query.per_document for document in crowded)


def _is_selective(query: CandidateQuery, looked: int, found: int) -> bool:
    """Whether so few rows pass the filter that looking at all it takes is too many."""
    return query.filter is not None and found * FILTERED_ROWS < query.limit * looked


def _best_rows(scored: _Scored, query: CandidateQuery, keep: int, most: int | None) -> _Best:
    """The `keep` best rows of all segments, `most` of a document."""
    parts = [_best_of_segment(opened, lists, query, keep, most) for opened, lists in scored]
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part.rows for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    order = np.argsort(-scores, kind="stable")[:keep]
    complete = len(rows) <= keep and all(part.complete for part in parts)
    crowded = frozenset().union(*(part.crowded for part in parts))
    return _Best(rows[order], scores[order], crowded, complete)


def _best_of_segment(
    opened: _Opened,
    lists: Sequence[WeightedList],
    query: CandidateQuery,
    keep: int,
    most: int | None,
) -> _Best:
    contents, depth = opened.contents, keep
    while True:
        ordinals, scores = opened.accumulator.top(lists, depth)
        complete, crowded = len(ordinals) < depth, frozenset[int]()
        if query.scope != "both":
            allowed = contents.summaries[ordinals] == (query.scope == "summaries")
            ordinals, scores = ordinals[allowed], scores[allowed]
        if most is not None:
            documents = contents.documents[ordinals]
            first = _first_of_each(documents, most)
            crowded = frozenset(documents[~first].tolist())
            ordinals, scores = ordinals[first], scores[first]
        if complete or len(ordinals) >= keep:
            break
        depth *= GROWTH
    complete = complete and len(ordinals) <= keep
    return _Best(contents.rows[ordinals[:keep]], scores[:keep], crowded, complete)


def _first_of_each(documents: Ids, most: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of the ranked rows are among the first `most` of their document."""
    order = np.argsort(documents, kind="stable")
    sorted_documents = documents[order]
    starts = np.flatnonzero(np.diff(sorted_documents, prepend=-1))
    lengths = np.diff(np.append(starts, len(documents)))
    nth = np.arange(len(documents)) - np.repeat(starts, lengths)
    first = np.empty(len(documents), np.bool_)
    first[order] = nth < most
    return first


def _ranked(found: Iterable[Candidate], query: CandidateQuery) -> list[Candidate]:
    ordered = sorted(found, key=lambda one: (-one.score, one.chunk_id, one.row))
    if query.per_document is not None:
        documents = np.array([one.document for one in ordered], np.int64)
        first = _first_of_each(documents, query.per_document)
        ordered = [one for one, kept in zip(ordered, first, strict=True) if kept]
    return ordered[: query.limit]
