"""What indexing has to know of Markdown: whether a text is, and where it may be taken apart."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TypeAlias

import msgspec

MARKDOWN = re.compile(
    r"^(?:#{1,6} \S|```|~~~|\|.+\|[ \t]*$|[-*+] \S|>[ \t]?\S|\d{1,9}[.)] \S|(?:=|-){3,}[ \t]*$)",
    re.MULTILINE,
)
HEADING = re.compile(r"\s*+#{1,6} [^\n]*+(?:\n\s*+#{1,6} [^\n]*+)*+\s*+")
HEADING_MARK = re.compile(r"#{1,6} ")
LINE_OF_HEADING = re.compile(r" {0,3}#{1,6} [^\n]*")
DELIMITER_ROW = re.compile(r"[ \t]*+\|?[ \t]*+:?-++:?[ \t]*+(?:\|[ \t]*+:?-++:?[ \t]*+)*+\|?\s*+")
MAX_DELIMITER = 4_096
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
SCAN_CHARACTERS = 65_536
"""Searched at once: a search keeps every other thread waiting."""
MARKDOWN_SUFFIXES = frozenset({".md", ".markdown", ".mdx"})
PLAIN_SUFFIXES = frozenset(
    {
        *(".c", ".cc", ".cpp", ".cs", ".css", ".csv", ".go", ".h", ".hpp", ".html", ".ini"),
        *(".java", ".js", ".json", ".jsx", ".kt", ".log", ".lua", ".php", ".pl", ".ps1", ".py"),
        *(".r", ".rb", ".rs", ".scala", ".sh", ".sql", ".svelte", ".swift", ".toml", ".ts"),
        *(".tsv", ".tsx", ".txt", ".vue", ".xml", ".yaml", ".yml", ".zig"),
    }
)

Fence: TypeAlias = str | None
"""The mark that opened the code block a place is in."""


def is_markdown(text: str, name: str) -> bool:
    """Whether a text is Markdown, by its file name or else by its looks."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in MARKDOWN_SUFFIXES:
        return True
    return suffix not in PLAIN_SUFFIXES and _has_marks(text)


def begins_block(text: str, at: int) -> bool:
    """Whether a paragraph, list or heading begins there, at the margin."""
    if text[at].isspace():
        return False
    before = text[max(at - 4, 0) : at].replace("\r", "")
    return before.endswith("\n\n") or (
        before.endswith("\n") and HEADING_MARK.match(text, at) is not None
    )


class Table(msgspec.Struct, frozen=True):
    """Where a table of Markdown stands, in characters; line ends belong to their lines."""

    start: int
    rows: int
    """Where the rows begin, below the header and its rule."""
    end: int


def tables(text: str) -> Iterator[Table]:
    """The tables outside of code blocks, in reading order."""
    fences: Fences | None = None
    at = 0
    while (bar := text.find("|", at)) >= 0:
        start = text.rfind("\n", at, bar) + 1 or at
        rule = _line_end(text, bar)
        rows = _line_end(text, rule)
        at = rule
        if not _is_delimiter_row(text, rule, rows):
            continue
        fences = fences or Fences(text, 0, len(text), None)
        if fences.around(start) is None:
            at = _rows_end(text, rows)
            yield Table(start, rows, at)


def headings_above(text: str, floor: int, at: int) -> int:
    """Where the headings begin that stand right above a place, not before `floor`."""
    start = end = at
    while end > floor:
        line = text.rfind("\n", floor, end - 1) + 1 or floor
        words = text[line:end].strip()
        if words and not LINE_OF_HEADING.fullmatch(text[line:end].rstrip()):
            break
        start = line if words else start
        end = line
    return start


class Fences:
    """The fenced code blocks of a part of a text that begins within `fence`, if in any."""

    def __init__(self, text: str, start: int, end: int, fence: Fence) -> None:
        self._at, self._fence = [start], [fence]
        for at, after in _fences(text, start, end, fence):
            self._at.append(at)
            self._fence.append(after)

    def around(self, at: int) -> Fence:
        """The block that a place is in."""
        return self._fence[bisect_right(self._at, at) - 1]

    @property
    def first_end(self) -> int | None:
        """Where the block that the part begins in ends."""
        return self._at[1] if len(self._at) > 1 else None


def _fences(text: str, start: int, end: int, fence: Fence) -> Iterator[tuple[int, Fence]]:
    for line in FENCE.finditer(text, start, end):
        mark, rest = line[1], line[2]
        if fence is None:
            if mark[0] == "~" or "`" not in rest:
                fence = mark
                yield line.end(), fence
        elif mark.startswith(fence) and not rest.strip():
            fence = None
            yield line.end(), fence


def _line_end(text: str, at: int) -> int:
    return text.find("\n", at) + 1 or len(text)


def _is_delimiter_row(text: str, start: int, end: int) -> bool:
    if not 0 < end - start <= MAX_DELIMITER:
        return False
    row = text[start:end]
    return "|" in row and DELIMITER_ROW.fullmatch(row) is not None


def _rows_end(text: str, at: int) -> int:
    while at < len(text):
        end = _line_end(text, at)
        bar = text.find("|", at, end)
        if bar < 0:
            break
        at = end
    return at


def _has_marks(text: str) -> bool:
    start = 0
    while start < len(text):
        end = min(start + SCAN_CHARACTERS, len(text))
        found = MARKDOWN.search(text, start, end)
        if found and (found.end() < end or text[end : end + 1] in ("", "\n")):
            return True
        # A line that the last part cut is seen once more, unless it is longer than a part.
        start = max(text.rfind("\n", start, end) + 1, start + SCAN_CHARACTERS // 2)
    return False
