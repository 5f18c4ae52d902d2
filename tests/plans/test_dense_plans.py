"""Approximate searches use their index, for the read role and through its view."""

from typing import Any

import pytest
from pgvector import HalfVector
from support.vectors import clustered, vector_collection

from service.db.candidates import CandidateQuery
from service.db.dense import SAMPLED, Nearest, approximate_statement
from service.db.pool import Database
from service.db.vector_index import index_name, open_builder
from service.models import Collection, Quantization
from service.search.filters import parse_filter

ROWS = 12_000
DIM = 256


@pytest.fixture
async def collection(database: Database) -> Collection:
    stored = await vector_collection(
        database,
        clustered(ROWS, DIM),
        metadata=lambda row: {"n": row, "even": row % 2 == 0},
    )
    await vector_collection(database, clustered(50, DIM), name="other")
    return stored


async def plan(database: Database, statement: str, *arguments: Any, ef_search: int = 40) -> str:
    async with database.read(1, ef_search=ef_search) as connection:
        rows = await connection.fetch(f"EXPLAIN {statement}", *arguments)
    return "\n".join(line for (line,) in rows)


FILTERS = [
    None,
    {"even": True},
    {"n": {"gte": 100}},
    {"title": "nobody estimates this one well"},
    {"not": {"even": True}},
]


@pytest.mark.parametrize("quantization", ["none", "binary"])
async def test_the_index_is_used_at_every_width_and_whatever_the_filter(
    database: Database, dsn: str, collection: Collection, quantization: Quantization
) -> None:
    generation = collection.generation
    async with open_builder(dsn, memory_mb=100) as builder:
        await builder.build(generation, quantization)
    vector = HalfVector(clustered(1, DIM)[0])
    for ef_search, limit, cap in ((40, 40, None), (250, 40, 20), (1000, 40, None)):
        for condition in FILTERS:
            filtered = parse_filter(condition) if condition is not None else None
            query = CandidateQuery(generation.id, "chunks", filtered, limit, cap)
            rows = ef_search if quantization == "binary" else 4 * limit
            arguments: list[object] = [vector]
            statement = approximate_statement(query, Nearest(DIM, quantization, rows), arguments)
            shown = await plan(database, statement, *arguments, ef_search=ef_search)
            assert f"Index Scan using {index_name(generation.id, quantization)}" in shown, condition
            assert "Seq Scan" not in shown
            assert shown.count(" on chunks_") == shown.count(f" on chunks_{generation.id} ")


async def test_the_sample_of_a_filter_is_read_by_primary_key(
    database: Database, collection: Collection
) -> None:
    shown = await plan(
        database,
        f"SELECT count(*) FROM braid.searchable WHERE {SAMPLED}",
        collection.generation.id,
    )
    assert f"chunks_{collection.generation.id}_pkey" in shown
    assert "Seq Scan on chunks" not in shown
