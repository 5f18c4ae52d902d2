"""Splits Markdown with long tables: those between their rows, each part below the header."""

from collections.abc import Iterable, Iterator

from service.indexing.markdown import Table, headings_above, tables
from service.indexing.splitting import JOINT_TOKENS, Chunk, Chunking, markdown, plain

HEADER_SHARE = 2
"""A header that takes more than one of so many parts of a chunk is not repeated."""
LEAD_SHARE = 4
"""Headings above a table that take more than that stay apart."""


def markdown_chunks(text: str, chunking: Chunking) -> Iterator[Chunk]:
    """Chunks of a Markdown text; a table that fits is whole."""
    at = 0
    for table in tables(text):
        if chunking.tokens(text[table.start : table.end]) <= chunking.size:
            continue
        lead = headings_above(text, at, table.start)
        if chunking.tokens(text[lead : table.start]) > chunking.size // LEAD_SHARE:
            lead = table.start
        yield from markdown(text, at, lead, chunking)
        yield from _table_chunks(text, lead, table, chunking)
        at = table.end
    yield from markdown(text, at, len(text), chunking)


def _table_chunks(text: str, lead: int, table: Table, chunking: Chunking) -> Iterator[Chunk]:
    header = text[table.start : table.rows]
    room = chunking.size - chunking.tokens(header) - JOINT_TOKENS
    first_room = chunking.size - chunking.tokens(text[lead : table.rows]) - JOINT_TOKENS
    if room < chunking.size // HEADER_SHARE or first_room < 1:
        yield from plain(text, lead, table.end, chunking)
        return
    at, end, above, left = lead, table.rows, "", first_room
    for row in _lines(text, table.rows, table.end):
        tokens = chunking.tokens(text[end:row])
        if tokens > left and end > max(at, table.rows):
            yield from _checked(Chunk(above + text[at:end], at, end), text, chunking)
            at, above, left = end, header, room
        if tokens > left:
            pieces = plain(text, end, row, chunking.resized(left))
            yield from _long_row(text, at, end, header, pieces)
            at, above, left = row, header, room
        else:
            left -= tokens
        end = row
    if end > at:
        yield from _checked(Chunk(above + text[at:end], at, end), text, chunking)


def _long_row(
    text: str, at: int, start: int, header: str, pieces: Iterable[Chunk]
) -> Iterator[Chunk]:
    """A row by parts, each below the header; what stands from `at` is above the first."""
    for piece in pieces:
        first = at < start
        begin = at if first else piece.start
        yield Chunk(text[at : piece.end] if first else header + piece.text, begin, piece.end)
        at = start


def _lines(text: str, start: int, stop: int) -> Iterator[int]:
    """Where each line ends."""
    while start < stop:
        start = text.find("\n", start, stop) + 1 or stop
        yield start


def _checked(chunk: Chunk, text: str, chunking: Chunking) -> Iterator[Chunk]:
    """The chunk without blanks at its end; split should it have more tokens than its rows."""
    if chunking.tokens(chunk.text.rstrip()) > chunking.size:
        yield from plain(text, chunk.start, chunk.end, chunking)
    else:
        blanks = len(chunk.text) - len(chunk.text.rstrip())
        yield Chunk(chunk.text.rstrip(), chunk.start, chunk.end - blanks)
