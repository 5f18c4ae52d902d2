"""Highlights: spans lie in the text, in order, and the fragments show them."""

from hypothesis import given
from hypothesis import strategies as st

from service.search.highlight import MAX_FRAGMENTS, highlight

alphabet = st.text("ab .,()\u4e2d\u6587\u00e9\n", max_size=400)


def lower(token: str) -> set[str]:
    return {token.lower().strip(".,()"), token.lower()[:2]}


@given(text=alphabet, wanted=st.sets(st.sampled_from(["a", "ab", "b", "\u4e2d\u6587", "\u00e9"])))
def test_spans_are_ordered_disjoint_and_inside(text: str, wanted: set[str]) -> None:
    found = highlight(text, wanted, lower)
    edges = [edge for span in found.spans for edge in span]
    assert edges == sorted(edges)
    assert all(0 <= start < end <= len(text) for start, end in found.spans)
    assert len(found.fragments) <= MAX_FRAGMENTS
    for fragment in found.fragments:
        assert fragment.replace("<em>", "").replace("</em>", "") in text
        assert fragment.count("<em>") == fragment.count("</em>") > 0
    assert bool(found.spans) == bool(found.fragments)


def test_punctuation_around_a_word_is_not_marked() -> None:
    found = highlight('say "ab", (b)', {"ab"}, lambda token: {token.strip('"(),')})
    assert found.spans == [(5, 7)]
    assert found.fragments == ['say "<em>ab</em>", (b)']
