"""Prepares a text for the lexical index and a query for the same index, by one function."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import Literal

import msgspec

from service.text.identifiers import Token, analyze
from service.text.lexemes import MAX_POSITIONS
from service.text.normalize import clean, fold, has_tones, normalize


class Analyzer(msgspec.Struct, frozen=True):
    """How the text of a collection becomes lexemes."""

    kind: Literal["language", "simple", "trigram"]
    configuration: str
    """A name in pg_ts_config; "simple" for the kinds simple and trigram."""
    stop_words: frozenset[str] = frozenset()
    """Words that this configuration drops."""


class Prepared(msgspec.Struct, frozen=True):
    """The lexemes of a text: those of to_tsvector(configuration, words) and those of `exact`.

    A lexeme that both yield counts in both.
    """

    words: str
    """Words with single blanks between them, each of them one token of the server's parser."""
    exact: Mapping[str, int]
    """Term frequencies of lexemes that bypass parser and stemmer."""
    identifiers: tuple[str, ...]
    """Lexemes that name one thing: of `exact`, or words with capitals or digits inside."""
    stop_pairs: Mapping[str, int]
    """Lexemes that are always indexed but asked for only by a query that has no other: adjacent
    stop words, and n-grams as short as a query may be."""
    phrase: str = ""
    """The words in reading order, without variants: what a phrase is searched by."""
    identifier_words: tuple[str, ...] = ()
    """Those of `words` that name a thing or are parts of what does."""
    complete: bool = True
    """False when the text has more lexemes than fit."""


MAX_BYTES = 900_000
"""Of lexemes and positions; a tsvector holds 1,048,575."""

PIECE_LENGTH = 65_536
"""Characters that are read at once."""

_UNCHECKED_LENGTH = 20_000
_TRIED_BLANKS = 8
_LONGEST_BREAK = 8
_BREAKING = ("-", "\u2010", "\u00ad")
_FIRST_LENGTH = 65_536
"""Most texts that do not fit are noticed by so much of them; the rest would be for nothing."""
_CACHED_LENGTH = 64
_OUTER_PUNCTUATION = ".,;:!?()[]{}\"'*`"
_analyze_cached = lru_cache(maxsize=32_768)(analyze)
_fold_cached = lru_cache(maxsize=32_768)(fold)


def prepare(text: str, analyzer: Analyzer) -> Prepared:
    """Prepare the text of a chunk or of a query, whatever it holds.

    Whoever searches with a part of a text, cut between blanks, asks for lexemes of that text. The
    lexemes fit a tsvector: a text that has more of them is prepared up to there.
    """
    normal, prepared, size = _measured(text[:_FIRST_LENGTH], analyzer)
    end = _FIRST_LENGTH
    while end < len(text) and size <= MAX_BYTES:
        end *= 4
        normal, prepared, size = _measured(text[:end], analyzer)
    complete = size <= MAX_BYTES
    while size > MAX_BYTES:
        # A shorter text repeats less, so that its size shrinks less than its length.
        normal = _shortened(normal, MAX_BYTES / size * 15 / 16)
        prepared = _prepare(normal, analyzer)
        size = _size(prepared)
    return prepared if complete else msgspec.structs.replace(prepared, complete=False)


def _measured(text: str, analyzer: Analyzer) -> tuple[list[str], Prepared, int]:
    normal = [normalize(clean(piece)[0]) for piece in pieces(text)]
    prepared = _prepare(normal, analyzer)
    return normal, prepared, _size(prepared) if sum(map(len, normal)) > _UNCHECKED_LENGTH else 0


def pieces(text: str) -> Iterator[str]:
    """A long text in pieces, cut at blanks: nothing else can run while an expression reads one.

    What has no blank in so many characters is cut where they end.
    """
    start = 0
    while len(text) - start > PIECE_LENGTH:
        end = _last_blank(text, start, start + PIECE_LENGTH)
        yield text[start:end]
        start = end
    yield text[start:]


def _last_blank(text: str, start: int, end: int) -> int:
    """Where to cut before `end`: not in a word that a hyphen breaks at the end of a line."""
    blank = end
    for _ in range(_TRIED_BLANKS):
        blank = max(text.rfind(space, start + 1, blank) for space in " \n\t")
        if blank < 0:
            break
        if not text[max(start, blank - _LONGEST_BREAK) : blank].rstrip().endswith(_BREAKING):
            return blank
    return end


def _shortened(normal: Sequence[str], share: float) -> list[str]:
    """The beginning of a text in pieces."""
    wanted = int(sum(map(len, normal)) * share)
    kept = []
    for piece in normal:
        kept.append(piece[:wanted])
        wanted -= len(piece)
        if wanted <= 0:
            break
    return kept


def _prepare(normal: Iterable[str], analyzer: Analyzer) -> Prepared:
    tokens = chain.from_iterable(piece.split() for piece in normal)
    if analyzer.kind == "trigram":
        return Prepared("", _trigrams(tokens), (), {})
    analyzed = [
        _analyze_cached(token) if len(token) <= _CACHED_LENGTH else analyze(token)
        for token in tokens
    ]
    return _assemble(analyzed, analyzer.stop_words)


def _size(prepared: Prepared) -> int:
    """Bytes of the tsvector at most: a lexeme, its number of positions, the positions."""
    lexemes: Counter[str] = Counter()
    for piece in pieces(prepared.words):
        lexemes.update(piece.split())
    lexemes.update(prepared.exact)
    lexemes.update(prepared.stop_pairs)
    return sum(
        len(lexeme.encode()) + 4 + 2 * min(count, MAX_POSITIONS)
        for lexeme, count in lexemes.items()
    )


def _assemble(tokens: Iterable[str | Token], stop_words: frozenset[str]) -> Prepared:
    words: list[str] = []
    compound: list[Token] = []
    for token in tokens:
        if isinstance(token, str):
            words.append(token)
        else:
            words += token.words
            compound.append(token)
    named = [token for token in compound if token.identifiers]
    variants = list(chain.from_iterable(token.variants for token in compound))
    exact, short = Counter[str](), Counter[str]()
    for token in compound:
        exact.update(token.exact)
        short.update(token.short)
    identifiers = dict.fromkeys(chain.from_iterable(token.identifiers for token in compound))
    variants = _folded(variants, stop_words) + [word for word in words if has_tones(word)]
    reading = _folded(words, stop_words)
    return Prepared(
        " ".join(reading + variants),
        exact,
        tuple(identifiers),
        _stop_pairs(reading, stop_words) + short,
        " ".join(reading),
        tuple(
            _folded((word for token in named for word in token.words + token.variants), stop_words)
        ),
    )


def _folded(words: Iterable[str], stop_words: frozenset[str]) -> list[str]:
    """Words without accents; stop words keep theirs, since the server knows them by these."""
    folded = (
        word if word.isascii() or word in stop_words else _fold_cached(word) for word in words
    )
    return [word for word in folded if word]


def _stop_pairs(words: Sequence[str], stop_words: frozenset[str]) -> Counter[str]:
    """Adjacent stop words as one lexeme, like common grams; a text of one stop word is itself."""
    if len(words) == 1:
        return Counter(word for word in words if word in stop_words)
    return Counter(
        f"{first} {second}"
        for first, second in pairwise(words)
        if first in stop_words and second in stop_words
    )


def _trigrams(tokens: Iterable[str]) -> Counter[str]:
    """Three adjacent characters of each token, without case, accents and outer punctuation."""
    trigrams: Counter[str] = Counter()
    for token in tokens:
        letters = fold(token.lower().strip(_OUTER_PUNCTUATION))
        trigrams.update(letters[start : start + 3] for start in range(len(letters) - 2))
    return trigrams
