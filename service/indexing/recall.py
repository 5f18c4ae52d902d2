"""Measures an approximate index against exact search, on vectors that it holds."""

import math
import statistics
from collections.abc import Sequence

from service.db.candidates import CandidateQuery
from service.db.dense import EF_SEARCH, Nearest, approximate_candidates, exact_candidates
from service.db.pool import Database
from service.db.vector_index import IndexMeasure, count_vectors, sample_rows
from service.db.vectors import stored_vectors
from service.models import Candidate, Generation, Quantization, Vector

RECALL_AT = 10
LEAST_QUERIES, MOST_QUERIES = 20, 100
MEASURED_COMPONENTS = 50_000_000_000
"""Vector components that all exact searches of a measurement may read: a minute or so."""
SAMPLED_ROWS = 200
"""Rows whose share of matches tells how selective a filter is."""
UNMEASURED_EF_SEARCH = 100
EQUAL_SCORES = 1e-6


class _Probe:
    """A stored vector and the exact scores of its nearest neighbours, itself left out."""

    def __init__(self, row: int, vector: Vector, exact: Sequence[Candidate]) -> None:
        self.row = row
        self.vector = vector
        self._exact = _without(row, exact)

    def recall(self, found: Sequence[Candidate]) -> float:
        """Share of the nearest that was found; equal scores stand for one another."""
        if not self._exact:
            return 1.0
        least = self._exact[-1].score - EQUAL_SCORES
        good = [one for one in _without(self.row, found) if one.score >= least]
        return len(good) / len(self._exact)


def _without(row: int, candidates: Sequence[Candidate]) -> list[Candidate]:
    return [one for one in candidates if one.row != row][:RECALL_AT]


async def measure_index(
    database: Database, generation: Generation, quantization: Quantization, target: float
) -> IndexMeasure:
    """The smallest `ef_search` that reaches the target recall@10, and what else searches need."""
    rows = await count_vectors(database, generation.id)
    sample = await sample_rows(database, generation.id, rows=rows, wanted=SAMPLED_ROWS)
    probes = await _probes(database, generation, sample[: _queries(rows, generation)])
    if not probes:
        return IndexMeasure(rows, UNMEASURED_EF_SEARCH, None, None, sample)
    recall = 0.0
    for ef_search in EF_SEARCH:
        recalls = await _recalls(database, generation, probes, quantization, ef_search)
        recall = round(statistics.fmean(recalls), 4)
        last = ef_search == EF_SEARCH[-1]
        if recall - (0.0 if last else _standard_error(recalls)) >= target:
            return IndexMeasure(rows, ef_search, recall, None, sample)
    note = f"recall@10 {recall:.3f} at ef_search {EF_SEARCH[-1]} is below the target {target:g}"
    return IndexMeasure(rows, None, recall, note, sample)


def _queries(rows: int, generation: Generation) -> int:
    allowed = MEASURED_COMPONENTS // max(1, rows * (generation.dim or 1))
    return min(max(allowed, LEAST_QUERIES), MOST_QUERIES)


async def _probes(
    database: Database, generation: Generation, sample: Sequence[int]
) -> list[_Probe]:
    probes = []
    async with database.read(generation.team_id) as connection:
        stored = await stored_vectors(connection, generation.id, sample)
        for row, vector in stored.items():
            exact = await exact_candidates(connection, _query(generation), vector)
            probes.append(_Probe(row, vector, exact))
    return probes


async def _recalls(
    database: Database,
    generation: Generation,
    probes: Sequence[_Probe],
    quantization: Quantization,
    ef_search: int,
) -> list[float]:
    assert generation.dim is not None
    query = _query(generation)
    rows = query.limit if quantization == "none" else ef_search
    nearest = Nearest(generation.dim, quantization, rows)
    async with database.read(generation.team_id, ef_search=ef_search) as connection:
        return [
            probe.recall(await approximate_candidates(connection, query, probe.vector, nearest))
            for probe in probes
        ]


def _query(generation: Generation) -> CandidateQuery:
    return CandidateQuery(generation.id, "both", None, RECALL_AT + 1, None)


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
