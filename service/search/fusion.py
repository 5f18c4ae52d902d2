"""Fusion of ranked legs into one list; pure functions."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from service.models import Candidate, FusionMethod, Weights

Leg = Literal["dense", "lexical"]
DEFAULT_RRF_K = 60
CLASSIC_WEIGHTS = Weights(0.7, 0.3)


class FusionRule(msgspec.Struct, frozen=True):
    """How to fuse, and why so."""

    method: FusionMethod
    weights: Weights
    rrf_k: int
    reason: str


class Contribution(msgspec.Struct, frozen=True):
    """What one leg gave to a fused candidate; `rank` counts from 1."""

    rank: int
    score: float
    contribution: float


class Fused(msgspec.Struct, frozen=True):
    """A candidate with its fused score and where that came from."""

    candidate: Candidate
    score: float
    legs: Mapping[Leg, Contribution]

    @property
    def best_rank(self) -> int:
        """Its best rank in a single leg."""
        return min(part.rank for part in self.legs.values())


def fuse(legs: Mapping[Leg, Sequence[Candidate]], rule: FusionRule) -> list[Fused]:
    """One list from ranked legs, best first.

    Ties go to the better single rank, then the smaller id; a candidate absent from a leg gets
    nothing from it.
    """
    gathered: dict[int, tuple[Candidate, dict[Leg, Contribution]]] = {}
    for leg, candidates in legs.items():
        for part, candidate in _contributions(leg, candidates, rule):
            _, parts = gathered.setdefault(candidate.row, (candidate, {}))
            parts.setdefault(leg, part)  # a duplicate keeps its best rank
    fused = [
        Fused(candidate, math.fsum(part.contribution for part in parts.values()), parts)
        for candidate, parts in gathered.values()
    ]
    return sorted(fused, key=_order)


def _order(fused: Fused) -> tuple[float, int, str, int]:
    return (-fused.score, fused.best_rank, fused.candidate.chunk_id, fused.candidate.row)


def single_leg(leg: Leg, candidates: Sequence[Candidate]) -> list[Fused]:
    """One leg alone: its own order and scores."""
    return [
        Fused(one, one.score, {leg: Contribution(rank, one.score, one.score)})
        for rank, one in enumerate(candidates, 1)
    ]


def _contributions(
    leg: Leg, candidates: Sequence[Candidate], rule: FusionRule
) -> list[tuple[Contribution, Candidate]]:
    weight = rule.weights.dense if leg == "dense" else rule.weights.lexical
    scaled = (
        [1 / (rule.rrf_k + rank) for rank in range(1, len(candidates) + 1)]
        if rule.method == "rrf"
        else scale_by_distribution([candidate.score for candidate in candidates])
    )
    return [
        (Contribution(rank, candidate.score, weight * value), candidate)
        for rank, (candidate, value) in enumerate(zip(candidates, scaled, strict=True), 1)
    ]


def scale_by_distribution(scores: Sequence[float]) -> list[float]:
    """Scores to 0..1 by their mean +- 3 standard deviations, clipped.

    Distribution-based score fusion (Mazzeschi 2023). Equal scores all become 0.5.
    """
    if not scores:
        return []
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    if deviation <= 1e-12 * max(1.0, abs(mean)):
        return [0.5] * len(scores)
    return [min(1.0, max(0.0, (score - mean) / (6 * deviation) + 0.5)) for score in scores]


def choose_rule(
    method: FusionMethod | None,
    weights: Weights | None,
    rrf_k: int | None,
    *,
    identifier_query: bool,
) -> FusionRule:
    """What was asked for, exactly; what nobody set, by what measurement chose (docs/adr/0005)."""
    if method == "rrf" or (method is None and (weights or rrf_k)):
        return FusionRule(
            "rrf", weights or CLASSIC_WEIGHTS, rrf_k or DEFAULT_RRF_K, "weighted rrf as set"
        )
    if weights:
        return FusionRule("dbsf", weights, DEFAULT_RRF_K, "dbsf with the weights as set")
    if identifier_query:
        return FusionRule(
            "dbsf", Weights(0.2, 0.8), DEFAULT_RRF_K, "auto: the query looks like an identifier"
        )
    return FusionRule("dbsf", Weights(0.5, 0.5), DEFAULT_RRF_K, "auto: a natural-language query")
