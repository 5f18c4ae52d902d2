"""The query language with quotes, minus and `or`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text import Clause, parse_websearch


@pytest.mark.parametrize(
    ("query", "clauses"),
    [
        ("rotate key", [Clause("rotate"), Clause("key")]),
        ('"rotate the key" now', [Clause("rotate the key", phrase=True), Clause("now")]),
        ("key -api", [Clause("key"), Clause("api", negated=True)]),
        ('-"api key" x', [Clause("api key", phrase=True, negated=True), Clause("x")]),
        ("a or b c", [Clause("a"), Clause("b", alternative=True), Clause("c")]),
        ("a OR -b", [Clause("a"), Clause("b", negated=True, alternative=True)]),
        ('a "or" b', [Clause("a"), Clause("or", phrase=True), Clause("b")]),
        ("or a or", [Clause("or"), Clause("a"), Clause("or")]),
        ("a or or b", [Clause("a"), Clause("or", alternative=True), Clause("b")]),
        ("kube-system", [Clause("kube-system")]),
        ("a - b", [Clause("a"), Clause("b")]),
        ('"never closed', [Clause("never closed", phrase=True)]),
        ("„gute Nacht“ «bon»", [Clause("gute Nacht", phrase=True), Clause("bon", phrase=True)]),
        ('say"no"', [Clause("say"), Clause("no", phrase=True)]),
        ("!!! & | ( )", []),
        ("", []),
    ],
)
def test_a_query_is_read_as_websearch_does(query: str, clauses: list[Clause]) -> None:
    assert parse_websearch(query) == tuple(clauses)


@settings(deadline=None)
@given(st.text(st.sampled_from('ab "-or\n“”\x00\ud800!')) | st.text())
def test_every_text_is_a_query_and_no_word_is_lost(query: str) -> None:
    clauses = parse_websearch(query)
    assert not clauses or not clauses[0].alternative
    letters = [character for character in query if character.isalpha()]
    found = [character for clause in clauses for character in clause.text if character.isalpha()]
    ors = sum(clause.alternative for clause in clauses)
    assert len(letters) - len(found) == 2 * ors
