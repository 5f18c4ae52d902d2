"""Code-like tokens: what names one thing is kept whole, and split into the words it is made of."""

import re
import unicodedata
from hashlib import md5
from typing import NamedTuple

from service.text.normalize import fold
from service.text.scripts import SPACELESS, ngrams

MAX_LEXEME = 200
"""Characters of the longest lexeme that is kept as it is."""

_WORD = r"[A-Za-z0-9\x80-\U0010ffff]+"
_JOINT = r"(?:->|::|_+|[-./\\:@#+]|&(?![\w.-]+=))"
# `--flag`, `.NET`, `@scope/package`, `/etc`, `~/bin` and `../up`, but not in the middle of a token.
_HEAD = r"(?:(?<![\w/.@-])(?:--?(?=[A-Za-z])|@|(?:~|\.\.?)?/)|(?<![\w.@-])\.(?=[A-Za-z]))"
_TOKEN = re.compile(rf"({_HEAD})?({_WORD}(?:{_JOINT}({_WORD}))*)(\+\+|#)?")
_OUTER = re.compile(r"->|::|[/\\:@#+&]")
_INNER = re.compile(r"[-._]+")
_URL = re.compile(r"(?<![\w+.-])[A-Za-z][A-Za-z0-9+.-]*://[^\s<>\"`{}|\\^]+")
_GROUPED = re.compile(
    r"(?<!\d)(?<!\d[.,'])(?<![.,])\d{1,3}(?:(?:,\d{2,3})*,\d{3}(?:\.\d+)?|(?:\.\d{3})+,\d+|(?:'\d{3})+(?:\.\d+)?)"
    r"(?!\d|[.,']\d)"
)
_DECIMAL = re.compile(r"v?(\d+\.\d+)")
_VERSION = re.compile(r"v?(\d+(?:\.\d+){2,4})(?![^\W_]|\.\d)")
# In `jdk-17.0.2`, `log4j-core-2.17.1.jar` and `python3.11`, but not in the middle of a number.
_INNER_VERSION = re.compile(r"(?<!\d)(?<!\d[-_.])\d+(?:\.\d+){1,4}(?![^\W_]|\.\d)")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](?=\d\d:?\d\d)")
_DECIMAL_COMMA = re.compile(r"(?<![\w.,])(\d+),(\d{1,2})(?![^\W_]|[.,]\d)")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")
_ACRONYMS = re.compile(r"[A-Z]{2,}s")
_HUMPS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_CODE = re.compile(r"[a-z]+\d[a-z\d]*|(?=.{8})\d+[a-z][a-z\d]*")
# The server's parser reads 1e5 as a number and would cut 1e5f in two.
_EXPONENT = re.compile(r"\d+e\d+\D")
# In `os.path.get_size` and `self.user_id`.
_NAMED = re.compile(r"(?<![^.])[^._-]+(?:_+[^._-]+)+(?![^.])")
_ADDRESS = re.compile(r"(?<=:)[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_QUANTITY = re.compile(r"(\d+)([^\W\d_]{1,4})")
_HEXADECIMAL = re.compile(r"0x[0-9a-f]+")
_MOST_JOINED = 2
_SHORTEST_VERSION = 2


class Token(NamedTuple):
    """What a run of text between blanks is made of, in lower case."""

    words: tuple[str, ...]
    """Words in reading order."""
    variants: tuple[str, ...] = ()
    """Other spellings and parts of these words."""
    exact: tuple[str, ...] = ()
    """Whole tokens, each as often as it counts."""
    identifiers: tuple[str, ...] = ()
    """What names one thing: of `exact`, or words with capitals or digits inside."""
    short: tuple[str, ...] = ()
    """N-grams shorter than those among the words, for queries as short as they are."""


class _Parts:
    """Collects a token."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.variants: list[str] = []
        self.exact: list[str] = []
        self.identifiers: list[str] = []

    def add_word(self, word: str) -> None:
        """Add a lower-case word; one that the server would cut or drop is kept whole."""
        if _is_one_token(word):
            self.words.append(word)
        else:
            self.add_exact(word, 2)

    def add_variant(self, word: str) -> None:
        """Add another form of words that are there already."""
        if _is_one_token(word):
            self.variants.append(word)

    def add_exact(self, whole: str, count: int = 1) -> None:
        """Add a lexeme that is the whole of something and counts `count` times."""
        lexeme = _clip(fold(whole))
        self.exact += [lexeme] * count
        if any(character.isalpha() or character == "." for character in lexeme):
            self.identifiers.append(lexeme)

    def token(self) -> Token:
        return Token(
            tuple(self.words), tuple(self.variants), tuple(self.exact), tuple(self.identifiers)
        )


def analyze(token: str) -> str | Token:
    """Take a run of normalized text between blanks apart; a plain word is only itself."""
    plain = token.lstrip("([{\"'*`").rstrip(".,;:!?)]}\"'*`")
    if plain.isascii() and plain.isalpha() and not _has_humps(plain) and len(plain) <= MAX_LEXEME:
        return plain.lower()
    if SPACELESS.fullmatch(plain):
        words, short = ngrams(plain)
        return Token(tuple(words), short=tuple(short))
    if len(token) == 1 and unicodedata.category(token) == "So":
        return Token((), exact=(token,))
    return _take_apart(token)


def _is_one_token(word: str) -> bool:
    """Whether the server's parser takes the word whole."""
    return len(word) <= MAX_LEXEME and not _EXPONENT.match(fold(word))


def _clip(lexeme: str) -> str:
    """The lexeme, or its beginning and a digest when it is too long to store."""
    if len(lexeme) <= MAX_LEXEME:
        return lexeme
    return f"{lexeme[:64]}\u2026{md5(lexeme.encode(), usedforsecurity=False).hexdigest()}"


def _take_apart(token: str) -> Token:
    parts = _Parts()
    token = _GROUPED.sub(lambda match: _ungrouped(match.group()), token)
    token = _TIMESTAMP.sub(r"\1 ", token)
    for match in _URL.finditer(token):
        parts.add_exact(match.group().rstrip(".,;:!?)]'*/").lower(), 2)
    for address in _ADDRESS.findall(token):
        parts.add_exact(address.lower())
    for whole, fraction in _DECIMAL_COMMA.findall(token):
        parts.add_variant(f"{whole}.{fraction}")
    for head, core, last, tail in _TOKEN.findall(token):
        _add_token(parts, head, core, last, tail)
    return parts.token()


def _ungrouped(number: str) -> str:
    """`1,234.50`, `1.234,50` and `1'234.50` are 1234.50."""
    if re.search(r"\.\d{3},", number):
        number = number.replace(".", "").replace(",", ".")
    return number.replace(",", "").replace("'", "")


def _add_token(parts: _Parts, head: str, core: str, last: str, tail: str) -> None:
    lower = core.lower()
    last = (last or core).lower()
    if tail == "++" or (tail and len(last) == 1):
        parts.add_exact(last + tail, 2)
        if len(core) == 1:
            return
    if head == "@" and "/" not in core:
        head = ""
    pieces = _OUTER.split(core)
    if head or len(pieces) > 1:
        parts.add_exact(head + lower)
    if head == "." and "-" in pieces[0]:
        parts.add_exact(head + pieces[0].lower().partition("-")[0])
    for piece in pieces:
        _add_piece(parts, piece)


def _add_piece(parts: _Parts, piece: str) -> None:
    """Add a piece whose words are joined by nothing but hyphens, dots and underscores."""
    lower = piece.lower()
    words = _INNER.split(piece)
    if quantity := _QUANTITY.fullmatch(lower):
        parts.add_word(lower)
        for part in quantity.groups():
            parts.add_variant(part)
    elif len(words) == 1:
        _add_word(parts, piece)
    elif number := _DECIMAL.fullmatch(lower):
        parts.add_word(number[1])
    elif _INITIALS.fullmatch(piece):
        parts.add_word(lower.replace(".", ""))
    else:
        _add_compound(parts, lower, words)


def _add_compound(parts: _Parts, lower: str, words: list[str]) -> None:
    if version := _VERSION.match(lower):
        _add_version(parts, version[1])
        if version.end() == len(lower):
            return
    else:
        for inner in _INNER_VERSION.findall(lower):
            _add_version(parts, inner)
    if "." in lower or "_" in lower or not all(map(str.isalpha, words)):
        parts.add_exact(lower, 2)
        for named in _names_inside(lower):
            parts.add_exact(named)
    if len(words) <= _MOST_JOINED:
        parts.add_variant("".join(words).lower())
    for word in words:
        _add_word(parts, word)


def _names_inside(compound: str) -> list[str]:
    """`node.js` in `node.js-server`, `get_size` in `os.path.get_size`."""
    first, _, rest = compound.partition("-")
    if first[0].isalpha() and ("." in first or "_" in first) and rest.replace("-", "").isalpha():
        return [first]
    return _NAMED.findall(compound) if "." in compound else []


def _add_version(parts: _Parts, version: str) -> None:
    """Add a version whole and shorter: 2.5.1 is a 2.5 too."""
    numbers = version.split(".")
    if len(numbers) == _SHORTEST_VERSION:
        parts.add_variant(version)
        return
    parts.add_exact(version, 2)
    for size in range(_SHORTEST_VERSION, len(numbers)):
        parts.add_word(".".join(numbers[:size]))


def _add_word(parts: _Parts, word: str) -> None:
    lower = word.lower()
    parts.add_word(lower)
    if _HEXADECIMAL.fullmatch(lower):
        parts.identifiers.append(lower)
    elif _has_humps(word):
        parts.identifiers.append(lower)
        for hump in _HUMPS.findall(word):
            parts.add_variant(hump.lower())
    elif _CODE.fullmatch(lower):
        parts.identifiers.append(lower)


def _has_humps(word: str) -> bool:
    """Whether capitals inside the word part it: `getUserById`, but not `URLs`."""
    if word in (word.lower(), word.upper()) or word.istitle() or not word.isascii():
        return False
    return not _ACRONYMS.fullmatch(word)
