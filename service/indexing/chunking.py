"""Splits raw text along its structure into chunks of a bounded number of tokens."""

from collections.abc import Iterator, Sequence

from service.indexing.code import Definition, code_chunks, definitions
from service.indexing.headings import Outline, Path
from service.indexing.markdown import is_markdown
from service.indexing.splitting import MAX_SIZE, Chunk, Chunking, plain
from service.indexing.tables import markdown_chunks
from service.models import Generation
from service.providers.base import Embedder
from service.text import estimate_tokens


def chunking_of(generation: Generation, embedder: Embedder | None) -> Chunking:
    """The generation's chunking in tokens of its embedder, never beyond the embedder's window."""
    if embedder is None:
        return Chunking(generation.chunk_size, generation.chunk_overlap, estimate_tokens)
    whole = Chunking(MAX_SIZE, 0, embedder.count_tokens, embedder.max_tokens)
    return whole.resized(generation.chunk_size, generation.chunk_overlap)


def split_text(text: str, chunking: Chunking, *, name: str = "") -> list[Chunk]:
    """Chunks of a text in reading order; `name` is a file name or id that may tell its kind.

    All text but blanks is in some chunk. A chunk never has more than `size` tokens, unless a
    single character has.
    """
    return list(iter_chunks(text, chunking, name=name))


def iter_chunks(text: str, chunking: Chunking, *, name: str = "") -> Iterator[Chunk]:
    """The chunks one by one, with a bounded amount of work between them."""
    return _chunks(text, chunking, name, definitions(text, name))


def iter_placed(text: str, chunking: Chunking, *, name: str = "") -> Iterator[tuple[Chunk, Path]]:
    """The same, each with what it stands under."""
    parts = definitions(text, name)
    outline = Outline(text, name, parts)
    for chunk in _chunks(text, chunking, name, parts):
        yield chunk, outline.path(chunk.start, chunk.end)


def _chunks(
    text: str, chunking: Chunking, name: str, parts: Sequence[Definition]
) -> Iterator[Chunk]:
    if parts:
        return code_chunks(text, chunking, parts)
    if is_markdown(text, name):
        return markdown_chunks(text, chunking)
    return plain(text, 0, len(text), chunking)
