"""What both legs share: which rows may be candidates, and the shape of their answer."""

import asyncpg
import msgspec

from service.db.filter_sql import filter_sql
from service.models import Candidate, Filter, Scope

COLUMNS = "id, document_id, type, chunk_id, position"


class CandidateQuery(msgspec.Struct, frozen=True):
    """Where a leg looks and how many rows it wants."""

    generation_id: int
    scope: Scope
    filter: Filter | None
    limit: int
    per_document: int | None
    """Best chunks that one document may contribute."""


def eligible(query: CandidateQuery, arguments: list[object]) -> str:
    """SQL condition for the rows of the generation that scope and filter allow."""
    arguments.append(query.generation_id)
    return f"generation_id = ${len(arguments)} AND {allowed(query, arguments)}"


def allowed(query: CandidateQuery, arguments: list[object]) -> str:
    """SQL condition for the rows that scope and filter allow."""
    parts = ["true"]
    if query.scope != "both":
        parts.append("type = 'chunk'" if query.scope == "chunks" else "type = 'summary'")
    if query.filter is not None:
        parts.append(filter_sql(query.filter, arguments))
    return " AND ".join(parts)


def best_first(
    query: CandidateQuery,
    score: str,
    condition: str,
    arguments: list[object],
    source: str = "braid.searchable",
) -> str:
    """The ranked rows; the cap a document applies before the limit, so that others move up."""
    rows = f"SELECT {COLUMNS}, {score} AS score FROM {source} WHERE {condition}"
    if query.per_document is not None:
        arguments.append(query.per_document)
        nth = "row_number() OVER (PARTITION BY document_id ORDER BY score DESC, chunk_id, id)"
        rows = (
            f"SELECT {COLUMNS}, score FROM (SELECT *, {nth} AS nth FROM ({rows}) AS matching)"
            f" AS ranked WHERE nth <= ${len(arguments)}"
        )
    arguments.append(query.limit)
    return f"{rows} ORDER BY score DESC, chunk_id, id LIMIT ${len(arguments)}"


def as_candidates(rows: list[asyncpg.Record]) -> list[Candidate]:
    """Rows in rank order."""
    return [Candidate(*row) for row in rows]
