"""What is indexed of a chunk: its text, under the header that situates it. Pure."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from service.indexing.code import is_code
from service.indexing.headings import heading_context
from service.models import Contextual
from service.text import estimate_tokens


def contextualized(context: str | None, text: str) -> str:
    """The text with the header that situates it."""
    return f"{context}\n\n{text}" if context else text


def embedded_text(contextual: Contextual, context: str | None, text: str) -> str:
    """What is embedded of a chunk: with its header where headers are embedded."""
    return contextualized(context, text) if contextual.embedded else text


def recipe(contextual: Contextual) -> tuple[str, str | None, int] | None:
    """What decides about the headers; None where there are none."""
    if not contextual.enabled:
        return None
    return contextual.mode, contextual.model, contextual.version


class Headings:
    """Headers that need no model, for the chunks of one document."""

    def __init__(self, title: str | None, name: str) -> None:
        self._head = title or (name if is_code(name) else None)

    def of(self, text: str, above: Sequence[str]) -> str | None:
        """The header of a chunk, by what it stands under in the document."""
        return heading_context(self._head, above, text)


class HasText(Protocol):
    """A chunk, however it is stored."""

    @property
    def text(self) -> str:
        """Its own text."""
        ...


def whole_text(text: str | None, chunks: Iterable[HasText]) -> str:
    """The text of a document, put together from its chunks where only they are known."""
    return text or "\n\n".join(chunk.text for chunk in chunks)


def place_in(document: str, text: str, start: int | None) -> tuple[int, int]:
    """Where a chunk stands in its document, in characters; looked for where nobody knows."""
    begin = max(document.find(text), 0) if start is None else start
    return begin, begin + len(text)


def window_size(text: str, tokens: int) -> int:
    """Characters of a text that are so many tokens, by its average."""
    estimated = estimate_tokens(text)
    return len(text) if estimated <= tokens else max(len(text) * tokens // estimated, 1)


def window_start(length: int, window: int, start: int, end: int) -> int:
    """Where the part of a long text begins in which a piece of it is looked at, in characters.

    Parts begin half a window apart, so that neighbours share one and each piece is well inside.
    """
    if length <= window:
        return 0
    stride = max(window // 2, 1)
    centred = max(0, (start + end - window) // 2)
    return min((centred + stride // 2) // stride * stride, length - window)
