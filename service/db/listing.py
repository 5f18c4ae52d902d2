"""Records as they are stored: one document's, or those of a collection page by page."""

from typing import Annotated, Any

import asyncpg
import msgspec

from service.db.documents import DocumentStatus
from service.db.filter_sql import filter_sql
from service.db.hydrate import COLUMNS, as_chunk
from service.db.pool import Connection
from service.errors import InvalidRequestError
from service.models import Filter, Generation, Metadata, Scope, StoredChunk

RowNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
SORTABLE_COLUMNS = frozenset({"doc_id", "title", "source", "position"})
SORTED_CHARACTERS = 512
"""Of a long string only the beginning counts, so that a cursor fits into a URL."""

# One statement, so that a document is never seen half deleted.
DOCUMENT = f"""
SELECT d.status, d.failure_reason, d.title AS own_title, d.source AS own_source,
    d.metadata AS own_metadata, c.*
FROM braid.documents d LEFT JOIN (
    SELECT document_id, {COLUMNS} FROM braid.searchable WHERE generation_id = $3) AS c
  ON c.document_id = d.id
WHERE d.collection_id = $1 AND d.doc_id = $2 ORDER BY c.position, c.chunk_id
"""


class StoredDocument(msgspec.Struct, frozen=True):
    """A document's own fields and its records in reading order."""

    status: DocumentStatus
    failure_reason: str | None
    title: str | None
    source: str | None
    metadata: Metadata
    records: list[StoredChunk]


class Sort(msgspec.Struct, frozen=True, array_like=True):
    """Order of a listing; without a key documents come as they were accepted."""

    key: str | None = None
    descending: bool = False


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The last row of a page: where the next one begins."""

    sort: Sort
    value: str | None
    """JSON of the value that the rows are sorted by."""
    document: RowNumber
    position: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    row: RowNumber


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Which records of a generation to list."""

    generation_id: int
    scope: Scope
    filter: Filter | None
    sort: Sort
    limit: int
    offset: int
    after: Position | None
    include_vector: bool


class ListedRecord(msgspec.Struct, frozen=True):
    """A record and, if asked for, its vector."""

    record: StoredChunk
    vector: list[float] | None


class Listing(msgspec.Struct, frozen=True):
    """A page, how many records there are on all pages, and where the next page begins."""

    records: list[ListedRecord]
    total: int
    next: Position | None


async def read_document(
    connection: Connection, generation: Generation, doc_id: str
) -> StoredDocument | None:
    """A document with its records in the generation."""
    rows = await connection.fetch(DOCUMENT, generation.collection_id, doc_id, generation.id)
    if not rows:
        return None
    first = rows[0]
    return StoredDocument(
        status=first["status"],
        failure_reason=first["failure_reason"],
        title=first["own_title"],
        source=first["own_source"],
        metadata=msgspec.json.decode(first["own_metadata"]),
        records=[as_chunk(row) for row in rows if row["id"] is not None],
    )


async def list_records(connection: Connection, page: Page) -> Listing:
    """One page of records in a total order, so that pages neither overlap nor skip."""
    arguments: list[object] = []
    counted = f"SELECT count(*) FROM braid.searchable WHERE {_condition(page, arguments)}"
    total: int = await connection.fetchval(counted, *arguments)
    arguments = []
    statement = page_statement(page, arguments)
    try:
        rows = await connection.fetch(statement, *arguments)
    except asyncpg.DataError as error:
        # All else that is bound has been checked; a cursor is whatever the client sends.
        raise InvalidRequestError.at("/cursor", "is not one that a listing gave") from error
    listed = rows[: page.limit]
    more = len(rows) > page.limit
    return Listing(
        records=[_as_listed(row, page) for row in listed],
        total=total,
        next=_position(listed[-1], page.sort) if more else None,
    )


def _condition(page: Page, arguments: list[object]) -> str:
    arguments.append(page.generation_id)
    parts = ["generation_id = $1"]
    if page.scope != "both":
        parts.append("type = 'chunk'" if page.scope == "chunks" else "type = 'summary'")
    if page.filter is not None:
        parts.append(filter_sql(page.filter, arguments))
    return " AND ".join(parts)


def page_statement(page: Page, arguments: list[object]) -> str:
    """SQL for the rows of a page and one more, which tells whether there is a next page."""

    def bound(value: object) -> str:
        arguments.append(value)
        return f"${len(arguments)}"

    condition = _condition(page, arguments)
    value = _sorted_by(page.sort, bound)
    order = ["document_id", "position", "id"]
    start: list[Any] = []
    if page.after is not None:
        start = [bound(page.after.document), bound(page.after.position), bound(page.after.row)]
    if value != "NULL":
        order.insert(0, value)
        if page.after is not None:
            start.insert(0, f"{bound(page.after.value)}::jsonb")
    if start:
        beyond = "<" if page.sort.descending else ">"
        condition += f" AND ({', '.join(order)}) {beyond} ({', '.join(start)})"
    direction = " DESC" if page.sort.descending else ""
    vector = "embedding" if page.include_vector else "NULL"
    return f"""
        SELECT {COLUMNS}, document_id, {value} AS sorted_by, {vector} AS vector
        FROM braid.searchable WHERE {condition}
        ORDER BY {", ".join(name + direction for name in order)}
        LIMIT {bound(page.limit + 1)} OFFSET {bound(page.offset)}
    """


def _sorted_by(sort: Sort, bound: Any) -> str:
    if sort.key is None:
        return "NULL"
    if sort.key == "position":
        return "to_jsonb(position)"
    if sort.key in SORTABLE_COLUMNS:
        return f"coalesce(to_jsonb(left({sort.key}, {SORTED_CHARACTERS})), 'null')"
    field = f"metadata -> {bound(sort.key)}::text"
    return f"""(CASE jsonb_typeof({field})
        WHEN 'string' THEN to_jsonb(left({field} #>> '{{}}', {SORTED_CHARACTERS}))
        WHEN 'array' THEN '{{}}' WHEN 'object' THEN '{{}}'
        ELSE coalesce({field}, 'null') END)"""


def _position(row: asyncpg.Record, sort: Sort) -> Position:
    return Position(
        sort=sort,
        value=row["sorted_by"],
        document=row["document_id"],
        position=row["position"],
        row=row["id"],
    )


def _as_listed(row: asyncpg.Record, page: Page) -> ListedRecord:
    vector = row["vector"] if page.include_vector else None
    return ListedRecord(as_chunk(row), None if vector is None else vector.to_list())
