"""The statement before every request stays a few index look-ups, however many keys there are."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from service.db.keys import KEY_ACCESS, ROOT_ACCESS
from service.db.listing import Page, Position, Sort, page_statement
from service.db.pool import Connection, Database

FILL = """
INSERT INTO braid.teams (name) SELECT 'team-' || i FROM generate_series(1, 200) i;
INSERT INTO braid.collections (team_id, name)
    SELECT t.id, 'docs-' || i FROM braid.teams t, generate_series(1, 20) i;
INSERT INTO braid.generations (team_id, collection_id, provider)
    SELECT team_id, id, 'none' FROM braid.collections;
UPDATE braid.collections c SET active_generation_id = g.id
    FROM braid.generations g WHERE g.collection_id = c.id;
INSERT INTO braid.api_keys (team_id, name, key_hash, scopes)
    SELECT t.id, 'key', sha256((t.id || ' ' || i)::text::bytea), '{search}'
    FROM braid.teams t, generate_series(1, 50) i;
ANALYZE braid.teams, braid.collections, braid.generations, braid.api_keys;
"""
FILL_RECORDS = """
SELECT braid.create_partition(1);
INSERT INTO braid.chunks (generation_id, team_id, document_id, type, chunk_id, doc_id, position,
    text, content_hash)
SELECT 1, 1, i / 10, 'chunk', i::text, (i / 10)::text, i % 10, 'text ' || i,
    decode(md5(i::text), 'hex') FROM generate_series(0, 49999) i;
ANALYZE braid.chunks;
"""


async def plan_of(connection: Connection, statement: str, *arguments: object) -> dict[str, Any]:
    explained = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *arguments)
    plan: dict[str, Any] = json.loads(explained)[0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def rows_read(plan: dict[str, Any]) -> float:
    return sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes(plan)
        if "Relation Name" in node
    )


@pytest.mark.parametrize("collection", ["docs-7", None])
async def test_a_key_and_its_collection_are_found_by_index(
    database: Database, collection: str | None
) -> None:
    async with database.administer() as connection:
        await connection.execute(FILL)
        key = await connection.fetchval("SELECT key_hash FROM braid.api_keys OFFSET 777 LIMIT 1")
        by_key = await plan_of(connection, KEY_ACCESS, key, collection)
        by_root = await plan_of(connection, ROOT_ACCESS, "team-9", collection)
    for plan in (by_key, by_root):
        assert plan["Actual Rows"] == 1
        assert rows_read(plan) <= 5
        assert not [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"]


@pytest.mark.parametrize("descending", [False, True])
async def test_a_page_deep_in_a_listing_reads_little_more_than_its_rows(
    database: Database, descending: bool
) -> None:
    async with database.administer() as connection:
        await connection.execute(FILL_RECORDS)
    sort = Sort(None, descending)
    page = Page(
        generation_id=1,
        scope="both",
        filter=None,
        sort=sort,
        limit=20,
        offset=0,
        after=Position(sort, None, 2500, 5, 25005),
        include_vector=False,
    )
    arguments: list[object] = []
    statement = page_statement(page, arguments)
    async with database.read(1) as connection:
        plan = await plan_of(connection, statement, *arguments)
    assert plan["Actual Rows"] == 21
    assert rows_read(plan) <= 60
