"""Documents and their records as they are read: one document, or all records page by page."""

import base64
import binascii
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import PathParameter, QueryParameter
from msgspec import UNSET, UnsetType

from service.api.access import MAX_DOC_ID_CHARACTERS, CurrentCollection, requires
from service.api.fields import MAX_OFFSET, Limit
from service.api.problems import EVERYWHERE
from service.api.services import CurrentServices
from service.api.strict import decode_body
from service.db.documents import DocumentStatus
from service.db.listing import ListedRecord, Page, Position, Sort, list_records, read_document
from service.errors import InvalidRequestError, NotFoundError
from service.models import Filter, Metadata, RecordType, Scope, StoredChunk
from service.search.filters import parse_filter

DocId = Annotated[
    str,
    PathParameter(
        min_length=1,
        max_length=MAX_DOC_ID_CHARACTERS,
        description="id of the document; a slash in it may be sent as it is or as %2F",
    ),
]
# The names of Python and of the framework end in an underscore here.
RecordScope = Annotated[Scope, QueryParameter(name="scope", description="kind of records")]
FilterText = Annotated[
    str | None, QueryParameter(name="filter", max_length=16_384, description="a filter, as JSON")
]
IncludeVector = Annotated[bool, QueryParameter(description="whether to add the vectors")]
SortText = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=256,
        description="doc_id, title, source, position or a metadata key; -key for descending",
    ),
]
Cursor = Annotated[
    str | None, QueryParameter(max_length=8192, description="next_cursor of the page before")
]
OffsetOrNone = Annotated[
    int | None, QueryParameter(ge=0, le=MAX_OFFSET, description="rows to skip, without a cursor")
]


class Record(msgspec.Struct, frozen=True):
    """A chunk or summary as it is stored; `position` counts from 0."""

    id: str
    doc_id: str
    type: RecordType
    position: int
    text: str
    context: str | None
    title: str | None
    source: str | None
    metadata: Metadata
    start: int | None
    """Where it begins in its document's text, in characters; null for a client's own chunk."""
    end: int | None
    headings: list[str]
    """What it stands under there, outermost first: headings, or definitions of code."""
    vector: list[float] | UnsetType | None = UNSET
    """Only when asked for; null when the record has none."""


class RecordList(msgspec.Struct, frozen=True):
    """A page of records; without `next_cursor` it is the last."""

    records: list[Record]
    total: int
    next_cursor: str | None


class Document(msgspec.Struct, frozen=True):
    """A document; its chunks are there when it is ready, in reading order."""

    doc_id: str
    status: DocumentStatus
    title: str | None
    source: str | None
    metadata: Metadata
    summary: Record | None
    chunks: list[Record]
    failure_reason: str | UnsetType = UNSET


@get(
    "/collections/{name:str}/documents",
    guards=[requires("search")],
    responses=EVERYWHERE,
    summary="List records",
    tags=["documents"],
)
async def list_documents(
    *,
    services: CurrentServices,
    collection: CurrentCollection,
    scope_: RecordScope = "both",
    filter_: FilterText = None,
    sort: SortText = None,
    limit: Limit = 20,
    offset: OffsetOrNone = None,
    cursor: Cursor = None,
    include_vector: IncludeVector = False,
) -> RecordList:
    """List chunks and summaries unranked, by document as they came unless `sort` says other."""
    order = _sort(sort)
    if cursor is not None and offset is not None:
        raise InvalidRequestError.at("/offset", "goes without a cursor")
    page = Page(
        generation_id=collection.generation.id,
        scope=scope_,
        filter=_filter(filter_),
        sort=order,
        limit=limit,
        offset=offset or 0,
        after=_after(cursor, order),
        include_vector=include_vector,
    )
    async with services.database.read(collection.team_id, snapshot=True) as connection:
        listing = await list_records(connection, page)
    return RecordList(
        records=[_listed(one, include_vector) for one in listing.records],
        total=listing.total,
        next_cursor=None if listing.next is None else _cursor(listing.next),
    )


@get(
    "/collections/{name:str}/documents/{doc_id:path}",
    guards=[requires("search")],
    responses=EVERYWHERE,
    summary="Get a document",
    tags=["documents"],
)
async def get_document(
    doc_id: DocId, services: CurrentServices, collection: CurrentCollection
) -> Document:
    """A document with its chunks and summary as they are searched now."""
    async with services.database.read(collection.team_id, snapshot=True) as connection:
        stored = await read_document(connection, collection.generation, doc_id)
    if stored is None:
        raise NotFoundError("unknown document")
    summaries = [as_record(one) for one in stored.records if one.type == "summary"]
    return Document(
        doc_id=doc_id,
        status=stored.status,
        title=stored.title,
        source=stored.source,
        metadata=stored.metadata,
        summary=summaries[0] if summaries else None,
        chunks=[as_record(one) for one in stored.records if one.type == "chunk"],
        failure_reason=stored.failure_reason or UNSET,
    )


def as_record(stored: StoredChunk, vector: list[float] | UnsetType | None = UNSET) -> Record:
    """A stored chunk or summary as a client reads it."""
    return Record(
        id=stored.id,
        doc_id=stored.doc_id,
        type=stored.type,
        position=stored.position,
        text=stored.text,
        context=stored.context,
        title=stored.title,
        source=stored.source,
        metadata=stored.metadata,
        start=stored.start,
        end=stored.end,
        headings=stored.headings,
        vector=vector,
    )


def _listed(one: ListedRecord, include_vector: bool) -> Record:
    return as_record(one.record, one.vector if include_vector else UNSET)


def _sort(given: str | None) -> Sort:
    if given is None:
        return Sort()
    key = given.removeprefix("-")
    if not key:
        raise InvalidRequestError.at("/sort", "names no key")
    return Sort(key, descending=given.startswith("-"))


def _filter(given: str | None) -> Filter | None:
    if given is None:
        return None
    try:
        raw: Any = decode_body(given.encode(), Any)
    except InvalidRequestError as error:
        raise InvalidRequestError.at("/filter", error.detail.replace("body", "filter")) from error
    return parse_filter(raw)


def _cursor(position: Position) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(position)).decode()


def _after(cursor: str | None, sort: Sort) -> Position | None:
    if cursor is None:
        return None
    try:
        position = msgspec.msgpack.decode(
            base64.b64decode(cursor, altchars=b"-_", validate=True), type=Position
        )
    except (binascii.Error, ValueError) as error:
        raise InvalidRequestError.at("/cursor", "is not one that a listing gave") from error
    if position.sort != sort or (position.value is None) != (sort.key is None):
        raise InvalidRequestError.at("/cursor", "belongs to a listing with another sort")
    return position
