"""Packs the postings of large generations: when, which rows, and how lists are made."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta

import numpy as np

from service.db.pool import Connection, Database
from service.db.segments import (
    PostingList,
    RowBatch,
    Segment,
    SegmentContents,
    add_segment,
    count_rows,
    forget_segments,
    live_segments,
    one_packer,
    retire_segments,
    rows_to_pack,
    settle_boundary,
)
from service.instruments import INDEXING_STAGE_DURATION
from service.models import Generation
from service.telemetry import log, stage

FRESH_ROWS = 2_000
"""Rows past the newest segment from which on they are packed."""
SEGMENT_ROWS = 250_000
DEAD_SHARE = 0.2
DRIFT = 0.1
RETIRED_AGE = timedelta(minutes=5)
"""Longer than any search: who has begun with a segment may end with it."""
LEVELS = 255


async def pack_if_grown(database: Database, generation: Generation) -> bool:
    """Pack what came since, or all when much of it has died or drifted; whether it did."""
    async with database.write(generation.team_id) as connection:
        segments = await live_segments(connection, generation.id)
        boundary = segments[-1].upper if segments else 0
        alive, fresh = await count_rows(connection, generation.id, boundary)
    if fresh < FRESH_ROWS and not _is_worn(segments, alive, generation):
        return False
    with stage("pack", INDEXING_STAGE_DURATION):
        await _pack(database, generation, worn=_is_worn(segments, alive, generation))
    return True


def segments_to_merge(segments: Sequence[Segment], fresh: int) -> int:
    """How many of the newest segments are packed anew with the fresh rows.

    Segments at most twice as large as what is newer than they are merged, so there are about
    log2(rows) of them and a row is packed about that often in its life.
    """
    merged, rows = 0, fresh
    for segment in reversed(segments):
        if segment.rows > 2 * rows or rows + segment.rows > SEGMENT_ROWS:
            break
        merged, rows = merged + 1, rows + segment.rows
    return merged


def _is_worn(segments: Sequence[Segment], alive: int, generation: Generation) -> bool:
    packed = sum(segment.rows for segment in segments)
    dead = packed - alive
    drifted = any(
        abs(segment.average_length / generation.average_length - 1) > DRIFT for segment in segments
    )
    return drifted or dead > max(FRESH_ROWS, DEAD_SHARE * packed)


async def _pack(database: Database, generation: Generation, *, worn: bool) -> None:
    async with database.write(generation.team_id) as connection:
        upper = await settle_boundary(connection, generation.id)
    async with database.write(generation.team_id) as connection:
        # Another packer may have been faster; only one at a time gets past here.
        if not await one_packer(connection, generation.id):
            return
        segments = await live_segments(connection, generation.id)
        boundary = segments[-1].upper if segments else 0
        _, fresh = await count_rows(connection, generation.id, boundary)
        merged = len(segments) if worn else segments_to_merge(segments, fresh)
        kept = segments[: len(segments) - merged]
        lower = kept[-1].upper if kept else 0
        if lower >= upper:
            return
        rows = await _write_segments(connection, generation, lower, upper)
        await retire_segments(connection, [one.id for one in segments[len(kept) :]])
        await forget_segments(connection, generation.id, RETIRED_AGE)
    log.info("postings packed", generation=generation.id, rows=rows, merged=merged)


async def _write_segments(
    connection: Connection, generation: Generation, lower: int, upper: int
) -> int:
    """Write the rows of a range as segments of a bounded size; how many rows."""
    total, batches, held = 0, [], 0
    async for batch in rows_to_pack(connection, generation.id, lower, upper):
        batches.append(batch)
        held += len(batch.rows)
        if held >= SEGMENT_ROWS:
            end = int(batch.rows[-1]) + 1
            await _write_segment(connection, generation, (lower, end), batches)
            total, batches, held, lower = total + held, [], 0, end
    if lower < upper:
        await _write_segment(connection, generation, (lower, upper), batches)
    return total + held


async def _write_segment(
    connection: Connection,
    generation: Generation,
    bounds: tuple[int, int],
    batches: Sequence[RowBatch],
) -> None:
    contents, lists = await asyncio.to_thread(pack, batches, generation.k1)
    await add_segment(connection, generation, bounds, contents, lists)


def pack(
    batches: Sequence[RowBatch], k1: float
) -> tuple[SegmentContents, Iterator[tuple[int, PostingList]]]:
    """The contents and posting lists of a segment from its rows, in their order.

    An impact, at most k1 + 1, becomes one of 255 levels.
    """
    if not batches:
        empty = np.empty(0, np.int64)
        return SegmentContents(empty, empty, np.empty(0, np.bool_)), iter(())
    contents = SegmentContents(
        np.concatenate([batch.rows for batch in batches]),
        np.concatenate([batch.documents for batch in batches]),
        np.concatenate([batch.summaries for batch in batches]),
    )
    counts = np.concatenate([batch.counts for batch in batches])
    lexemes = np.concatenate([batch.lexemes for batch in batches])
    impacts = np.concatenate([batch.impacts for batch in batches])
    ordinals = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    levels = np.clip(np.rint(impacts * (LEVELS / (k1 + 1))), 1, LEVELS).astype(np.uint8)
    order = np.argsort(lexemes, kind="stable")
    return contents, _lists(lexemes[order], ordinals[order], levels[order])


def _lists(
    lexemes: np.ndarray[tuple[int], np.dtype[np.int32]],
    ordinals: np.ndarray[tuple[int], np.dtype[np.int32]],
    levels: np.ndarray[tuple[int], np.dtype[np.uint8]],
) -> Iterator[tuple[int, PostingList]]:
    starts = np.flatnonzero(np.diff(lexemes, prepend=-1))
    ends = np.append(starts[1:], len(lexemes))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield int(lexemes[start]), PostingList(ordinals[start:end], levels[start:end])
