"""Diversity of an answer: relevant hits that do not repeat each other; pure."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from service.models import Vector
from service.search.fusion import Fused
from service.search.merging import Space

MAX_DIVERSIFIED = 1000
"""Candidates that are chosen from, the best of the fused list; as many as `k` may be."""


def diversify(
    relevance: Sequence[float], vectors: Sequence[Vector | None], k: int, lambda_: float
) -> list[int]:
    """The places of k candidates by maximal marginal relevance, in the order they are picked.

    Carbonell & Goldstein 1998: each pick has the largest
    `lambda * relevance - (1 - lambda) * (largest cosine to what is picked already)`. Relevance,
    which must fall, is scaled to 0..1 over the candidates. A candidate without a vector counts as
    similar as the mean of the others that are left. Ties go to the earlier one.
    """
    scaled = _scaled(relevance)
    directions, known = _directions(vectors)
    redundancy = np.full(len(scaled), -np.inf, np.float32)
    left = np.ones(len(scaled), np.bool_)
    picked: list[int] = []
    while len(picked) < min(k, len(scaled)):
        marginal = lambda_ * scaled
        if np.isfinite(redundancy).any():
            marginal = marginal - (1 - lambda_) * _completed(redundancy, known & left)
        place = int(np.argmax(np.where(left, marginal, -np.inf)))
        picked.append(place)
        left[place] = False
        if known[place]:
            np.maximum(redundancy, directions @ directions[place], out=redundancy, where=known)
    return picked


def leaders(fused: Sequence[Fused], *, grouped: bool) -> list[Fused]:
    """What is chosen from: the candidates, or the best one of each document."""
    if not grouped:
        return list(fused[:MAX_DIVERSIFIED])
    first: dict[int, Fused] = {}
    for one in fused:
        first.setdefault(one.candidate.document, one)
    return list(first.values())[:MAX_DIVERSIFIED]


def side_by_side(parts: Sequence[tuple[Space, Mapping[int, Vector]]]) -> dict[int, Vector]:
    """Vectors by row; those of different spaces have no direction in common, so no similarity."""
    sizes: dict[Space, int] = {}
    for space, vectors in parts:
        sizes.setdefault(space, max((len(one) for one in vectors.values()), default=0))
    if len(sizes) == 1:
        return {row: vector for _, vectors in parts for row, vector in vectors.items()}
    together: dict[int, Vector] = {}
    begins: dict[Space, int] = {}
    placed = 0
    for space, size in sizes.items():
        begins[space], placed = placed, placed + size
    for space, vectors in parts:
        for row, vector in vectors.items():
            padded = np.zeros(placed, np.float32)
            padded[begins[space] : begins[space] + len(vector)] = vector
            together[row] = padded
    return together


def _scaled(relevance: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray(relevance, np.float64)
    spread = np.ptp(values) if len(values) else 0.0
    return (values - values.min()) / spread if spread > 0 else np.zeros(len(values))


def _directions(
    vectors: Sequence[Vector | None],
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Vectors of length 1, zeros where there is none, and where there is one."""
    known = np.array([vector is not None for vector in vectors], np.bool_)
    dim = max((len(vector) for vector in vectors if vector is not None), default=0)
    matrix = np.zeros((len(vectors), dim), np.float32)
    for place, vector in enumerate(vectors):
        if vector is not None:
            matrix[place] = vector / np.linalg.norm(vector)
    return matrix, known


def _completed(redundancy: NDArray[np.float32], known: NDArray[np.bool_]) -> NDArray[np.float32]:
    neutral = redundancy[known].mean() if known.any() else np.float32(0)
    return np.where(known, redundancy, neutral)
