"""The vector index of a generation that is built: there before the swap."""

import numpy as np
import pytest
from support.indexing import fetch, ingest, make_collection, working
from support.reindexing import reindexed

from service.db.pool import Database
from service.indexing import vector_index


async def test_a_large_generation_has_its_index_before_it_is_searched(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_index, "EXACT_COMPONENTS", 100)
    collection = await make_collection(database, provider="none", model=None, dim=8)
    chance = np.random.default_rng(5)
    chunks = [
        {"id": str(at), "text": f"text {at}", "vector": vector}
        for at, vector in enumerate(chance.standard_normal((60, 8)).tolist())
    ]
    async with working(database, dsn, None):
        await ingest(database, collection, {"doc_id": "a", "chunks": chunks})
        job, after = await reindexed(database, collection, language="english")
    assert job.status == "done"
    assert after.generation.vector_index is not None
    async with database.administer() as connection:
        found = await fetch(
            connection,
            "SELECT indisvalid AS valid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " WHERE c.relam = (SELECT oid FROM pg_am WHERE amname = 'hnsw')"
            " AND i.indrelid = to_regclass($1)",
            f"braid.chunks_{after.generation.id}",
        )
    assert found == [{"valid": True}]
