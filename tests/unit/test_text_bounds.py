"""Texts that are huge, hostile or empty."""

import random
import re
import sys
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from service.text import Analyzer, Prepared, prepare
from service.text import prepare as prepare_function

SIMPLE = Analyzer("simple", "simple")
ANALYZERS = (
    Analyzer("language", "english", frozenset({"the", "who"})),
    SIMPLE,
    Analyzer("trigram", "simple"),
)


def lexemes(prepared: Prepared) -> set[str]:
    return set(prepared.words.split()) | set(prepared.exact)


HUGE = 400_000


def _random_words(digits: int) -> str:
    numbers = random.Random(digits)
    return " ".join(f"{numbers.getrandbits(4 * digits):0{digits}x}" for _ in range(40_000))


@pytest.mark.parametrize(
    "text",
    [
        _random_words(8),
        _random_words(32),
        "x" * HUGE,
        "1" * HUGE,
        "1." * (HUGE // 2),
        "1,000" + ",000" * (HUGE // 4),
        "a/" * (HUGE // 2),
        "a&" * (HUGE // 2),
        "aB" * (HUGE // 2),
        "a-\n" * (HUGE // 3),
        "-" * HUGE,
        "\u0301" * HUGE,
        "部署" * (HUGE // 2),
        "".join(map(chr, range(0x4E00, 0x9FFF))) * 10,
        "http://" * (HUGE // 7),
    ],
    ids=lambda text: f"{text[:8]!r}",
)
@pytest.mark.parametrize("analyzer", ANALYZERS, ids=lambda analyzer: analyzer.kind)
def test_hostile_texts_are_prepared_within_the_size_of_a_tsvector(
    text: str, analyzer: Analyzer
) -> None:
    prepared = prepare(text, analyzer)
    counts = Counter(prepared.words.split())
    counts.update(prepared.exact)
    counts.update(prepared.stop_pairs)
    lengths = {lexeme: len(lexeme.encode()) for lexeme in counts}
    assert max(lengths.values(), default=0) < 2046
    assert sum(lengths[one] + 2 * min(count, 255) for one, count in counts.items()) <= 900_000


def test_an_overlong_token_is_one_lexeme_that_still_finds_itself() -> None:
    token = "Ab3" * 1000
    document = prepare(f"before {token} after", SIMPLE)
    query = prepare(token, SIMPLE)
    assert lexemes(query) == set(query.exact)
    assert lexemes(query) <= lexemes(document)
    assert lexemes(query).isdisjoint(lexemes(prepare(token[:-1], SIMPLE)))


def test_a_text_with_too_many_lexemes_is_prepared_from_its_beginning() -> None:
    words = _random_words(32).split()
    prepared = prepare(" ".join(words), SIMPLE).words.split()
    assert 15_000 < len(prepared) < 40_000
    assert words[0] in prepared


def test_a_text_that_does_not_fit_says_so() -> None:
    ideographs = "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9FA0), k=200_000)))
    assert not prepare(ideographs, SIMPLE).complete
    assert prepare(ideographs[:10_000], SIMPLE).complete
    assert prepare("again and again " * 50_000, SIMPLE).complete


@pytest.mark.parametrize("text", ["", " \n", "!?", "\x00", "\ud800", "'", "--", "\\"])
def test_a_text_without_words_has_no_lexemes(text: str) -> None:
    for analyzer in ANALYZERS:
        prepared = prepare(text, analyzer)
        assert (prepared.words, dict(prepared.exact), dict(prepared.stop_pairs)) == ("", {}, {})


PREPARING = sys.modules[prepare_function.__module__]


@pytest.mark.parametrize(
    "text", ["x" * 1_000_000, "a/" * 500_000, "部" * 300_000, "a b-\n" * 200_000]
)
def test_no_expression_reads_more_than_a_piece_of_a_long_text(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else runs in the process while it does."""
    read: list[int] = []
    for name in ("normalize", "analyze"):
        function = getattr(PREPARING, name)

        def measured(part: str, function: Callable[[str], object] = function) -> object:
            read.append(len(part))
            return function(part)

        monkeypatch.setattr(PREPARING, name, measured)
    prepare(text, SIMPLE)
    assert len(read) > 2
    assert max(read) <= PREPARING.PIECE_LENGTH


@settings(deadline=None)
@given(st.text(st.sampled_from("ab\u0301C1.- \n部"), max_size=300), st.integers(20, 60))
def test_a_text_in_pieces_is_prepared_like_the_whole(text: str, length: int) -> None:
    """As long as its words are shorter than a piece."""
    longest = max(map(len, text.split()), default=0)
    breaks = re.findall(r"(?:\S+[-\u2010][ \t]*\n[ \t]*)+\S*|\s{5,}", text)
    assume(longest < length // 2 and max(map(len, breaks), default=0) < length // 4)
    whole = [prepare(text, analyzer) for analyzer in ANALYZERS]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PREPARING, "PIECE_LENGTH", length)
        assert [prepare(text, analyzer) for analyzer in ANALYZERS] == whole
