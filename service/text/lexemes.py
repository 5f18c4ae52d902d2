"""Lexemes as the server reads them: quoted literals and the number of a lexeme's dimension."""

from collections.abc import Mapping
from hashlib import md5

from service.text.normalize import clean

MAX_POSITIONS = 255
"""Positions that a tsvector keeps of one lexeme: a higher term frequency is cut to it."""


def quote_lexeme(lexeme: str) -> str:
    """The lexeme quoted for ::tsquery and ::tsvector."""
    escaped = clean(lexeme)[0].replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def tsvector_literal(lexemes: Mapping[str, int]) -> str:
    """The lexemes for ::tsvector, each with as many positions as it has occurrences."""
    return " ".join(
        f"{quote_lexeme(lexeme)}:{_POSITIONS[min(count, MAX_POSITIONS)]}"
        for lexeme, count in lexemes.items()
        if count > 0 and clean(lexeme)[0]
    )


_POSITIONS = [",".join(map(str, range(1, count + 1))) for count in range(MAX_POSITIONS + 1)]


def lexeme_hash(lexeme: str) -> int:
    """The lexeme's dimension in the sparse vectors, from 1 to 2^28; the same for ever."""
    return int(md5(lexeme.encode(), usedforsecurity=False).hexdigest()[:7], 16) + 1
