"""A build finds what it has to do by index, however many documents there are."""

from support.indexing import make_collection
from test_catalog_plans import nodes, plan_of, rows_read

from service.db.builds import COUNT_BEHIND, DUE
from service.db.pool import Database

FILL = """
INSERT INTO braid.documents (team_id, collection_id, doc_id, status)
SELECT 1, $1 + i % 2, 'd' || i, 'ready' FROM generate_series(1, 20000) i
"""
FILL_ROWS = """
INSERT INTO braid.chunks (generation_id, team_id, document_id, type, chunk_id, doc_id, position,
    text, content_hash)
SELECT $1, 1, id, 'chunk', n::text, doc_id, n, 'text', decode(md5(doc_id), 'hex')
FROM braid.documents, generate_series(0, 1) n WHERE collection_id = $2
"""


async def test_the_next_documents_are_read_from_where_the_build_is(database: Database) -> None:
    collection = await make_collection(database)
    async with database.administer() as connection:
        await connection.execute(FILL, collection.id)
        await connection.execute(FILL_ROWS, collection.generation.id, collection.id)
        await connection.execute("ANALYZE braid.documents; ANALYZE braid.chunks")
        generation = collection.generation.id
        due = await plan_of(connection, DUE, collection.id, generation, 10_000, 2**62, 256)
        behind = await plan_of(connection, COUNT_BEHIND, collection.id, 19_000, 101)
        done = await plan_of(connection, COUNT_BEHIND, collection.id, 2**62, 1)
    for plan in (due, behind, done):
        assert "documents_version" in {node.get("Index Name") for node in nodes(plan)}
        assert "Seq Scan" not in {node["Node Type"] for node in nodes(plan)}
    assert rows_read(due) <= 256 * 3
    assert rows_read(behind) <= 101
    assert rows_read(done) == 0
