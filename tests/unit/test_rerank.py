"""What is made of a reranker's answer; pure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import BadAnswerError
from service.models import Candidate, RerankDefaults
from service.providers.base import Relevance
from service.providers.rerankers import validated
from service.search.fusion import Fused
from service.search.rerank import passing, plan_rerank, question, relevance_of, reorder


def fused(count: int) -> list[Fused]:
    return [
        Fused(Candidate(row, row, "chunk", str(row), 0, 1.0), 1 / (row + 1), {})
        for row in range(count)
    ]


def rows(ranked: list[Fused]) -> list[int]:
    return [one.candidate.row for one in ranked]


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ([(0, 1.0), (0, 0.5)], 2),
        ([(0, 1.0), (2, 0.5)], 2),
        ([(0, 1.0), (-1, 0.5)], 2),
        ([(0, float("nan")), (1, 0.5)], 2),
        ([(0, float("inf")), (1, 0.5)], 2),
        ([], 1),
        ([(0, 1.0)], 3),
    ],
)
def test_a_bad_answer_is_refused(answer: list[tuple[int, float]], count: int) -> None:
    with pytest.raises(BadAnswerError):
        validated([Relevance(*one) for one in answer], count)


def test_a_good_answer_is_sorted() -> None:
    answer = [Relevance(2, 0.1), Relevance(1, 0.7), Relevance(0, 0.7)]
    assert [one.index for one in validated(answer, 3)] == [0, 1, 2]
    assert [one.index for one in validated(answer[:2], 4)] == [1, 2]


@given(st.data())
def test_reordering_loses_and_doubles_nothing(data: st.DataObject) -> None:
    candidates = fused(data.draw(st.integers(0, 20)))
    read = rows(candidates)[: data.draw(st.integers(0, 20))]
    scored = data.draw(st.permutations(range(len(read))))[: data.draw(st.integers(0, 20))]
    answer = [Relevance(index, 1 - at / 100) for at, index in enumerate(scored)]
    found = reorder(candidates, read, answer)
    assert sorted(rows(found)) == rows(candidates)
    assert rows(found)[: len(scored)] == [read[index] for index in scored]
    rest = rows(found)[len(scored) :]
    assert rest == sorted(rest)
    relevance = relevance_of(found)
    assert relevance == sorted(relevance, reverse=True)


def test_a_threshold_keeps_what_was_scored_high_enough() -> None:
    found = reorder(fused(4), [0, 1, 2], [Relevance(2, 0.9), Relevance(0, 0.5), Relevance(1, 0.1)])
    assert rows(found) == [2, 0, 1, 3]
    assert rows(passing(found, 0.5)) == [2, 0]
    assert passing(found, None) == found


def test_the_question_holds_the_end_of_the_conversation() -> None:
    assert question("what?", None) == "what?"
    assert question("what?", "  ") == "what?"
    assert question("what?", "before") == "before\n\nwhat?"
    long = question("what?", "a" * 5000 + "b" * 1999)
    assert long == "a" + "b" * 1999 + "\n\nwhat?"


def test_reranking_needs_a_provider_and_to_be_wanted() -> None:
    on = RerankDefaults(enabled=True, provider="mine", model="m", top_n=30, timeout_ms=500)
    plan = plan_rerank(on, enabled=None, top_n=None, timeout_ms=None)
    assert plan is not None
    assert (plan.provider, plan.model, plan.top_n, plan.seconds) == ("mine", "m", 30, 0.5)
    asked = plan_rerank(on, enabled=True, top_n=5, timeout_ms=100)
    assert asked is not None
    assert (asked.top_n, asked.seconds) == (5, 0.1)
    assert plan_rerank(on, enabled=False, top_n=None, timeout_ms=None) is None
    off = RerankDefaults(provider="mine")
    assert plan_rerank(off, enabled=None, top_n=None, timeout_ms=None) is None
    assert plan_rerank(off, enabled=True, top_n=None, timeout_ms=None) is not None
    nobody = RerankDefaults(enabled=True)
    assert plan_rerank(nobody, enabled=True, top_n=None, timeout_ms=None) is None
