"""The dense leg: cosine over the vectors of one generation, exact or by way of an HNSW index."""

import msgspec
from pgvector import HalfVector

from service.db.candidates import (
    COLUMNS,
    CandidateQuery,
    allowed,
    as_candidates,
    best_first,
    eligible,
)
from service.db.pool import Connection
from service.models import Candidate, Quantization, Vector

EXACT_COMPONENTS = 10_000_000
"""Rows times dimensions up to which every vector is compared."""
EF_SEARCH = (40, 64, 100, 160, 250, 400, 640, 1000)
"""Numbers of candidates that an approximate search may keep; pgvector allows 1,000."""

FILTERABLE = "doc_id, title, source, metadata"
SAMPLED = """
    id = ANY((SELECT index_sample FROM braid.generations WHERE id = $1)::bigint[])
    AND generation_id = $1 AND embedding IS NOT NULL
"""


class Nearest(msgspec.Struct, frozen=True):
    """The index that an approximate search goes through, and how far."""

    dim: int
    quantization: Quantization
    rows: int
    """Matching rows to take from the index, the nearest first as the index sees it."""


async def exact_candidates(
    connection: Connection, query: CandidateQuery, vector: Vector
) -> list[Candidate]:
    """Rows by cosine similarity to `vector`, the most similar first; scores are exact cosine."""
    arguments: list[object] = [HalfVector(vector)]
    condition = f"{eligible(query, arguments)} AND embedding IS NOT NULL"
    statement = best_first(query, "1 - (embedding <=> $1)", condition, arguments)
    return as_candidates(await connection.fetch(statement, *arguments))


async def approximate_candidates(
    connection: Connection, query: CandidateQuery, vector: Vector, nearest: Nearest
) -> list[Candidate]:
    """The best of `nearest.rows` rows that the index finds; scores are exact cosine.

    May be fewer than match: the index gives up after `hnsw.max_scan_tuples`.
    """
    arguments: list[object] = [HalfVector(vector)]
    statement = approximate_statement(query, nearest, arguments)
    return as_candidates(await connection.fetch(statement, *arguments))


def approximate_statement(query: CandidateQuery, nearest: Nearest, arguments: list[object]) -> str:
    """SQL of an approximate search; `arguments` holds the vector and gets the rest.

    OFFSET 0 keeps the filter out of the scan's own conditions and CASE keeps its estimate from the
    planner, which would rather read and sort all rows than wait for the few it expects to match.
    """
    arguments.append(query.generation_id)
    generation = f"generation_id = ${len(arguments)}"
    columns = COLUMNS if query.filter is None else f"{COLUMNS}, {FILTERABLE}"
    order, dim = index_order(nearest.dim, nearest.quantization), nearest.dim
    near = (
        f"SELECT {columns}, embedding::halfvec({dim}) <=> $1::halfvec({dim}) AS distance"
        f" FROM braid.searchable WHERE {generation} ORDER BY {order} OFFSET 0"
    )
    condition = f"CASE WHEN distance IS NOT NULL AND {allowed(query, arguments)} THEN true END"
    arguments.append(nearest.rows)
    found = f"(SELECT * FROM ({near}) AS near WHERE {condition} LIMIT ${len(arguments)}) AS found"
    return best_first(query, "1 - distance", "true", arguments, source=found)


def index_expression(dim: int, quantization: Quantization) -> str:
    """What the index holds of a row, with its operator class."""
    if quantization == "binary":
        return f"(binary_quantize(embedding::halfvec({dim:d}))::bit({dim:d})) bit_hamming_ops"
    return f"(embedding::halfvec({dim:d})) halfvec_cosine_ops"


def index_order(dim: int, quantization: Quantization) -> str:
    """How far a row is from the vector $1 as the index sees it."""
    row, asked = f"embedding::halfvec({dim:d})", f"$1::halfvec({dim:d})"
    if quantization == "binary":
        row, asked = (f"binary_quantize({one})::bit({dim:d})" for one in (row, asked))
        return f"{row} <~> {asked}"
    return f"{row} <=> {asked}"


async def sampled_share(connection: Connection, query: CandidateQuery) -> float | None:
    """Share of the generation's rows that scope and filter allow, from a sample; None without."""
    arguments: list[object] = [query.generation_id]
    condition = allowed(query, arguments)
    row = await connection.fetchrow(
        f"SELECT count(*) AS sampled, count(*) FILTER (WHERE {condition}) AS matching"
        f" FROM braid.searchable WHERE {SAMPLED}",
        *arguments,
    )
    assert row is not None
    return row["matching"] / row["sampled"] if row["sampled"] else None
