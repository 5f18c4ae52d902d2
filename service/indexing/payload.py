"""How an accepted document waits in the database: cleaned, checked and packed."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.models import Metadata


class PendingChunk(msgspec.Struct, array_like=True, frozen=True):
    """A client's chunk; `vector` is little-endian float16, as it will be stored."""

    id: str
    text: str
    vector: bytes | None = None
    metadata: Metadata | None = None
    position: int | None = None


class PendingFile(msgspec.Struct, array_like=True, frozen=True):
    """A file as it was sent; it becomes text when it is indexed."""

    name: str
    content: bytes


class PendingDocument(msgspec.Struct, array_like=True, frozen=True):
    """A document without its id. New fields go to the end: old payloads must stay readable."""

    text: str | None = None
    title: str | None = None
    source: str | None = None
    metadata: Metadata | None = None
    summary: str | None = None
    chunks: list[PendingChunk] = []
    language: str | None = None
    file: PendingFile | None = None
    chunking: tuple[int, int] | None = None
    """Size and overlap, where the document has its own."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PendingDocument)


def pack(document: PendingDocument) -> bytes:
    """The payload of a document."""
    return _encoder.encode(document)


def unpack(payload: bytes) -> PendingDocument:
    """The document of a payload."""
    return _decoder.decode(payload)


def pack_vector(vector: list[float]) -> bytes:
    """A vector in the precision it is stored in."""
    return np.asarray(vector, dtype="<f2").tobytes()


def unpack_vector(packed: bytes) -> NDArray[np.float16]:
    """A vector as numbers, shape (dim,)."""
    return np.frombuffer(packed, dtype="<f2")
