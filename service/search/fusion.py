"""Fusion of ranked legs into one list; pure functions."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from service.models import Candidate, FusionMethod, Weights

Leg = Literal["dense", "lexical"]
DEFAULT_RRF_K = 60
CLASSIC_WEIGHTS = Weights(0.7, 0.3)
UNCOVERED_DENSE, COVERED_DENSE = 0.6, 0.4
"""Weight of the dense leg when no row holds a word of the query, and when one holds them all."""
LOWEST = 0.06
"""Scaled score of a leg's lowest candidate by the automatic rule: barely above an absent one."""
HEIGHTS = 4
"""Root mean square heights above its lowest candidate that a leg's scores are divided by."""


class LexicalEvidence(msgspec.Struct, frozen=True):
    """How far the words of a query can be trusted; each 0..1."""

    coverage: float
    """Of the query's weight (idf x query tf): what the best row of the lexical leg scores."""
    identifiers: float
    """Of the query's weight: what identifiers and their parts hold."""

    @property
    def dense_weight(self) -> float:
        """Weight of the dense leg; none for an identifier that a row holds.

        A row that holds half of the query may well miss the identifier in it: hence the square.
        """
        words = UNCOVERED_DENSE + (COVERED_DENSE - UNCOVERED_DENSE) * self.coverage
        return words * (1 - self.identifiers * self.coverage**2)

    @property
    def reason(self) -> str:
        """The evidence in words."""
        found = f"auto: the best row by words has {self.coverage:.0%} of the query's weight"
        return found + (f", identifiers {self.identifiers:.0%} of it" if self.identifiers else "")


NO_EVIDENCE = LexicalEvidence(0.0, 0.0)


class FusionRule(msgspec.Struct, frozen=True):
    """How to fuse, and why so."""

    method: FusionMethod
    weights: Weights
    rrf_k: int
    reason: str
    evidence: LexicalEvidence | None = None
    """What `auto` chose the weights by."""
    lowest: float | None = None
    """Scaled score of a leg's lowest candidate; None: where its distribution has it."""


class Contribution(msgspec.Struct, frozen=True):
    """What one leg gave to a fused candidate; `rank` counts from 1."""

    rank: int
    score: float
    contribution: float


class Reranked(msgspec.Struct, frozen=True):
    """What a reranker said of a candidate; `rank` counts from 1."""

    rank: int
    score: float


class Fused(msgspec.Struct, frozen=True):
    """A candidate with its fused score and where that came from."""

    candidate: Candidate
    score: float
    legs: Mapping[Leg, Contribution]
    rerank: Reranked | None = None


def fuse(legs: Mapping[Leg, Sequence[Candidate]], rule: FusionRule) -> list[Fused]:
    """One list from ranked legs, best first.

    Ties go to the better single rank, then the smaller id; a candidate absent from a leg gets
    nothing from it.
    """
    fused: dict[int, Fused] = {}
    best: dict[int, int] = {}
    for leg, ranked in legs.items():
        for candidate, part in zip(ranked, _contributions(leg, ranked, rule), strict=True):
            row = candidate.row
            known = fused.get(row)
            if known is None:
                fused[row] = Fused(candidate, part.contribution, {leg: part})
                best[row] = part.rank
            elif leg not in known.legs:  # a duplicate keeps its best rank
                score = known.score + part.contribution
                fused[row] = Fused(candidate, score, {**known.legs, leg: part})
                best[row] = min(best[row], part.rank)
    order = [(-one.score, best[row], one.candidate.chunk_id, row) for row, one in fused.items()]
    order.sort()
    return [fused[row] for *_, row in order]


def single_leg(leg: Leg, candidates: Sequence[Candidate]) -> list[Fused]:
    """One leg alone: its own order and scores."""
    return [
        Fused(one, one.score, {leg: Contribution(rank, one.score, one.score)})
        for rank, one in enumerate(candidates, 1)
    ]


def _contributions(
    leg: Leg, candidates: Sequence[Candidate], rule: FusionRule
) -> list[Contribution]:
    weight = rule.weights.dense if leg == "dense" else rule.weights.lexical
    scores = [candidate.score for candidate in candidates]
    scaled = (
        [1 / (rule.rrf_k + rank) for rank in range(1, len(scores) + 1)]
        if rule.method == "rrf"
        else scale_by_distribution(scores)
        if rule.lowest is None
        else scale_by_height(scores, rule.lowest)
    )
    return [
        Contribution(rank, score, weight * value)
        for rank, (score, value) in enumerate(zip(scores, scaled, strict=True), 1)
    ]


def scale_by_distribution(scores: Sequence[float]) -> list[float]:
    """Scores by their mean +- 3 standard deviations: those become 0 and 1.

    Distribution-based score fusion (Mazzeschi 2023). Nothing goes below 0, but what lies above is
    not cut: a leg that is sure of a few candidates has them there. Equal scores all become 0.5.
    """
    if not scores:
        return []
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum([(score - mean) ** 2 for score in scores]) / len(scores))
    if _all_equal(deviation, mean):
        return [0.5] * len(scores)
    return [max(0.0, (score - mean) / (6 * deviation) + 0.5) for score in scores]


def scale_by_height(scores: Sequence[float], lowest: float) -> list[float]:
    """Heights above the lowest score, `HEIGHTS` root mean squares of them as 1, plus `lowest`.

    Every leg's heights have the same norm. A leg that raises few candidates out of the rest raises
    them high; one whose scores run on evenly, as those of a model that knows nothing of the query
    do, raises none. A candidate that just missed the pool loses little for it. Equal scores all
    become 0.5.
    """
    if not scores:
        return []
    least = min(scores)
    heights = [score - least for score in scores]
    height = math.sqrt(math.fsum([one * one for one in heights]) / len(heights))
    if _all_equal(height, least):
        return [0.5] * len(scores)
    return [one / (HEIGHTS * height) + lowest for one in heights]


def _all_equal(spread: float, level: float) -> bool:
    return spread <= 1e-12 * max(1.0, abs(level))


def choose_rule(
    method: FusionMethod | None,
    weights: Weights | None,
    rrf_k: int | None,
    evidence: LexicalEvidence,
) -> FusionRule:
    """What was asked for, exactly; what nobody set, by what measurement chose (docs/adr/0005).

    The choice is score fusion by height above each leg's lowest candidate, the more to the lexical
    leg the more it found of what the query asks for.
    """
    if method == "rrf" or (method is None and (weights or rrf_k)):
        return FusionRule(
            "rrf", weights or CLASSIC_WEIGHTS, rrf_k or DEFAULT_RRF_K, "weighted rrf as set"
        )
    if weights:
        return FusionRule("dbsf", weights, DEFAULT_RRF_K, "dbsf with the weights as set")
    dense = round(evidence.dense_weight, 4)
    weights = Weights(dense, 1 - dense)
    return FusionRule("dbsf", weights, DEFAULT_RRF_K, evidence.reason, evidence, LOWEST)
