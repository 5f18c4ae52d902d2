"""Splits prose, plain or Markdown, into chunks at its headings, paragraphs, sentences and words."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec
from semantic_text_splitter import MarkdownSplitter, TextSplitter

from service.indexing.markdown import HEADING, Fence, Fences, begins_block

CountTokens: TypeAlias = Callable[[str], int]

CHARACTERS_A_TOKEN = 16
"""More than tokens of prose have."""
LEAST_REACH = 1024
CHUNKS_AT_ONCE = 4
JOINT_TOKENS = 2
MAX_SIZE = 8_192
OVERLAP_PART = 8
"""Without an overlap of its own a chunk shares this part of its size with the next."""


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a text and where it starts and ends in it, in characters.

    `text` is what stands there; a later part of a long table has a copy of the header above it.
    """

    text: str
    start: int
    end: int


class Chunking(msgspec.Struct, frozen=True):
    """How text is split: tokens of a chunk at most, tokens that neighbours may share."""

    size: int
    overlap: int
    count_tokens: CountTokens
    window: int = MAX_SIZE
    """Tokens that the embedder reads: no chunk has more."""

    def tokens(self, text: str) -> int:
        """Tokens of a text; more than a chunk holds for one that is too long to be counted."""
        if len(text) > self.size * CHARACTERS_A_TOKEN:
            return self.size + 1
        return self.count_tokens(text)

    def resized(self, size: int, overlap: int = 0) -> "Chunking":
        """The same with another size and overlap, within the window."""
        size = min(size, self.window)
        return Chunking(size, min(overlap, size - 1), self.count_tokens, self.window)


def plain(text: str, start: int, stop: int, chunking: Chunking) -> Iterator[Chunk]:
    """Chunks of a part of a text, without regard to any markup."""
    return _advancing(_plain(text, start, stop, chunking))


def markdown(text: str, start: int, stop: int, chunking: Chunking) -> Iterator[Chunk]:
    """Chunks of a part of a Markdown text that begins outside of code blocks."""
    chunks = _advancing(_blocks(text, start, stop, chunking))
    return _advancing(_with_headings_attached(chunks, text, chunking))


def _advancing(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Without those that lie within a neighbour."""
    last: Chunk | None = None
    for chunk in chunks:
        if last is None:
            last = chunk
        elif chunk.end > last.end:
            if chunk.start > last.start:
                yield last
            last = chunk
    if last is not None:
        yield last


def _plain(text: str, start: int, stop: int, chunking: Chunking) -> Iterator[Chunk]:
    while start < stop:
        end = _reach(text, start, stop, chunking)
        chunks = _split(TextSplitter, text, start, end, chunking)
        if end < stop:
            chunks, end = _settled(chunks, text, start, end, len(chunks) - 1)
        yield from chunks
        start = end


def _blocks(text: str, start: int, stop: int, chunking: Chunking) -> Iterator[Chunk]:
    fence: Fence = None
    while start < stop:
        end = _reach(text, start, stop, chunking)
        fences = Fences(text, start, end, fence)
        block_end = fences.first_end if fence is not None else None
        end = block_end or end
        splitter = MarkdownSplitter if fence is None else TextSplitter
        chunks = _split(splitter, text, start, end, chunking)
        if end < stop and block_end is None:
            chunks, end = _settled(chunks, text, start, end, _last_block(chunks, text, fences))
        yield from chunks
        start, fence = end, fences.around(end)


def _reach(text: str, start: int, stop: int, chunking: Chunking) -> int:
    """Where to end what is split at once: a few chunks further on.

    The splitter's time grows with the square of it, and it keeps the interpreter lock.
    """
    most = chunking.size * CHUNKS_AT_ONCE
    reach = max(chunking.size * CHARACTERS_A_TOKEN, LEAST_REACH)
    while (
        reach > LEAST_REACH
        and (tokens := chunking.count_tokens(text[start : min(start + reach, stop)])) > most
    ):
        reach = max(min(reach * most // tokens, reach * 7 // 8), LEAST_REACH)
    return min(start + reach, stop)


def _split(
    splitter: type[MarkdownSplitter] | type[TextSplitter],
    text: str,
    start: int,
    end: int,
    chunking: Chunking,
) -> list[Chunk]:
    split = splitter.from_callback(chunking.count_tokens, chunking.size, chunking.overlap)
    return _chunks(split, text, start, end)


def _chunks(split: MarkdownSplitter | TextSplitter, text: str, start: int, end: int) -> list[Chunk]:
    return [
        Chunk(piece, start + at, start + at + len(piece))
        for at, piece in split.chunk_indices(text[start:end])
        if piece.strip()
    ]


def _settled(
    chunks: list[Chunk], text: str, start: int, end: int, last: int
) -> tuple[list[Chunk], int]:
    """The chunks that the text behind `end` cannot change, and where to go on.

    From the beginning of the first other one: that is what makes neighbours overlap.
    """
    if not chunks:
        return [], end
    if (place := chunks[last].start) > start:
        return chunks[:last], place
    # One chunk reaches from end to end: few tokens for so many characters.
    parts = _chunks(TextSplitter((end - start) // 2), text, start, end)
    return parts[:1], parts[0].end


def _last_block(chunks: list[Chunk], text: str, fences: Fences) -> int:
    """The last chunk that means the same without what is above it, or just the last."""
    for at in range(len(chunks) - 1, 0, -1):
        start = chunks[at].start
        if begins_block(text, start) and fences.around(start) is None:
            return at
    return len(chunks) - 1


def _with_headings_attached(
    chunks: Iterable[Chunk], text: str, chunking: Chunking
) -> Iterator[Chunk]:
    """Headings above a block too long to share their chunk go with the block's beginning."""
    headings: list[Chunk] = []
    for chunk in chunks:
        if HEADING.fullmatch(chunk.text):
            headings.append(chunk)
        elif headings:
            yield from _attached(headings, chunk, text, chunking)
            headings = []
        else:
            yield chunk
    yield from headings


def _attached(headings: list[Chunk], block: Chunk, text: str, chunking: Chunking) -> list[Chunk]:
    first, last = headings[0], headings[-1]
    if last.end - first.start > chunking.size * CHARACTERS_A_TOKEN:
        return [*headings, block]
    room = chunking.size - chunking.count_tokens(text[first.start : last.end]) - JOINT_TOKENS
    if room <= chunking.size // 2:
        return [*headings, block]
    smaller = chunking.resized(room, chunking.overlap)
    start = max(block.start, last.end)
    pieces = _split(TextSplitter, text, start, block.end, smaller)
    if not pieces:
        return [*headings, block]
    beginning, *rest = pieces
    joined = Chunk(text[first.start : beginning.end], first.start, beginning.end)
    fits = chunking.count_tokens(joined.text) <= chunking.size
    return [joined, *rest] if fits else [*headings, block]
