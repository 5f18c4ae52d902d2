"""Where a chunk stands in its document: headings, or enclosing definitions of code. Pure."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from service.indexing.code import Definition
from service.indexing.markdown import Fences, is_markdown

HEADING_VERSION = 2
"""To be raised when equal documents get other headers than before."""
SEPARATOR = " > "
MAX_CHARACTERS = 400
MAX_PART = 120
MAX_DEPTH = 6
HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]([^\n]*)$", re.MULTILINE)

Path: TypeAlias = tuple[str, ...]


class Outline:
    """The parts of a document, each with what encloses it."""

    def __init__(self, text: str, name: str, definitions: Sequence[Definition] = ()) -> None:
        parts = list(_code_parts(text, definitions))
        if not parts and is_markdown(text, name):
            parts = list(_sections(text))
        self._at = [at for at, _ in parts]
        self._paths = [path for _, path in parts]

    def path(self, start: int, end: int) -> Path:
        """What encloses the text between two places: the parts that both ends are in."""
        first, last = self._path_at(start), self._path_at(max(start, end - 1))
        shared = 0
        while shared < min(len(first), len(last)) and first[shared] == last[shared]:
            shared += 1
        return first[:shared]

    def _path_at(self, at: int) -> Path:
        found = bisect_right(self._at, at)
        return self._paths[found - 1] if found else ()


def heading_context(title: str | None, path: Sequence[str], text: str) -> str | None:
    """The header of a chunk: title and headings, but for those that the chunk begins with."""
    parts = [part for part in (_short(title or ""), *path) if part]
    # A title that is also the first heading is said once.
    unique = [part for at, part in enumerate(parts) if at == 0 or part != parts[at - 1]]
    while unique and _begins_with(text, unique[-1]):
        unique.pop()
    while len(unique) > 1 and len(SEPARATOR.join(unique)) > MAX_CHARACTERS:
        del unique[1]
    return SEPARATOR.join(unique)[:MAX_CHARACTERS] or None


def _begins_with(text: str, part: str) -> bool:
    first_line = text.lstrip(" \t\r\n#").partition("\n")[0]
    return first_line.strip(" \t\r#").startswith(part)


def _sections(text: str) -> Iterator[tuple[int, Path]]:
    """Where each section begins and the headings that it is under."""
    above: list[tuple[int, str]] = []
    for at, level, label in _headings(text):
        while above and above[-1][0] >= level:
            above.pop()
        above.append((level, label))
        yield at, tuple(label for _, label in above[-MAX_DEPTH:])


def _headings(text: str) -> Iterator[tuple[int, int, str]]:
    fences = Fences(text, 0, len(text), None)
    for found in HEADING.finditer(text):
        if (label := _short(_unclosed(found[2]))) and fences.around(found.start()) is None:
            yield found.start(), len(found[1]), label


def _unclosed(words: str) -> str:
    """The words of a heading without the marks that may close it; those of `C#` belong to it."""
    words = words.strip()
    bare = words.rstrip("#")
    return bare if not bare or bare[-1].isspace() else words


def _code_parts(text: str, definitions: Sequence[Definition]) -> Iterator[tuple[int, Path]]:
    """Where each definition begins or ends, and what the code from there on is in."""
    around: list[Definition] = []
    for part in definitions:
        yield from _ended(around, part.start)
        around.append(part)
        yield part.start, _labels(around)
    yield from _ended(around, len(text))


def _ended(around: list[Definition], at: int) -> Iterator[tuple[int, Path]]:
    while around and around[-1].end <= at:
        end = around.pop().end
        yield end, _labels(around)


def _labels(around: list[Definition]) -> Path:
    return tuple(part.label for part in around[-MAX_DEPTH:])


def _short(label: str) -> str:
    return " ".join(label.split())[:MAX_PART]
