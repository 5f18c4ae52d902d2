"""Where the words of a query stand in a text: spans and marked fragments; pure."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence

from service.search.response import Highlight

MARGIN = 80
"""Characters shown on each side of a match."""
MAX_FRAGMENTS = 5
MAX_SPANS = 200
OPENING, CLOSING = "<em>", "</em>"

_TOKEN = re.compile(r"\S+")
_EDGES = "\"'`.,;:!?()[]{}<>*\u201c\u201d\u2018\u2019\u00ab\u00bb\u3001\u3002\uff0c\uff1f\uff01"
Span = tuple[int, int]


def highlight(
    text: str, wanted: Collection[str], lexemes_of: Callable[[str], Collection[str]]
) -> Highlight:
    """The spans of `text` whose lexemes are wanted, and what stands around them.

    `lexemes_of` gives the lexemes of a token. A token of a script without blanks is marked where
    a wanted n-gram stands in it, any other as a whole. Offsets count characters.
    """
    spans = _merged(span for span in _spans(text, wanted, lexemes_of))[:MAX_SPANS]
    return Highlight(spans=spans, fragments=_fragments(text, spans))


def tokens_of(text: str) -> list[str]:
    """The tokens of a text whose lexemes `highlight` will ask for."""
    return _TOKEN.findall(text)


def _spans(
    text: str, wanted: Collection[str], lexemes_of: Callable[[str], Collection[str]]
) -> Iterator[Span]:
    for match in _TOKEN.finditer(text):
        token = match[0]
        found = set(lexemes_of(token)).intersection(wanted)
        if not found:
            continue
        grams = [] if token.isascii() else list(_occurrences(token, found))
        for start, end in grams or [_core(token)]:
            yield match.start() + start, match.start() + end


def _occurrences(token: str, lexemes: Collection[str]) -> Iterator[Span]:
    lowered = token.lower()
    if len(lowered) != len(token):
        return
    for lexeme in lexemes:
        start = lowered.find(lexeme)
        while start >= 0:
            yield start, start + len(lexeme)
            start = lowered.find(lexeme, start + 1)


def _core(token: str) -> Span:
    start = len(token) - len(token.lstrip(_EDGES))
    end = len(token.rstrip(_EDGES))
    return (start, end) if start < end else (0, len(token))


def _merged(spans: Iterator[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _fragments(text: str, spans: Sequence[Span]) -> list[str]:
    windows = _merged(
        (max(0, start - MARGIN), min(len(text), end + MARGIN)) for start, end in spans
    )
    return [_marked(text, window, spans) for window in windows[:MAX_FRAGMENTS]]


def _marked(text: str, window: Span, spans: Sequence[Span]) -> str:
    parts, at = [], window[0]
    for start, end in spans:
        if window[0] <= start and end <= window[1]:
            parts += [text[at:start], OPENING, text[start:end], CLOSING]
            at = end
    return "".join([*parts, text[at : window[1]]])
