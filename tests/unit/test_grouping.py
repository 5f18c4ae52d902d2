"""Grouping: k counts chunks or documents, caps apply best first, reading order inside."""

from hypothesis import given
from hypothesis import strategies as st

from service.models import Candidate
from service.search.fusion import Fused, single_leg
from service.search.grouping import by_document, select_chunks, select_documents


def ranked(*places: tuple[int, int]) -> list[Fused]:
    """(document, position) pairs, best first."""
    return single_leg(
        "dense",
        [
            Candidate(row, document, "chunk", f"d{document}::{position}", position, -float(row))
            for row, (document, position) in enumerate(places)
        ],
    )


def rows(hits: list[Fused]) -> list[int]:
    return [one.candidate.row for one in hits]


def test_k_counts_chunks() -> None:
    selection = select_chunks(ranked((1, 0), (1, 1), (2, 0)), 2, None)
    assert rows(selection.hits) == [0, 1]
    assert selection.filled


def test_the_cap_lets_other_documents_move_up() -> None:
    selection = select_chunks(ranked((1, 0), (1, 1), (1, 2), (2, 0)), 2, 1)
    assert rows(selection.hits) == [0, 3]


def test_k_counts_documents_when_grouped() -> None:
    selection = select_documents(ranked((1, 4), (1, 2), (2, 0), (3, 0)), 2, 20)
    assert rows(selection.hits) == [0, 1, 2]
    assert selection.filled
    assert not select_documents(ranked((1, 4), (1, 2)), 2, 20).filled


def test_documents_come_by_their_best_chunk_and_chunks_in_reading_order() -> None:
    groups = by_document(ranked((2, 9), (1, 4), (2, 3), (1, 2)))
    assert list(groups) == [2, 1]
    assert [one.candidate.position for one in groups[2]] == [3, 9]


places = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=60)


@given(places=places, k=st.integers(1, 8), cap=st.integers(1, 5))
def test_no_document_exceeds_its_cap_and_the_best_chunks_stay(
    places: list[tuple[int, int]], k: int, cap: int
) -> None:
    fused = ranked(*places)
    selection = select_documents(fused, k, cap)
    groups = by_document(selection.hits)
    assert len(groups) == min(k, len({document for document, _ in places}))
    for document, group in groups.items():
        best = [one for one in fused if one.candidate.document == document][:cap]
        assert sorted(rows(group)) == sorted(rows(best))
