"""Fusion: the formula, its ties, and what holds for any two legs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.models import Candidate, Weights
from service.search.fusion import (
    NO_EVIDENCE,
    FusionRule,
    LexicalEvidence,
    choose_rule,
    fuse,
    scale_by_distribution,
    scale_by_height,
    single_leg,
)

IDENTIFIER = LexicalEvidence(coverage=1, identifiers=1)


def candidate(row: int, score: float = 1.0, chunk_id: str | None = None) -> Candidate:
    return Candidate(row, row, "chunk", chunk_id or f"c{row:04d}", 0, score)


def rrf(dense: float = 0.7, lexical: float = 0.3, rrf_k: int = 60) -> FusionRule:
    return FusionRule("rrf", Weights(dense, lexical), rrf_k, "")


def test_rrf_adds_weight_over_k_plus_rank_of_each_leg() -> None:
    legs = {"dense": [candidate(1), candidate(2)], "lexical": [candidate(2), candidate(3)]}
    fused = fuse(legs, rrf())
    scores = {one.candidate.row: one.score for one in fused}
    assert scores == pytest.approx({1: 0.7 / 61, 2: 0.7 / 62 + 0.3 / 61, 3: 0.3 / 62})
    assert [one.candidate.row for one in fused] == [2, 1, 3]


def test_a_candidate_of_one_leg_gets_nothing_from_the_other() -> None:
    fused = fuse({"dense": [candidate(1)], "lexical": []}, rrf())
    assert fused[0].score == pytest.approx(0.7 / 61)
    assert set(fused[0].legs) == {"dense"}


def test_equal_scores_within_a_leg_still_have_different_ranks() -> None:
    tied = [candidate(row, score=0.5) for row in range(1, 4)]
    fused = fuse({"dense": tied, "lexical": []}, rrf())
    assert [one.legs["dense"].rank for one in fused] == [1, 2, 3]


def test_ties_go_to_the_better_single_rank_then_to_the_smaller_id() -> None:
    rule = FusionRule("rrf", Weights(0.5, 0.5), 60, "")
    legs = {"dense": [candidate(9, chunk_id="b")], "lexical": [candidate(8, chunk_id="a")]}
    assert [one.candidate.chunk_id for one in fuse(legs, rule)] == ["a", "b"]
    # weights 0.61/0.62 make rank 1 of one leg and rank 2 of the other score alike
    even = FusionRule("rrf", Weights(0.62, 0.61), 60, "")
    legs = {
        "dense": [candidate(1), candidate(2, chunk_id="a")],
        "lexical": [candidate(3, chunk_id="z")],
    }
    fused = fuse(legs, even)
    assert fused[1].score == pytest.approx(fused[2].score)
    assert [one.candidate.row for one in fused] == [1, 3, 2]


def test_a_duplicate_keeps_its_best_rank() -> None:
    fused = fuse({"dense": [candidate(1), candidate(2), candidate(1)], "lexical": []}, rrf())
    assert [(one.candidate.row, one.legs["dense"].rank) for one in fused] == [(1, 1), (2, 2)]


def test_dbsf_scales_by_three_standard_deviations() -> None:
    scores = [3.0, 2.0, 1.0]
    deviation = math.sqrt(2 / 3)
    expected = [0.5 + 1 / (6 * deviation), 0.5, 0.5 - 1 / (6 * deviation)]
    assert scale_by_distribution(scores) == pytest.approx(expected)


def test_dbsf_of_equal_scores_is_one_half_each() -> None:
    assert scale_by_distribution([7.0, 7.0]) == [0.5, 0.5]
    assert scale_by_distribution([]) == []


def test_dbsf_keeps_how_far_the_best_stand_out() -> None:
    first, second, *others = scale_by_distribution([101.0, 100.0, *[0.0] * 40])
    assert first > second > 1.0
    assert all(0 < other < 0.5 for other in others)


def test_dbsf_never_makes_a_candidate_worse_than_an_absent_one() -> None:
    assert min(scale_by_distribution([*[100.0] * 40, 0.0])) == 0.0


def test_heights_above_the_lowest_are_divided_by_their_root_mean_square() -> None:
    quarter = 1 / (4 * math.sqrt(5 / 3))
    assert scale_by_height([3.0, 2.0, 1.0], 0.06) == pytest.approx(
        [0.06 + 2 * quarter, 0.06 + quarter, 0.06]
    )
    assert scale_by_height([7.0, 7.0], 0.06) == [0.5, 0.5]
    assert scale_by_height([], 0.06) == []


def test_a_leg_that_raises_one_candidate_raises_it_higher_than_one_that_runs_on_evenly() -> None:
    sure = scale_by_height([2.0, *[1.0] * 39], 0.06)
    even = scale_by_height([2.0 - step / 39 for step in range(40)], 0.06)
    assert sure[0] == pytest.approx(0.06 + math.sqrt(40) / 4)
    assert even[0] == pytest.approx(0.06 + 1 / (4 * math.sqrt(79 / 234)))
    assert sure[0] > 3 * even[0]


LEG_SCORES = st.lists(st.integers(-1000, 1000), min_size=2, max_size=60).filter(
    lambda scores: len(set(scores)) > 1
)


@given(LEG_SCORES, st.sampled_from([0.125, 0.5, 2.0, 64.0]), st.integers(-500, 500))
def test_heights_do_not_depend_on_the_unit_or_the_zero_of_a_leg(
    scores: list[int], unit: float, zero: int
) -> None:
    moved = scale_by_height([score * unit + zero for score in scores], 0.06)
    assert moved == pytest.approx(scale_by_height(scores, 0.06))


@given(LEG_SCORES)
def test_heights_keep_the_order_and_have_one_norm_in_every_leg(scores: list[int]) -> None:
    scaled = scale_by_height(sorted(scores, reverse=True), 0.06)
    assert scaled == sorted(scaled, reverse=True)
    assert scaled[-1] == pytest.approx(0.06)
    squares = math.fsum((one - 0.06) ** 2 for one in scaled) / len(scaled)
    assert squares == pytest.approx(1 / 16)


def test_by_default_a_candidate_that_just_missed_a_pool_loses_little_for_it() -> None:
    rule = choose_rule(None, None, None, LexicalEvidence(1, 0))
    legs = {
        "dense": [candidate(1, 0.9), candidate(2, 0.5)],
        "lexical": [candidate(3, 9.0), candidate(1, 5.0)],
    }
    fused = {one.candidate.row: one for one in fuse(legs, rule)}
    assert fused[2].legs["dense"].contribution == pytest.approx(0.4 * 0.06)
    assert fused[1].legs["lexical"].contribution == pytest.approx(0.6 * 0.06)


def test_one_leg_alone_keeps_its_order_and_scores() -> None:
    legs = [candidate(5, 0.0), candidate(4, -1.0)]
    assert [(one.candidate.row, one.score) for one in single_leg("dense", legs)] == [
        (5, 0.0),
        (4, -1.0),
    ]


def test_what_is_given_is_obeyed_and_the_rest_is_classic() -> None:
    assert choose_rule("rrf", None, None, IDENTIFIER) == FusionRule(
        "rrf", Weights(0.7, 0.3), 60, "weighted rrf as set"
    )
    given_weights = choose_rule(None, Weights(1, 0), None, IDENTIFIER)
    assert (given_weights.method, given_weights.weights) == ("rrf", Weights(1, 0))
    assert choose_rule(None, None, 5, NO_EVIDENCE).rrf_k == 5
    weighted = choose_rule("dbsf", Weights(0.1, 0.9), None, IDENTIFIER)
    assert weighted.weights == Weights(0.1, 0.9)
    assert weighted.lowest is None


def test_auto_leans_to_the_lexical_leg_for_identifiers() -> None:
    plain, mixed, alone = (
        choose_rule(None, None, None, LexicalEvidence(1, share)) for share in (0, 0.5, 1)
    )
    assert {one.method for one in (plain, mixed, alone)} == {"dbsf"}
    assert plain.weights.lexical < mixed.weights.lexical < alone.weights.lexical == 1
    assert plain.reason == "auto: the best row by words has 100% of the query's weight"
    assert mixed.reason == f"{plain.reason}, identifiers 50% of it"


def test_auto_leans_to_the_dense_leg_the_less_of_the_query_any_row_holds() -> None:
    weights = [LexicalEvidence(coverage, 0).dense_weight for coverage in (0, 0.5, 1)]
    assert weights == pytest.approx([0.6, 0.5, 0.4])


@given(coverage=st.floats(0, 1), identifiers=st.floats(0, 1))
def test_auto_weights_are_weights(coverage: float, identifiers: float) -> None:
    weights = choose_rule(None, None, None, LexicalEvidence(coverage, identifiers)).weights
    assert 0 <= weights.dense <= 0.6
    assert weights.dense + weights.lexical == pytest.approx(1)


def test_an_identifier_counts_the_less_the_less_of_the_query_a_row_holds() -> None:
    weights = [LexicalEvidence(coverage, 1).dense_weight for coverage in (1, 0.5, 0.1)]
    assert weights == pytest.approx([0, 0.5 * 0.75, 0.58 * 0.99])


def test_an_identifier_that_no_row_holds_is_left_to_the_dense_leg() -> None:
    assert LexicalEvidence(0, 1).dense_weight == 0.6


def test_candidates_that_only_a_leg_without_weight_found_come_last_in_its_order() -> None:
    rule = choose_rule(None, None, None, IDENTIFIER)
    legs = {
        "dense": [candidate(1, 0.9), candidate(2, 0.8), candidate(3, 0.7)],
        "lexical": [candidate(7, 9.0), candidate(3, 5.0)],
    }
    assert [one.candidate.row for one in fuse(legs, rule)] == [7, 3, 1, 2]


legs_of_rows = st.lists(st.integers(1, 30), unique=True, max_size=30)


@given(
    dense=legs_of_rows, lexical=legs_of_rows, weight=st.floats(0.01, 0.99), k=st.integers(1, 100)
)
def test_fusion_orders_the_union_by_score_and_is_repeatable(
    dense: list[int], lexical: list[int], weight: float, k: int
) -> None:
    legs = {
        "dense": [candidate(row) for row in dense],
        "lexical": [candidate(row) for row in lexical],
    }
    fused = fuse(legs, rrf(weight, 1 - weight, k))
    assert {one.candidate.row for one in fused} == {*dense, *lexical}
    scores = [one.score for one in fused]
    assert scores == sorted(scores, reverse=True)
    assert fused == fuse(dict(reversed(legs.items())), rrf(weight, 1 - weight, k))


@given(rows=st.lists(st.integers(1, 30), unique=True, min_size=1))
def test_a_leg_of_weight_zero_changes_no_order(rows: list[int]) -> None:
    legs = {"dense": [candidate(row) for row in rows], "lexical": []}
    assert [one.candidate.row for one in fuse(legs, rrf(1, 0))] == rows
