"""Lexemes for the server: hashes that never change, and quoting."""

from hypothesis import given, settings
from hypothesis import strategies as st

from service.text import lexeme_hash, quote_lexeme, tsvector_literal


def test_the_hash_of_a_lexeme_is_the_same_for_ever() -> None:
    # The first seven hexadecimal digits of md5, counted from one.
    assert lexeme_hash("") == 0xD41D8CD + 1
    assert lexeme_hash("a") == 0x0CC175B + 1
    assert lexeme_hash("e-4012") == 0x1AB7FA0 + 1


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_hashes_are_dimensions_of_a_sparse_vector(lexeme: str) -> None:
    assert 1 <= lexeme_hash(lexeme) <= 2**28


def test_a_lexeme_has_as_many_positions_as_occurrences_up_to_255() -> None:
    assert tsvector_literal({"c++": 3, "it's": 1, "a\\b": 1}) == r"'c++':1,2,3 'it''s':1 'a\\b':1"
    assert tsvector_literal({"x": 300}).endswith(",254,255")
    assert tsvector_literal({}) == ""


def test_what_the_server_refuses_is_left_out_of_literals() -> None:
    assert tsvector_literal({"\x00": 1, "a\ud800b": 1, "": 2, "c": 0}) == "'ab':1"
    assert quote_lexeme("a\x00'b") == "'a''b'"
