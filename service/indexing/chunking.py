"""Splits raw text along its structure into chunks of a bounded number of tokens."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec
from semantic_text_splitter import MarkdownSplitter, TextSplitter

from service.indexing.markdown import HEADING, Fence, Fences, begins_block, is_markdown
from service.models import Generation
from service.providers.base import Embedder
from service.text import estimate_tokens

CountTokens: TypeAlias = Callable[[str], int]

CHARACTERS_A_TOKEN = 16
"""More than tokens of prose have."""
LEAST_REACH = 1024
CHUNKS_AT_ONCE = 4
JOINT_TOKENS = 2


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a text and where it starts and ends in it, in characters."""

    text: str
    start: int
    end: int


class Chunking(msgspec.Struct, frozen=True):
    """How text is split: tokens of a chunk at most, tokens that neighbours may share."""

    size: int
    overlap: int
    count_tokens: CountTokens


def chunking_of(generation: Generation, embedder: Embedder | None) -> Chunking:
    """The generation's chunking in tokens of its embedder, never beyond the embedder's window."""
    if embedder is None:
        return Chunking(generation.chunk_size, generation.chunk_overlap, estimate_tokens)
    size = min(generation.chunk_size, embedder.max_tokens)
    return Chunking(size, min(generation.chunk_overlap, size - 1), embedder.count_tokens)


def split_text(text: str, chunking: Chunking, *, name: str = "") -> list[Chunk]:
    """Chunks of a text in reading order; `name` is a file name or id that may tell its kind.

    All text but blanks is in some chunk. A chunk never has more than `size` tokens, unless a
    single character has.
    """
    return list(iter_chunks(text, chunking, name=name))


def iter_chunks(text: str, chunking: Chunking, *, name: str = "") -> Iterator[Chunk]:
    """The chunks one by one, with a bounded amount of work between them."""
    if not is_markdown(text, name):
        return _advancing(_plain(text, chunking))
    chunks = _advancing(_markdown(text, chunking))
    return _with_headings_attached(chunks, text, chunking)


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


def _plain(text: str, chunking: Chunking) -> Iterator[Chunk]:
    start = 0
    while start < len(text):
        end = _reach(text, start, chunking)
        chunks = _split(TextSplitter, text, start, end, chunking)
        if end < len(text):
            chunks, end = _settled(chunks, text, start, end, len(chunks) - 1)
        yield from chunks
        start = end


def _markdown(text: str, chunking: Chunking) -> Iterator[Chunk]:
    start = 0
    fence: Fence = None
    while start < len(text):
        end = _reach(text, start, chunking)
        fences = Fences(text, start, end, fence)
        block_end = fences.first_end if fence is not None else None
        end = block_end or end
        splitter = MarkdownSplitter if fence is None else TextSplitter
        chunks = _split(splitter, text, start, end, chunking)
        if end < len(text) and block_end is None:
            chunks, end = _settled(chunks, text, start, end, _last_block(chunks, text, fences))
        yield from chunks
        start, fence = end, fences.around(end)


def _reach(text: str, start: int, chunking: Chunking) -> int:
    """Where to end what is split at once: a few chunks further on.

    The splitter's time grows with the square of it, and it keeps the interpreter lock.
    """
    most = chunking.size * CHUNKS_AT_ONCE
    reach = max(chunking.size * CHARACTERS_A_TOKEN, LEAST_REACH)
    while (
        reach > LEAST_REACH
        and (tokens := chunking.count_tokens(text[start : start + reach])) > most
    ):
        reach = max(min(reach * most // tokens, reach * 7 // 8), LEAST_REACH)
    return min(start + reach, len(text))


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
    smaller = Chunking(room, min(chunking.overlap, room - 1), chunking.count_tokens)
    start = max(block.start, last.end)
    pieces = _split(TextSplitter, text, start, block.end, smaller)
    if not pieces:
        return [*headings, block]
    beginning, *rest = pieces
    joined = Chunk(text[first.start : beginning.end], first.start, beginning.end)
    fits = chunking.count_tokens(joined.text) <= chunking.size
    return [joined, *rest] if fits else [*headings, block]
