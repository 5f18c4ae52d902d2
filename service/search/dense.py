"""The dense leg: whether to compare every vector or to ask the index, and how widely."""

import time
from typing import Literal

import msgspec

from service.db.candidates import CandidateQuery
from service.db.dense import (
    EF_SEARCH,
    EXACT_COMPONENTS,
    Nearest,
    approximate_candidates,
    exact_candidates,
    sampled_share,
)
from service.db.pool import Database
from service.models import Candidate, Generation, Vector, VectorIndex
from service.search.request import SearchPlan

CAPPED_ROWS = 4
"""Rows to look at for each wanted one when a document may contribute only some."""
WIDER = 8
SELECTIVE_FACTOR = 4
SHARE_SECONDS = 60.0
MAX_SHARES = 10_000


class DenseAnswer(msgspec.Struct, frozen=True):
    """The ranked leg and how it was found."""

    candidates: list[Candidate]
    method: Literal["exact", "hnsw"]
    ef_search: int | None = None


class Width(msgspec.Struct, frozen=True):
    """How much of the index to look at."""

    ef_search: int
    rows: int


class FilterShares:
    """Which share of a generation's rows a filter lets through, remembered for a minute."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[float, float]] = {}

    async def of(self, database: Database, plan: SearchPlan, query: CandidateQuery) -> float:
        """The share as a sample shows it; 0 when nobody knows."""
        key = msgspec.json.encode((query.generation_id, query.scope, plan.request.filter))
        share, until = self._known.get(key, (0.0, 0.0))
        if until > time.monotonic():
            return share
        async with database.read(plan.collection.team_id) as connection:
            share = await sampled_share(connection, query) or 0.0
        if len(self._known) >= MAX_SHARES:
            self._known.clear()
        self._known[key] = share, time.monotonic() + SHARE_SECONDS
        return share


async def dense_leg(
    database: Database,
    shares: FilterShares,
    plan: SearchPlan,
    query: CandidateQuery,
    vector: Vector,
) -> DenseAnswer:
    """Rank the rows of the plan's generation by cosine similarity to `vector`.

    An approximate answer has as many rows as an exact one would have, or the exact one is given.
    """
    generation = plan.collection.generation
    index = generation.vector_index
    ef_search = plan.request.ef_search or (index.ef_search if index else None)
    if index is None or ef_search is None:
        return await _exact(database, generation, query, vector)
    share = 1.0
    if query.filter is not None or query.scope == "summaries":
        share = await shares.of(database, plan, query)
        if compares_all(index, query, share, ef_search, len(vector)):
            return await _exact(database, generation, query, vector)
    for width in widths(index, query, share, ef_search):
        nearest = Nearest(len(vector), index.quantization, width.rows)
        async with database.read(generation.team_id, ef_search=width.ef_search) as connection:
            candidates = await approximate_candidates(connection, query, vector, nearest)
        if len(candidates) >= query.limit:
            return DenseAnswer(candidates, "hnsw", width.ef_search)
    return await _exact(database, generation, query, vector)


def compares_all(
    index: VectorIndex, query: CandidateQuery, share: float, ef_search: int, dim: int
) -> bool:
    """Whether a filter lets so few rows through that comparing all of them is best.

    Where the index cannot keep enough candidates to find the matching ones among them, more work
    is worth it: the rows it finds later are not the nearest ones.
    """
    beyond = max(query.limit, ef_search) > share * EF_SEARCH[-1]
    work = EXACT_COMPONENTS * (SELECTIVE_FACTOR if beyond else 1)
    return share * index.rows * dim <= work


def widths(index: VectorIndex, query: CandidateQuery, share: float, ef_search: int) -> list[Width]:
    """What to try before every vector is compared.

    A filter leaves `share` of what the index finds, so it has to find more. Signs alone rank
    roughly, so all that the index kept is ranked anew.
    """
    rows = query.limit
    if query.per_document is not None:
        rows *= CAPPED_ROWS
    if index.quantization == "binary":
        rows = max(rows, ef_search)
    tried = [rows] if query.per_document is None else [rows, WIDER * rows]
    return [Width(_step(max(rows, ef_search) / share), rows) for rows in tried]


def _step(ef_search: float) -> int:
    """One of few values, so that sessions seldom have to change theirs."""
    return next((step for step in EF_SEARCH if step >= ef_search), EF_SEARCH[-1])


async def _exact(
    database: Database, generation: Generation, query: CandidateQuery, vector: Vector
) -> DenseAnswer:
    async with database.read(generation.team_id) as connection:
        return DenseAnswer(await exact_candidates(connection, query, vector), "exact")
