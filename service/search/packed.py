"""The fast path of the lexical leg: packed posting lists, scored in process, then verified."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from service.db.candidates import CandidateQuery
from service.db.pool import Connection
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
from service.models import Candidate, Generation
from service.search.postings import LEVELS, Accumulator, Scores, WeightedList

SEGMENT_SECONDS = 2.0
"""A retired segment stays readable for minutes, so a look at the list of them may be this old."""
CACHED_LIST_BYTES = 64_000_000
CACHED_CONTENTS = 64
MARGIN = 16
"""Rows beyond the wanted ones, for what rounding to levels may have put in the wrong place."""


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
        self._listed: dict[int, _Listed] = {}
        self._opened: OrderedDict[int, _Opened] = OrderedDict()
        self._lists: OrderedDict[tuple[int, int], PostingList] = OrderedDict()
        self._bytes = 0

    async def segments(self, connection: Connection, generation: Generation) -> tuple[Segment, ...]:
        """The segments of a generation; none while it is small."""
        listed = self._listed.get(generation.id)
        if listed is None or listed.expires <= self._clock():
            segments = tuple(await live_segments(connection, generation.id))
            listed = _Listed(segments, self._clock() + SEGMENT_SECONDS)
            self._listed[generation.id] = listed
        return listed.segments

    async def lists(
        self, connection: Connection, segments: Sequence[Segment], lexemes: Sequence[int]
    ) -> dict[tuple[int, int], PostingList]:
        """The lists of lexemes by segment and lexeme; those that exist."""
        keys = [(segment.id, lexeme) for segment in segments for lexeme in lexemes]
        found = {key: self._lists[key] for key in keys if key in self._lists}
        for key in found:
            self._lists.move_to_end(key)
        missing = {lexeme for segment, lexeme in keys if (segment, lexeme) not in found}
        if missing:
            fetched = await posting_lists(connection, [one.id for one in segments], list(missing))
            absent = {key: NO_ROWS for key in keys if key[1] in missing and key not in fetched}
            for key, one in (fetched | absent).items():
                self._keep(key, one)
                found[key] = one
        return found

    def _keep(self, key: tuple[int, int], one: PostingList) -> None:
        if key not in self._lists:
            self._lists[key] = one
            self._bytes += _size(one)
        while self._bytes > CACHED_LIST_BYTES:
            self._bytes -= _size(self._lists.popitem(last=False)[1])

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


def _size(one: PostingList) -> int:
    return 200 + one.ordinals.nbytes + one.levels.nbytes


class PackedWeights(msgspec.Struct, frozen=True):
    """A query as the lists need it."""

    by_position: Mapping[int, float]
    """idf x query tf by the lexeme's position (from 1)."""
    tsquery: str
    """What a row must match to be a candidate."""
    k1: float


async def search_packed(
    connection: Connection,
    index: PackedIndex,
    segments: Sequence[Segment],
    query: CandidateQuery,
    asked: PackedWeights,
) -> PackedAnswer | None:
    """The best rows of a generation by BM25; None when a segment has just been forgotten.

    Packed scores only choose the rows; those still there come back with their exact scores,
    merged with the rows not yet packed.
    """
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
            if len(lists[segment.id, lexeme].ordinals)
        ]
        scored.append((opened, weighted))
    error = level * sum(weights.values())
    keep = query.limit + MARGIN
    while True:
        rows, worst, complete = _best_rows(scored, query, keep)
        packed = PackedQuery(rows.tolist(), segments[-1].upper, asked.tsquery, weights)
        found = await packed_candidates(connection, query, packed)
        candidates = _ranked(found, query)
        if complete or len(candidates) >= query.limit:
            break
        keep *= 4
    last = candidates[-1].score if candidates else 0.0
    return PackedAnswer(candidates, exact=complete or last >= worst + error)


def _best_rows(
    scored: Iterable[tuple[_Opened, Sequence[WeightedList]]], query: CandidateQuery, keep: int
) -> tuple[Ids, float, bool]:
    """The rows with the best packed scores, the least of these, and whether they are all."""
    rows, scores, complete = [], [], True
    for opened, lists in scored:
        ordinals, values, all_of_them = _best_of_segment(opened, lists, query, keep)
        rows.append(opened.contents.rows[ordinals])
        scores.append(values)
        complete = complete and all_of_them
    together, values = np.concatenate(rows), np.concatenate(scores)
    order = np.argsort(-values, kind="stable")[:keep]
    complete = complete and len(together) <= keep
    worst = float(values[order[-1]]) if len(order) else 0.0
    return together[order], worst, complete


def _best_of_segment(
    opened: _Opened, lists: Sequence[WeightedList], query: CandidateQuery, keep: int
) -> tuple[Ids, Scores, bool]:
    capped = query.per_document is not None
    for wanted in (None,) if capped else (keep, None):
        ordinals, scores = opened.accumulator.top(lists, wanted)
        complete = wanted is None or len(ordinals) < wanted
        allowed = _in_scope(opened.contents, ordinals, query)
        ordinals, scores = ordinals[allowed], scores[allowed]
        if complete or len(ordinals) >= keep or bool(allowed.all()):
            break
    if query.per_document is not None:
        # Rounded scores say nearly who is first in a document; the exact ones decide later.
        most = 2 * query.per_document + MARGIN
        first = _first_of_each(opened.contents.documents[ordinals], most)
        ordinals, scores = ordinals[first], scores[first]
    complete = complete and len(ordinals) <= keep
    return ordinals[:keep].astype(np.int64), scores[:keep], complete


def _in_scope(
    contents: SegmentContents,
    ordinals: np.ndarray[tuple[int], np.dtype[np.int32]],
    query: CandidateQuery,
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if query.scope == "both":
        return np.ones(len(ordinals), np.bool_)
    summary = contents.summaries[ordinals]
    return summary if query.scope == "summaries" else ~summary


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
