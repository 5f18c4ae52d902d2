"""Splits raw text along its structure into chunks of a bounded number of tokens."""

import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import TypeAlias

import msgspec
from semantic_text_splitter import MarkdownSplitter, TextSplitter

from service.models import Generation
from service.providers.base import Embedder

CountTokens: TypeAlias = Callable[[str], int]

CHARACTERS_A_TOKEN = 16
SLACK_TOKENS = 64
"""Tokens beside a cut that the text behind it may change."""

MARKDOWN = re.compile(
    r"^(?:#{1,6} \S|```|~~~|\|.+\|[ \t]*$|[-*+] \S|>[ \t]?\S|\d{1,9}[.)] \S|(?:=|-){3,}[ \t]*$)",
    re.MULTILINE,
)
JOINT_TOKENS = 2
HEADING = re.compile(r"\s*#{1,6} [^\n]*(?:\n\s*#{1,6} [^\n]*)*\s*")
MARKDOWN_SUFFIXES = frozenset({".md", ".markdown", ".mdx"})
PLAIN_SUFFIXES = frozenset(
    {
        *(".c", ".cc", ".cpp", ".cs", ".css", ".csv", ".go", ".h", ".hpp", ".html", ".ini"),
        *(".java", ".js", ".json", ".jsx", ".kt", ".log", ".lua", ".php", ".pl", ".ps1", ".py"),
        *(".r", ".rb", ".rs", ".scala", ".sh", ".sql", ".svelte", ".swift", ".toml", ".ts"),
        *(".tsv", ".tsx", ".txt", ".vue", ".xml", ".yaml", ".yml", ".zig"),
    }
)


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
    if not _is_markdown(text, name):
        return _split(TextSplitter, text, chunking)
    return list(_with_headings_attached(_split(MarkdownSplitter, text, chunking), text, chunking))


def estimate_tokens(text: str) -> int:
    """About the tokens of a multilingual model, for collections that have no embedder."""
    ascii_characters = len(text.encode("ascii", "ignore"))
    return -(-ascii_characters // 4) + -(-(len(text) - ascii_characters) // 2)


def _split(
    splitter: type[MarkdownSplitter] | type[TextSplitter],
    text: str,
    chunking: Chunking,
    start: int = 0,
) -> list[Chunk]:
    split = splitter.from_callback(_bounded(chunking), chunking.size, chunking.overlap)
    return [
        Chunk(piece, start + at, start + at + len(piece))
        for at, piece in split.chunk_indices(text)
        if piece.strip()
    ]


def _with_headings_attached(chunks: list[Chunk], text: str, chunking: Chunking) -> Iterator[Chunk]:
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
    room = chunking.size - chunking.count_tokens(text[first.start : last.end]) - JOINT_TOKENS
    if room <= chunking.size // 2:
        return [*headings, block]
    smaller = Chunking(room, min(chunking.overlap, room - 1), chunking.count_tokens)
    start = max(block.start, last.end)
    pieces = _split(TextSplitter, text[start : block.end], smaller, start)
    if not pieces:
        return [*headings, block]
    beginning, *rest = pieces
    joined = Chunk(text[first.start : beginning.end], first.start, beginning.end)
    fits = chunking.count_tokens(joined.text) <= chunking.size
    return [joined, *rest] if fits else [*headings, block]


def _bounded(chunking: Chunking) -> CountTokens:
    """Counts no more text than it takes to see that there are too many tokens."""

    def count(text: str) -> int:
        end = chunking.size * CHARACTERS_A_TOKEN
        while end < len(text):
            tokens = chunking.count_tokens(text[:end])
            if tokens > chunking.size + SLACK_TOKENS:
                return tokens
            end *= 4
        return chunking.count_tokens(text)

    return count


def _is_markdown(text: str, name: str) -> bool:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in MARKDOWN_SUFFIXES:
        return True
    return suffix not in PLAIN_SUFFIXES and MARKDOWN.search(text) is not None
