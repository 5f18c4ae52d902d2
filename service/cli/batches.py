"""Groups documents into requests that the server takes: not too many, not too large."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from service.cli.client import encode
from service.cli.reading import Found, Unread, WholeFile
from service.models import IncomingDocument

MAX_DOCUMENTS = 64
MAX_BYTES = 2_000_000
MAX_BODY_BYTES = 10_000_000
FRAME = b'{"documents":[', b",", b"]}"


class Outgoing(msgspec.Struct, frozen=True):
    """A document ready to be sent."""

    doc_id: str
    json: bytes
    file: Path | None = None
    """What is sent instead, by itself."""


Batch = list[Outgoing]


class Intake:
    """Documents as they are found, in batches; what gives no request is kept in `unread`."""

    def __init__(self, found: Iterable[Found]) -> None:
        self._found = found
        self._seen: set[str] = set()
        self.unread: list[Unread] = []

    def __iter__(self) -> Iterator[Batch]:
        batch: Batch = []
        size = 0
        for outgoing in self._outgoing():
            if outgoing.file is not None:
                yield [outgoing]
                continue
            if batch and (len(batch) == MAX_DOCUMENTS or size + len(outgoing.json) > MAX_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(outgoing)
            size += len(outgoing.json)
        if batch:
            yield batch

    def _outgoing(self) -> Iterator[Outgoing]:
        for one in self._found:
            if isinstance(one, Unread):
                self.unread.append(one)
                continue
            outgoing = _outgoing(one)
            if reason := self._refusal(outgoing):
                self.unread.append(Unread(one.doc_id, reason, failed=True))
            else:
                yield outgoing

    def _refusal(self, outgoing: Outgoing) -> str | None:
        if outgoing.doc_id in self._seen:
            return "the id was used before: the first document keeps it"
        self._seen.add(outgoing.doc_id)
        if len(request_body([outgoing])) > MAX_BODY_BYTES:
            return "larger than 10 MB"
        return None


def _outgoing(found: IncomingDocument | WholeFile) -> Outgoing:
    if isinstance(found, WholeFile):
        return Outgoing(found.doc_id, b"", found.path)
    return Outgoing(found.doc_id, encode(as_fields(found)))


def as_fields(document: IncomingDocument) -> dict[str, object]:
    """A document as the API takes it: only the fields that it has."""
    return {
        name: value
        for name in document.__struct_fields__
        if (value := getattr(document, name)) is not None
    }


def request_body(batch: Batch) -> bytes:
    """The request that sends a batch."""
    before, between, after = FRAME
    return before + between.join(outgoing.json for outgoing in batch) + after
