# ruff: noqa: RUF001 - the characters are meant
"""One spelling of every character, and what accents fold to."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text import Analyzer, clean, prepare
from service.text.normalize import fold, normalize

ENGLISH = Analyzer("language", "english")
TRIGRAM = Analyzer("trigram", "simple")
PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126).filter("`".__ne__))


def test_clean_removes_what_the_database_refuses_and_says_so() -> None:
    assert clean("a\x00b\ud800c\udfff") == ("abc", True)
    assert clean("naïve 部署 🎉\n") == ("naïve 部署 🎉\n", False)


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("it’s ‘so’", "it's 'so'"),
        ("l´eau", "l'eau"),
        ("well‐known non‑breaking", "well-known non-breaking"),
        ("soft\u00adware zero\u200bwidth \ufeffbom", "software zerowidth bom"),
        ("trans\u00ad\n  port", "transport"),
        ("trans-\nport", "trans-port"),
        ("trans-\r\n\tport", "trans-port"),
        ("ＡＢＣ１２３：／", "ABC123:/"),
        ("ﬁle ① ㎏", "file 1 kg"),
        ("٢٠١٥ २०१५ ๒๐๑๕", "2015 2015 2015"),
        ("CO₂ note¹ x²", "CO2 note 1 x 2"),
        ("“a”—b…", "a b"),
        ("…/bin Foo™ Bar℠ baz…qux", "/bin Foo Bar baz qux"),
        ("iPhone手机", "iPhone 手机"),
        ("пам’ять", "память"),
        ("col·legi", "collegi"),
        ("done🎉now", "done 🎉 now"),
    ],
)
def test_normalize_writes_one_form(written: str, plain: str) -> None:
    assert normalize(written).split() == plain.split()


@pytest.mark.parametrize("text", ["a -\nb", "a\n- b", "end-\n\nnext", "a--\nb"])
def test_a_hyphen_that_breaks_no_word_stays(text: str) -> None:
    assert normalize(text) == text


@settings(deadline=None)
@given(st.text())
def test_composed_and_decomposed_text_is_prepared_alike(text: str) -> None:
    for analyzer in (ENGLISH, TRIGRAM):
        composed = prepare(unicodedata.normalize("NFC", text), analyzer)
        assert composed == prepare(unicodedata.normalize("NFD", text), analyzer)


@settings(deadline=None)
@given(PRINTABLE)
def test_full_width_forms_are_prepared_like_ascii(text: str) -> None:
    wide = "".join(chr(ord(character) + 0xFEE0) for character in text)
    assert prepare(wide, ENGLISH) == prepare(text, ENGLISH)


@pytest.mark.parametrize(
    ("word", "base"),
    [
        ("café", "cafe"),
        ("straße", "strasse"),
        ("ångström", "angstrom"),
        ("ılık", "ilik"),
        ("i̇stanbul", "istanbul"),
        ("łódź", "lodz"),
        ("smørrebrød", "smorrebrod"),
        ("œuvre", "oeuvre"),
        ("λόγος", "λογοσ"),
        ("ёлка", "елка"),
        ("за́мок", "замок"),
        ("كِتَابـــ", "كتاب"),
        ("أحمد", "احمد"),
        ("على", "علي"),
        ("שָׁלוֹם", "שלום"),
        ("phở", "pho"),
        ("क़िताब", "किताब"),
        ("फ़िल्म", "फिल्म"),
        ("हिन्दी", "हिंदी"),
        ("सम्बन्ध", "संबंध"),
        ("चाँद", "चांद"),
    ],
)
def test_accents_fold_to_base_letters(word: str, base: str) -> None:
    assert fold(unicodedata.normalize("NFC", word)) == base


@pytest.mark.parametrize("word", ["йод", "її", "ў", "लड़की", "ひらがな", "مدرسة", "น้ำ"])
def test_letters_of_their_own_are_not_accents(word: str) -> None:
    word = unicodedata.normalize("NFC", word)
    assert fold(word) == word
