# ruff: noqa: RUF001 - the characters are meant
"""N-grams for scripts without spaces between words."""

import unicodedata

import pytest

from service.text import Analyzer, Prepared, prepare

SIMPLE = Analyzer("simple", "simple")


def lexemes(prepared: Prepared) -> set[str]:
    return set(prepared.words.split()) | set(prepared.exact)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("go 部署 deployment", "go 部署 deployment"),
        ("如何部署服务", "如何 何部 部署 署服 服务"),
        ("データベース", "デー ータ タベ ベー ース"),
        ("서울에서 봄", "서울 울에 에서 봄"),
        ("กินข้าว", "กินข้ นข้า ข้าว"),
        ("ລາວ", "ລາວ"),
        ("ភាសា", "ភាសា"),
        ("部", "部"),
        ("v2版本", "v2 版本"),
    ],
)
def test_words_are_ngrams_in_reading_order(text: str, words: str) -> None:
    assert prepare(text, SIMPLE).phrase == words


@pytest.mark.parametrize(
    ("document", "query"),
    [
        ("如何部署服务", "部"),
        ("如何部署服务", "服"),
        ("서울에서", "울"),
        ("ไปกินข้าว", "ไป"),
        ("ไปกินข้าว", "กิ"),
        ("データベース", "タ"),
    ],
)
def test_a_query_shorter_than_an_ngram_finds_its_document(document: str, query: str) -> None:
    asked = lexemes(prepare(query, SIMPLE))
    prepared = prepare(document, SIMPLE)
    assert asked
    assert asked <= lexemes(prepared) | set(prepared.stop_pairs)


def test_no_ngram_begins_with_a_mark_that_belongs_to_the_letter_before() -> None:
    words = prepare("ก็ทำได้ที่นี่", SIMPLE).words.split()
    assert words
    assert not [word for word in words if unicodedata.category(word[0]) == "Mn"]


def test_punctuation_and_blanks_end_a_run() -> None:
    assert prepare("你好，世界。", SIMPLE).words == "你好 世界"
