"""Maximal marginal relevance: what it picks, and that it is the formula of its paper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.models import Candidate, Vector
from service.search.diversity import MAX_DIVERSIFIED, diversify, leaders
from service.search.fusion import single_leg

scores = st.lists(
    st.floats(0, 100, allow_nan=False).map(lambda score: round(score, 3)), max_size=12
).map(lambda values: sorted(values, reverse=True))
shares = st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0])
counts = st.integers(1, 14)


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[float], list[Vector | None]]:
    relevance = draw(scores)
    coordinate = st.integers(-3, 3)
    vector = st.tuples(coordinate, coordinate, coordinate).filter(any)
    drawn = st.lists(st.none() | vector, min_size=len(relevance), max_size=len(relevance))
    vectors: list[Vector | None] = [
        None if one is None else np.array(one, np.float32) for one in draw(drawn)
    ]
    return relevance, vectors


def cosine(one: Vector, other: Vector) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def marginals(
    relevance: list[float], vectors: list[Vector | None], picked: list[int], lambda_: float
) -> dict[int, float]:
    """The formula, candidate by candidate."""
    low, high = min(relevance), max(relevance)
    left = [place for place in range(len(relevance)) if place not in picked]
    seen = [one for place in picked if (one := vectors[place]) is not None]
    similar = {
        place: max(cosine(one, other) for other in seen)
        for place in left
        if (one := vectors[place]) is not None and seen
    }
    neutral = sum(similar.values()) / len(similar) if similar else 0.0
    return {
        place: lambda_ * ((relevance[place] - low) / (high - low) if high > low else 0)
        - (1 - lambda_) * similar.get(place, neutral)
        for place in left
    }


@given(pool=pools(), k=counts, lambda_=shares)
def test_each_pick_has_the_largest_marginal_relevance(
    pool: tuple[list[float], list[Vector | None]], k: int, lambda_: float
) -> None:
    picked = diversify(*pool, k, lambda_)
    assert len(picked) == len(set(picked)) == min(k, len(pool[0]))
    for turn, place in enumerate(picked):
        marginal = marginals(*pool, picked[:turn], lambda_)
        assert marginal[place] == pytest.approx(max(marginal.values()), abs=1e-5)


@given(pool=pools(), k=counts)
def test_relevance_alone_keeps_the_order(
    pool: tuple[list[float], list[Vector | None]], k: int
) -> None:
    assert diversify(*pool, k, 1.0) == list(range(min(k, len(pool[0]))))


@given(pool=pools(), lambda_=shares, k=st.integers(1, 11))
def test_more_hits_begin_with_the_same_ones(
    pool: tuple[list[float], list[Vector | None]], lambda_: float, k: int
) -> None:
    assert diversify(*pool, k + 1, lambda_)[:k] == diversify(*pool, k, lambda_)


@given(relevance=scores, k=counts, lambda_=shares)
def test_without_any_vector_the_order_stays(relevance: list[float], k: int, lambda_: float) -> None:
    vectors: list[Vector | None] = [None] * len(relevance)
    assert diversify(relevance, vectors, k, lambda_) == list(range(min(k, len(relevance))))


def test_a_repetition_waits_behind_what_is_new() -> None:
    same, other = np.array([1, 0], np.float32), np.array([0, 1], np.float32)
    vectors: list[Vector | None] = [same, 2 * same, same, other]
    assert diversify([1.0, 0.9, 0.8, 0.5], vectors, 3, 0.5) == [0, 3, 1]
    assert diversify([1.0, 0.9, 0.8, 0.5], vectors, 3, 0.95) == [0, 1, 2]


def test_documents_are_led_by_their_best_chunk() -> None:
    ranked = single_leg(
        "dense", [Candidate(row, row // 3, "chunk", f"c{row}", 0, -row) for row in range(9)]
    )
    assert [one.candidate.row for one in leaders(ranked, grouped=True)] == [0, 3, 6]
    assert leaders(ranked, grouped=False) == ranked
    many = single_leg(
        "dense", [Candidate(row, row, "chunk", f"c{row}", 0, 0.0) for row in range(1500)]
    )
    assert leaders(many, grouped=False) == many[:MAX_DIVERSIFIED]
