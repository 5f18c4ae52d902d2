"""Where a chunk stands in its document: headings, or enclosing definitions of code. Pure."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import PurePosixPath

from service.indexing.markdown import Fences, is_markdown

HEADING_VERSION = 1
"""To be raised when equal documents get other headers than before."""
SEPARATOR = " > "
MAX_CHARACTERS = 400
MAX_PART = 120
MAX_DEPTH = 6
HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+([^\n]*?)[ \t]*#*[ \t]*$", re.MULTILINE)
DEFINITION = re.compile(
    r"^([ \t]*)(?:(?:export|default|public|private|protected|internal|static|final|abstract|async"
    r"|pub(?:\([a-z]+\))?|unsafe|override|virtual|inline|data|sealed|open)[ \t]+)*"
    r"((?:def|class|function|func|fn|struct|enum|trait|impl|interface|module|namespace|object"
    r"|record|type|sub|proc)\b[^\n]*)$",
    re.MULTILINE,
)
CODE_SUFFIXES = frozenset(
    {
        *(".c", ".cc", ".cpp", ".cs", ".go", ".h", ".hpp", ".java", ".js", ".jsx", ".kt", ".lua"),
        *(".php", ".pl", ".py", ".r", ".rb", ".rs", ".scala", ".sh", ".sql", ".svelte", ".swift"),
        *(".ts", ".tsx", ".vue", ".zig"),
    }
)


class Outline:
    """The parts of a document, each with what encloses it."""

    def __init__(self, text: str, name: str) -> None:
        self._at: list[int] = []
        self._paths: list[tuple[str, ...]] = []
        if PurePosixPath(name).suffix.lower() in CODE_SUFFIXES:
            parts = _definitions(text)
        elif is_markdown(text, name):
            parts = _headings(text)
        else:
            return
        open_parts: list[tuple[int, str]] = []
        for at, level, label in parts:
            while open_parts and open_parts[-1][0] >= level:
                open_parts.pop()
            open_parts.append((level, label))
            self._at.append(at)
            self._paths.append(tuple(label for _, label in open_parts[-MAX_DEPTH:]))

    def path(self, start: int, end: int) -> tuple[str, ...]:
        """What encloses the text between two places: the parts that both ends are in."""
        first, last = self._path_at(start), self._path_at(max(start, end - 1))
        shared = 0
        while shared < min(len(first), len(last)) and first[shared] == last[shared]:
            shared += 1
        return first[:shared]

    def _path_at(self, at: int) -> tuple[str, ...]:
        found = bisect_right(self._at, at)
        return self._paths[found - 1] if found else ()


def heading_context(title: str | None, path: tuple[str, ...], text: str) -> str | None:
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


def _headings(text: str) -> Iterator[tuple[int, int, str]]:
    fences = Fences(text, 0, len(text), None)
    for found in HEADING.finditer(text):
        if (label := _short(found[2])) and fences.around(found.start()) is None:
            yield found.start(), len(found[1]), label


def _definitions(text: str) -> Iterator[tuple[int, int, str]]:
    for found in DEFINITION.finditer(text):
        label = _short(found[2].rstrip(" \t\r{:=("))
        yield found.start(), len(found[1].expandtabs(4)), label


def _short(label: str) -> str:
    return " ".join(label.split())[:MAX_PART]
