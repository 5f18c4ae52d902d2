"""Lists of several collections become one a leg on a scale that they share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.models import Candidate
from service.search.diversity import side_by_side
from service.search.fusion import single_leg
from service.search.merging import Part, Space, merge_parts, own_scores

SCORES = st.lists(st.floats(0, 30, allow_nan=False), max_size=6)


def ranked(first_row: int, scores: list[float]) -> list[Candidate]:
    return [
        Candidate(first_row + at, first_row + at, "chunk", f"c{first_row + at:04}", 0, score)
        for at, score in enumerate(sorted(scores, reverse=True))
    ]


@st.composite
def parts(draw: st.DrawFn) -> list[Part]:
    return [
        Part(
            {
                "dense": ranked(1000 * at, draw(SCORES)),
                "lexical": ranked(1000 * at + 500, draw(SCORES)),
            },
            ("local", draw(st.sampled_from("ab"))),
        )
        for at in range(draw(st.integers(1, 4)))
    ]


@given(given_parts=parts(), limit=st.integers(1, 12))
def test_a_merged_leg_is_ranked_bounded_and_keeps_each_collections_order(
    given_parts: list[Part], limit: int
) -> None:
    merged = merge_parts(given_parts, limit)
    if len(given_parts) == 1:
        assert merged == given_parts[0].found
        return
    for leg, found in merged.items():
        total = sum(len(part.found[leg]) for part in given_parts)
        assert len(found) == min(limit, total)
        keys = [(-one.score, one.chunk_id) for one in found]
        assert keys == sorted(keys)
        for part in given_parts:
            own = {one.row: one.score for one in part.found[leg]}
            mine = [own[one.row] for one in found if one.row in own]
            assert mine == sorted(mine, reverse=True)


@given(given_parts=parts())
def test_own_scores_come_back_and_the_ranking_stays(given_parts: list[Part]) -> None:
    merged = merge_parts(given_parts, 100)
    own = {one.row: one.score for part in given_parts for one in part.found["lexical"]}
    fused = own_scores(single_leg("lexical", merged["lexical"]), given_parts)
    assert [one.candidate.row for one in fused] == [one.row for one in merged["lexical"]]
    for rank, one in enumerate(fused, 1):
        assert one.legs["lexical"].rank == rank
        assert one.legs["lexical"].score == own[one.candidate.row]


def merged(*given_parts: tuple[Space, list[float]]) -> list[tuple[int, float]]:
    made = [
        Part({"dense": ranked(10 * at, scores)}, space)
        for at, (space, scores) in enumerate(given_parts)
    ]
    return [(one.row, one.score) for one in merge_parts(made, 100)["dense"]]


def test_cosines_of_one_model_stay_and_those_of_two_are_scaled() -> None:
    same = merged((("a",), [0.9, 0.5]), (("a",), [0.7]))
    assert same == [(0, 0.9), (10, 0.7), (1, 0.5)]
    scaled = merged((("a",), [0.9, 0.8, 0.85]), (("b",), [0.3, 0.1, 0.12]))
    assert [row for row, _ in scaled] == [10, 0, 1, 11, 12, 2]
    assert scaled[2][1] == pytest.approx(0.5)


def test_words_are_ranked_by_their_pooled_scores() -> None:
    parts = [
        Part({"lexical": ranked(0, [9.0, 8.0])}, (), ranked(0, [2.0, 1.0])),
        Part({"lexical": ranked(10, [3.0])}, (), ranked(10, [1.5])),
    ]
    merged = merge_parts(parts, 100)["lexical"]
    assert [(one.row, one.score) for one in merged] == [(0, 2.0), (10, 1.5), (1, 1.0)]
    own = own_scores(single_leg("lexical", merged), parts)
    assert [one.legs["lexical"].score for one in own] == [9.0, 3.0, 8.0]


def test_vectors_of_different_spaces_have_nothing_in_common() -> None:

    one, two = np.array([1, 2], np.float32), np.array([3, 4, 5], np.float32)
    together = side_by_side([(("a",), {1: one}), (("b",), {2: two}), (("a",), {3: one})])
    assert together[1] @ together[2] == 0
    assert together[1] @ together[3] == pytest.approx(one @ one)
    assert np.linalg.norm(together[2]) == pytest.approx(np.linalg.norm(two))
    alone = side_by_side([(("a",), {1: one}), (("a",), {3: two})])
    assert (alone[1] is one, alone[3] is two) == (True, True)
