"""Splits raw text along its structure into chunks of a bounded number of tokens."""

import re
from collections.abc import Callable
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
MARKDOWN_SUFFIXES = frozenset({".md", ".markdown", ".mdx"})
PLAIN_SUFFIXES = frozenset(
    [
        ".c",
        ".cc",
        ".cpp",
        ".cs",
        ".css",
        ".csv",
        ".go",
        ".h",
        ".hpp",
        ".html",
        ".ini",
        ".java",
        ".js",
        ".json",
        ".jsx",
        ".kt",
        ".log",
        ".lua",
        ".php",
        ".pl",
        ".ps1",
        ".py",
        ".r",
        ".rb",
        ".rs",
        ".scala",
        ".sh",
        ".sql",
        ".svelte",
        ".swift",
        ".toml",
        ".ts",
        ".tsv",
        ".tsx",
        ".txt",
        ".vue",
        ".xml",
        ".yaml",
        ".yml",
        ".zig",
    ]
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
    splitter = MarkdownSplitter if _is_markdown(text, name) else TextSplitter
    split = splitter.from_callback(_bounded(chunking), chunking.size, chunking.overlap)
    return [Chunk(piece, at, at + len(piece)) for at, piece in split.chunk_indices(text)]


def estimate_tokens(text: str) -> int:
    """About the tokens of a multilingual model, for collections that have no embedder."""
    ascii_characters = len(text.encode("ascii", "ignore"))
    return -(-ascii_characters // 4) + -(-(len(text) - ascii_characters) // 2)


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
