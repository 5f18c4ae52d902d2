"""What a request for indexing may hold; everything outside is a 400 that names the field."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec
import numpy as np

from service.errors import InvalidRequestError, Violation
from service.models import Generation, IncomingChunk, IncomingDocument, Metadata

MAX_DOCUMENTS = 1_000
MAX_CHUNKS = 10_000
MAX_ID_CHARACTERS = 512
MAX_LABEL_CHARACTERS = 2_048
MAX_TEXT_CHARACTERS = 10_000_000
MAX_METADATA_BYTES = 65_536
MAX_METADATA_DEPTH = 16
MAX_POSITION = 2**31 - 1
MAX_HALF = 65_504.0
MAX_FILES = 100
MAX_FILE_BYTES = 100_000_000
"""Of all files of a request together."""
MAX_VIOLATIONS = 20

Violations = Iterator[Violation]


class Labelled(Protocol):
    """What a document is filed under."""

    @property
    def doc_id(self) -> str:
        """Its id."""
        ...

    @property
    def title(self) -> str | None:
        """Its title."""
        ...

    @property
    def source(self) -> str | None:
        """Where it is from."""
        ...

    @property
    def metadata(self) -> Metadata | None:
        """What filters see."""
        ...


def validate_documents(documents: Sequence[IncomingDocument], generation: Generation) -> None:
    """Check the documents of one request; raises `InvalidRequestError` with what is wrong."""
    if not 1 <= len(documents) <= MAX_DOCUMENTS:
        raise InvalidRequestError.at("/documents", f"a request has 1 to {MAX_DOCUMENTS} documents")
    if found := first_violations(_documents(documents, generation)):
        raise InvalidRequestError.of(found)


def first_violations(violations: Violations) -> tuple[Violation, ...]:
    """As many as an answer names."""
    return tuple(islice(violations, MAX_VIOLATIONS))


def check_labels(labelled: Labelled, pointer: str) -> Violations:
    """What is wrong with the id, title, source and metadata of a document."""
    yield from check_doc_id(labelled.doc_id, f"{pointer}/doc_id")
    for name in ("title", "source"):
        value: str | None = getattr(labelled, name)
        if value is not None and len(value) > MAX_LABEL_CHARACTERS:
            yield Violation(f"{pointer}/{name}", f"has at most {MAX_LABEL_CHARACTERS} characters")
    if labelled.metadata is not None:
        yield from check_metadata(labelled.metadata, f"{pointer}/metadata")


def check_metadata(metadata: Metadata, pointer: str) -> Violations:
    """What is wrong with the metadata of a document or chunk."""
    if _depth(metadata) > MAX_METADATA_DEPTH:
        yield Violation(pointer, f"metadata nests at most {MAX_METADATA_DEPTH} deep")
        return
    if not _representable(metadata):
        yield Violation(pointer, "metadata holds a number beyond 64 bits")
        return
    if any(_is_unstorable(key) for key in _keys(metadata)):
        yield Violation(pointer, "a key of metadata holds a NUL or a lone surrogate")
        return
    if len(msgspec.json.encode(_without_surrogates(metadata))) > MAX_METADATA_BYTES:
        yield Violation(pointer, f"metadata has at most {MAX_METADATA_BYTES} bytes as JSON")


def check_doc_id(value: str, pointer: str) -> Violations:
    """What is wrong with the id of a document, which is also a path."""
    yield from check_id(value, pointer)
    if not {".", ".."}.isdisjoint(value.split("/")):
        yield Violation(
            pointer, "an id of a document has no . or .. between slashes: clients resolve them"
        )


def check_id(value: str, pointer: str) -> Violations:
    """What is wrong with the id of a document or chunk."""
    if not 1 <= len(value) <= MAX_ID_CHARACTERS:
        yield Violation(pointer, f"an id has 1 to {MAX_ID_CHARACTERS} characters")
    elif any(_is_control(character) for character in value):
        yield Violation(pointer, "an id holds no control characters and no lone surrogates")


def _documents(documents: Sequence[IncomingDocument], generation: Generation) -> Violations:
    first_at: dict[str, int] = {}
    for at, document in enumerate(documents):
        pointer = f"/documents/{at}"
        yield from check_labels(document, pointer)
        yield from _chunking(document, f"{pointer}/chunking")
        if first_at.setdefault(document.doc_id, at) != at:
            yield Violation(f"{pointer}/doc_id", "the same document twice in one request")
        yield from _fields(document, pointer)
        yield from _chunks(document.chunks or [], pointer, generation)


def _chunking(document: IncomingDocument, pointer: str) -> Violations:
    chunking = document.chunking
    if chunking is None:
        return
    if document.chunks:
        yield Violation(pointer, "the client's own chunks are kept as they are")
    if chunking.overlap is not None and chunking.overlap >= chunking.size:
        yield Violation(f"{pointer}/overlap", f"must be less than the size ({chunking.size})")


def _fields(document: IncomingDocument, pointer: str) -> Violations:
    if not (document.text is not None or document.summary is not None or document.chunks):
        yield Violation(pointer, "a document needs text, chunks or a summary")
    for name, limit in (
        ("text", MAX_TEXT_CHARACTERS),
        ("summary", MAX_TEXT_CHARACTERS),
    ):
        value: str | None = getattr(document, name)
        if value is not None and len(value) > limit:
            yield Violation(f"{pointer}/{name}", f"has at most {limit} characters")


def _chunks(chunks: list[IncomingChunk], pointer: str, generation: Generation) -> Violations:
    if len(chunks) > MAX_CHUNKS:
        yield Violation(f"{pointer}/chunks", f"a document has at most {MAX_CHUNKS} chunks")
        return
    seen: set[str] = set()
    for at, chunk in enumerate(chunks):
        here = f"{pointer}/chunks/{at}"
        yield from check_id(chunk.id, f"{here}/id")
        if chunk.id in seen:
            yield Violation(f"{here}/id", "the same chunk twice in one document")
        seen.add(chunk.id)
        yield from _chunk(chunk, here, generation)


def _chunk(chunk: IncomingChunk, pointer: str, generation: Generation) -> Violations:
    if not chunk.text and chunk.vector is None:
        yield Violation(pointer, "a chunk needs text, a vector or both")
    if chunk.text is not None and len(chunk.text) > MAX_TEXT_CHARACTERS:
        yield Violation(f"{pointer}/text", f"has at most {MAX_TEXT_CHARACTERS} characters")
    if chunk.vector is not None and (wrong := _vector(chunk.vector, generation.dim)):
        yield Violation(f"{pointer}/vector", wrong)
    if chunk.metadata is not None:
        yield from check_metadata(chunk.metadata, f"{pointer}/metadata")
    if chunk.position is not None and not 0 <= chunk.position <= MAX_POSITION:
        yield Violation(f"{pointer}/position", f"is 0 to {MAX_POSITION}")


def _vector(vector: list[float], dim: int | None) -> str | None:
    if dim is None:
        return "this collection has no vectors: create it with embedding.dim"
    if len(vector) != dim:
        return f"has {len(vector)} dimensions, the collection has {dim}"
    numbers = np.asarray(vector, np.float64)
    if not np.isfinite(numbers).all():
        return "holds a number that is not finite"
    if np.abs(numbers).max() > MAX_HALF:
        return f"holds a number beyond {MAX_HALF:.0f}"
    if not numbers.astype(np.float16).any():
        return "is zero, so it has no direction"
    return None


def _depth(metadata: Metadata) -> int:
    """Levels of nesting, counted without recursion: the input chooses the depth."""
    level: list[Any] = [metadata]
    depth = 0
    while level and depth <= MAX_METADATA_DEPTH:
        depth += 1
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]
    return depth


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for child in _children(value):
        yield from _keys(child)


def _representable(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    return all(_representable(child) for child in _children(value))


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "ignore").decode()
    if isinstance(value, dict):
        return {key: _without_surrogates(child) for key, child in value.items()}
    return [_without_surrogates(child) for child in value] if isinstance(value, list) else value


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\udfff"


def _is_unstorable(key: str) -> bool:
    return any(character == "\0" or "\ud800" <= character <= "\udfff" for character in key)
