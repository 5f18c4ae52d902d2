"""Hot queries use the indexes and the one partition they are meant for."""

from typing import Any

import pytest
from support.rows import stored_collection

from service.db.candidates import CandidateQuery, best_first, eligible
from service.db.filter_sql import filter_sql
from service.db.hydrate import HYDRATE
from service.db.pool import Database
from service.models import Collection
from service.search.filters import parse_filter


async def plan(database: Database, statement: str, *arguments: Any) -> str:
    async with database.read(1) as connection:
        rows = await connection.fetch(f"EXPLAIN {statement}", *arguments)
    return "\n".join(line for (line,) in rows)


@pytest.fixture
async def collection(database: Database) -> Collection:
    other = [f"other text number {number}" for number in range(50)]
    await stored_collection(database, other, name="other")
    texts = [f"common words and one rare{number % 997} of many" for number in range(5000)]
    return await stored_collection(database, texts)


async def test_lexical_candidates_come_from_the_gin_index_of_one_partition(
    database: Database, collection: Collection
) -> None:
    query = CandidateQuery(collection.generation.id, "chunks", None, 40, None)
    arguments: list[object] = ["{1:1}/268435456", "'rare7' | 'rare9'"]
    condition = f"{eligible(query, arguments)} AND tsv @@ $2::text::tsquery"
    statement = best_first(query, "-(bm25 <#> $1::text::sparsevec)", condition, arguments)
    shown = await plan(database, statement, *arguments)
    assert f"Bitmap Index Scan on chunks_{collection.generation.id}_tsv_idx" in shown
    assert shown.count("chunks_") == shown.count(f"chunks_{collection.generation.id}")


@pytest.fixture
async def tagged(database: Database, collection: Collection) -> Collection:
    """Each row has its own number and one of many tags."""
    async with database.administer() as connection:
        await connection.execute(
            "UPDATE braid.chunks SET metadata = jsonb_build_object("
            "    'n', id, 'tags', jsonb_build_array('t' || id % 997), 'size', id % 10)"
            " WHERE generation_id = $1",
            collection.generation.id,
        )
        await connection.execute(f"ANALYZE braid.chunks_{collection.generation.id:d}")
    return collection


@pytest.mark.parametrize(
    ("raw", "index"),
    [
        ({"n": 7}, "metadata_idx"),
        ({"n": {"in": [7, 8]}}, "metadata_idx"),
        ({"n": [7, "x", None, True]}, "metadata_idx"),
        ({"tags": "t7"}, "metadata_idx"),
        ({"tags": {"eq": "t7"}, "size": {"gt": 3, "lt": 9}}, "metadata_idx"),
        ({"n": 7, "not": {"size": 3}}, "metadata_idx"),
        ({"or": [{"n": 7}, {"tags": "t7"}]}, "metadata_idx"),
        ({"and": [{"n": 7}, {"source": "wiki"}]}, "metadata_idx"),
        ({"doc_id": "d7"}, "doc_id_idx"),
        ({"doc_id": ["d7", "d8"]}, "doc_id_idx"),
        ({"or": [{"doc_id": "d7"}, {"n": 7}]}, "doc_id_idx"),
    ],
)
async def test_equality_and_membership_are_served_by_an_index(
    database: Database, tagged: Collection, raw: dict[str, Any], index: str
) -> None:
    arguments: list[object] = [tagged.generation.id]
    condition = filter_sql(parse_filter(raw), arguments)
    shown = await plan(
        database,
        f"SELECT id FROM braid.searchable WHERE generation_id = $1 AND {condition}",
        *arguments,
    )
    assert f"chunks_{tagged.generation.id}_{index}" in shown
    assert "Seq Scan" not in shown


async def test_hydration_reads_by_primary_key(database: Database, collection: Collection) -> None:
    shown = await plan(database, HYDRATE, collection.generation.id, [1, 2, 3])
    assert f"chunks_{collection.generation.id}_pkey" in shown


async def test_reading_roles_plan_for_the_values_at_hand(database: Database) -> None:
    async with database.read(1) as connection:
        assert await connection.fetchval("SHOW plan_cache_mode") == "force_custom_plan"
        assert await connection.fetchval("SHOW jit") == "off"
