"""Turns JSON objects, as data sets and other tools write them, into documents."""

from collections.abc import Mapping
from typing import Any

import msgspec

from service.models import IncomingChunk, IncomingDocument

ID_NAMES = ("doc_id", "id", "_id")
TEXT_NAMES = ("text", "content")
CHUNK_ID_NAMES = ("id", "_id", "chunk_id")


class RecordError(ValueError):
    """The object is no document; one clear reason."""


def as_document(record: Any) -> IncomingDocument:
    """A document from a JSON object; raises `RecordError`.

    Of several names for the same thing the first one counts (`doc_id`, `id`, `_id`; `text`,
    `content`), and what is no field of a document becomes metadata.
    """
    if not isinstance(record, dict):
        raise RecordError("is no JSON object")
    rest = dict(record)
    doc_id = _take_id(rest, ID_NAMES)
    if doc_id is None:
        raise RecordError(f"has no {_either(ID_NAMES)}")
    chunks = _take_chunks(rest)
    text = _take_text(rest)
    if chunks is None and text is None:
        raise RecordError(f"has no {_either(TEXT_NAMES)}")
    return IncomingDocument(
        doc_id=doc_id,
        text=text if chunks is None else None,
        title=_take_string(rest, "title"),
        source=_take_string(rest, "source"),
        summary=_take_string(rest, "summary"),
        metadata=_take_metadata(rest),
        chunks=chunks,
    )


def looks_like_documents(value: Any) -> bool:
    """Whether a JSON file holds documents, not something else that is written in JSON."""
    if not isinstance(value, list) or not value:
        return False
    first = value[0]
    return isinstance(first, dict) and any(
        name in first for name in (*ID_NAMES, *TEXT_NAMES, "chunks")
    )


def _take_id(rest: dict[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = rest.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            del rest[name]
            return str(value)
    return None


def _take_text(rest: dict[str, Any]) -> str | None:
    for name in TEXT_NAMES:
        if isinstance(rest.get(name), str):
            return str(rest.pop(name))
    return None


def _take_string(rest: dict[str, Any], name: str) -> str | None:
    value = rest.get(name)
    if value is None or isinstance(value, str):
        rest.pop(name, None)
    return value if isinstance(value, str) and value.strip() else None


def _take_metadata(rest: dict[str, Any]) -> dict[str, Any] | None:
    """The object `metadata`, beside every field that has no meaning of its own."""
    given = rest.pop("metadata", None)
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise RecordError("metadata must be an object")
    return {**rest, **given} or None


def _take_chunks(rest: dict[str, Any]) -> list[IncomingChunk] | None:
    """Chunks that somebody made already; a list of anything else is metadata."""
    given = rest.get("chunks")
    if not isinstance(given, list) or not given or not all(isinstance(c, dict) for c in given):
        return None
    del rest["chunks"]
    return [_as_chunk(chunk, index) for index, chunk in enumerate(given)]


def _as_chunk(record: Mapping[str, Any], index: int) -> IncomingChunk:
    rest = dict(record)
    chunk_id = _take_id(rest, CHUNK_ID_NAMES)
    if chunk_id is None:
        raise RecordError(f"chunk {index} has no {_either(CHUNK_ID_NAMES)}")
    fields: dict[str, Any] = {"id": chunk_id, "text": _take_text(rest)}
    fields |= {name: rest.pop(name) for name in ("vector", "position") if name in rest}
    fields["metadata"] = _take_metadata(rest)
    try:
        return msgspec.convert(fields, IncomingChunk)
    except msgspec.ValidationError as error:
        raise RecordError(f"chunk {index}: {str(error)[:1].lower()}{str(error)[1:]}") from error


def _either(names: tuple[str, ...]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1]
