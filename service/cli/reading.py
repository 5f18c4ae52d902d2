"""Reads documents from files and folders; what cannot be read is named, with the reason."""

import codecs
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from service.cli.records import RecordError, as_document, looks_like_documents
from service.models import IncomingDocument

LINES = {".jsonl", ".ndjson"}
MARKDOWN = {".md", ".markdown", ".mdx"}
CONVERTED = {".pdf", ".docx", ".html", ".htm", ".xhtml"}
"""Sent as they are: the server makes text of them."""
MAX_FILE_BYTES = 100_000_000
FORMATS = {
    ".doc": "a Word file",
    ".odt": "an OpenDocument file",
    ".pptx": "a PowerPoint file",
    ".xlsx": "an Excel file",
}
SKIPPED_FOLDERS = {"node_modules", "__pycache__"}
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Unread(msgspec.Struct, frozen=True):
    """Something that gave no document; `failed` if it should have been one."""

    name: str
    reason: str
    failed: bool


class WholeFile(msgspec.Struct, frozen=True):
    """A file that the server converts."""

    doc_id: str
    path: Path


Found = IncomingDocument | WholeFile | Unread


def read_documents(path: Path) -> Iterator[Found]:
    """Documents of a file, or of all files below a folder in the order of their names."""
    if path.is_dir():
        for file in _files(path):
            yield from [file] if isinstance(file, Unread) else _read_file(file, path)
    else:
        yield from _read_file(path, path.parent)


def _files(folder: Path) -> Iterator[Path | Unread]:
    problems: list[OSError] = []
    for place, folders, names in os.walk(folder, onerror=problems.append):
        here = Path(place)
        folders.sort()
        for name in [name for name in folders if _is_hidden(name) or (here / name).is_symlink()]:
            folders.remove(name)
            reason = "folder of tools" if name in SKIPPED_FOLDERS else "hidden folder"
            if (here / name).is_symlink():
                reason = "link to a folder"
            yield Unread(_name(here / name, folder), reason, failed=False)
        yield from (here / name for name in sorted(names))
    for problem in problems:
        yield Unread(_name(Path(problem.filename), folder), _why(problem), failed=True)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in SKIPPED_FOLDERS


def _read_file(path: Path, root: Path) -> Iterator[Found]:
    name = _name(path, root)
    try:
        if path.exists() and not path.is_file():
            yield Unread(name, "no regular file", failed=False)
        elif path.suffix.lower() in LINES:
            yield from _read_lines(path, name)
        elif path.suffix.lower() in CONVERTED:
            yield _whole_file(path, name)
        else:
            yield from _read_whole(path, name)
    except OSError as error:
        yield Unread(name, _why(error), failed=True)


def _whole_file(path: Path, name: str) -> Found:
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        return Unread(name, "larger than 100 MB", failed=True)
    return WholeFile(name, path) if size else Unread(name, "empty", failed=False)


def _read_lines(path: Path, name: str) -> Iterator[Found]:
    empty = True
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if content := line.removeprefix(codecs.BOM_UTF8).strip():
                empty = False
                yield _record(content, f"{name}:{number}")
    if empty:
        yield Unread(name, "empty", failed=False)


def _record(line: bytes, name: str) -> Found:
    try:
        return as_document(_parse(line))
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, RecordError) else "is not valid JSON"
        return Unread(name, reason, failed=True)


def _read_whole(path: Path, name: str) -> Iterator[Found]:
    try:
        text = _decode(path.read_bytes(), path.suffix.lower())
    except _OtherEncodingError:
        yield _whole_file(path, name)  # the server finds out which
        return
    except _UnreadableError as error:
        yield Unread(name, str(error), failed=False)
        return
    records = _records(text) if path.suffix.lower() == ".json" else None
    if records is None:
        yield IncomingDocument(name, text=text, title=_title(text, path), source=str(path))
    else:
        yield from _from_array(records, name)


def _from_array(records: Iterable[Any], name: str) -> Iterator[Found]:
    for index, record in enumerate(records):
        try:
            yield as_document(record)
        except RecordError as error:
            yield Unread(f"{name}[{index}]", str(error), failed=True)


def _records(text: str) -> list[Any] | None:
    try:
        value = _parse(text)
    except (ValueError, RecursionError):
        return None
    return value if looks_like_documents(value) else None


def _parse(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


class _UnreadableError(Exception):
    """The bytes are no text."""


class _OtherEncodingError(Exception):
    """The bytes are text, but not in Unicode."""


def _decode(content: bytes, suffix: str) -> str:
    utf16 = content.startswith(UTF16_MARKS)
    try:
        text = content.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        if suffix in FORMATS or b"\0" in content:
            raise _UnreadableError(_binary(suffix)) from error
        raise _OtherEncodingError from error
    if "\0" in text:
        raise _UnreadableError(_binary(suffix))
    if not text.strip():
        raise _UnreadableError("empty")
    return text


def _binary(suffix: str) -> str:
    return f"{FORMATS[suffix]}: only text can be read" if suffix in FORMATS else "binary"


def _title(text: str, path: Path) -> str:
    """The first heading of a Markdown file, else the file's name."""
    if path.suffix.lower() in MARKDOWN:
        fenced = False
        for line in text.splitlines():
            if line.startswith(("```", "~~~")):
                fenced = not fenced
            elif not fenced and line.startswith("#") and (heading := line.strip("# \t")):
                return heading
    return path.name


def _name(path: Path, root: Path) -> str:
    relative = path.relative_to(root) if path.is_relative_to(root) else path
    return relative.as_posix().encode(errors="surrogateescape").decode(errors="replace")


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
