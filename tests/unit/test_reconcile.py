"""Which rows stay, move, go or are new, checked against a model of the wanted outcome."""

from hypothesis import given
from hypothesis import strategies as st

from service.db.chunks import StoredRow
from service.indexing.reconcile import PlannedRecord, reconcile


def chunk(chunk_id: str, content: str, position: int | None = None) -> PlannedRecord:
    return PlannedRecord("chunk", chunk_id, content, content.encode(), position)


def row(number: int, chunk_id: str, content: str, position: int, *, raw: bool = False) -> StoredRow:
    return StoredRow(1, number, "chunk", chunk_id, position, content.encode(), raw)


def raw_chunks(contents: str) -> list[PlannedRecord]:
    return [chunk(f"d::{at}", content, at) for at, content in enumerate(contents)]


def raw_rows(contents: str) -> list[StoredRow]:
    return [row(at + 100, f"d::{at}", content, at, raw=True) for at, content in enumerate(contents)]


def test_an_unchanged_document_keeps_every_row() -> None:
    todo = reconcile(raw_chunks("abc"), raw_rows("abc"), whole=True, raw=True)
    assert {at: kept.row for at, kept in todo.kept.items()} == {0: 100, 1: 101, 2: 102}
    assert (todo.added, todo.removed) == ([], [])


def test_a_paragraph_put_in_front_moves_the_others() -> None:
    todo = reconcile(raw_chunks("xabc"), raw_rows("abc"), whole=True, raw=True)
    assert {at: kept.row for at, kept in todo.kept.items()} == {1: 100, 2: 101, 3: 102}
    assert (todo.added, todo.removed) == ([0], [])


def test_equal_chunks_are_matched_one_to_one() -> None:
    todo = reconcile(raw_chunks("aaa"), raw_rows("aa"), whole=True, raw=True)
    assert {at: kept.row for at, kept in todo.kept.items()} == {0: 100, 1: 101}
    assert todo.added == [2]


def test_replacing_removes_what_is_not_there_any_more() -> None:
    stored = [*raw_rows("ab"), row(200, "mine", "m", 9)]
    todo = reconcile([chunk("new", "b")], stored, whole=True, raw=False)
    assert (todo.added, todo.removed) == ([], [100, 200])
    assert todo.kept[0].row == 101
    assert todo.positions == [0]


def test_an_upsert_leaves_other_ids_alone_and_appends_new_ones() -> None:
    stored = [row(1, "a", "A", 0), row(2, "b", "B", 4)]
    todo = reconcile([chunk("b", "B2"), chunk("c", "C")], stored, whole=False, raw=False)
    assert [one.row for one in todo.untouched] == [1]
    assert (todo.added, todo.removed) == ([0, 1], [2])
    assert todo.positions == [4, 5]


def test_a_new_text_replaces_the_chunks_of_the_old_text_only() -> None:
    stored = [*raw_rows("abc"), row(200, "mine", "m", 9)]
    todo = reconcile(raw_chunks("a"), stored, whole=False, raw=True)
    assert [one.row for one in todo.untouched] == [200]
    assert (todo.added, todo.removed) == ([], [101, 102])


def test_a_summary_never_takes_the_row_of_a_chunk() -> None:
    summary = PlannedRecord("summary", "d", "a", b"a", 0)
    todo = reconcile([summary], raw_rows("a"), whole=True, raw=True)
    assert (todo.added, todo.removed) == ([0], [100])


@given(
    before=st.text("abcd", max_size=8),
    after=st.text("abcd", max_size=8),
    whole=st.booleans(),
)
def test_the_outcome_is_exactly_the_planned_document(before: str, after: str, whole: bool) -> None:
    planned, stored = raw_chunks(after), raw_rows(before)
    todo = reconcile(planned, stored, whole=whole, raw=True)
    reused = [kept.row for kept in todo.kept.values()]
    assert len(set(reused)) == len(reused)
    assert sorted([*todo.kept, *todo.added]) == list(range(len(after)))
    assert sorted([*reused, *todo.removed]) == [one.row for one in stored]
    assert all(
        stored[kept.row - 100].content_hash == planned[at].content_hash
        for at, kept in todo.kept.items()
    )
    # No row goes while the same content is added.
    gone = {stored[number - 100].content_hash for number in todo.removed}
    assert gone.isdisjoint(planned[at].content_hash for at in todo.added)
    assert todo.positions == list(range(len(after)))
