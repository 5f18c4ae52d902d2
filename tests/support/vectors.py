"""Collections of vectors written straight into the table, for tests of the dense leg at size."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pgvector import HalfVector
from support.indexing import make_collection

from service.db.catalog import find_collection
from service.db.pool import Database
from service.models import Collection, Vector

COLUMNS = (
    "generation_id",
    "team_id",
    "document_id",
    "type",
    "chunk_id",
    "doc_id",
    "position",
    "metadata",
    "text",
    "content_hash",
    "embedding",
)


def clustered(rows: int, dim: int, seed: int = 1) -> Vector:
    """Vectors around a centre for every hundred of them."""
    chance = np.random.default_rng(seed)
    centres = chance.normal(size=(max(1, rows // 100), dim))
    noise = 0.5 * chance.normal(size=(rows, dim))
    return (centres[chance.integers(0, len(centres), rows)] + noise).astype(np.float32)


async def vector_collection(
    database: Database,
    vectors: Vector,
    *,
    metadata: Callable[[int], dict[str, Any]] = lambda row: {"n": row},
    document: Callable[[int], int] = lambda row: row,
    **fields: Any,
) -> Collection:
    """A collection of client vectors; row n is chunk c<n> of the document that is told."""
    given = {"provider": "none", "model": None, "dim": vectors.shape[1], **fields}
    collection = await make_collection(database, **given)
    await add_vectors(database, collection, vectors, metadata, document)
    return collection


async def add_vectors(
    database: Database,
    collection: Collection,
    vectors: Vector,
    metadata: Callable[[int], dict[str, Any]] = lambda row: {"n": row},
    document: Callable[[int], int] = lambda row: row,
    *,
    after: int = 0,
) -> None:
    """Store vectors as the chunks c<after>, c<after + 1>, ... and renew the statistics."""
    generation = collection.generation
    table = f"chunks_{generation.id}"
    records = [
        (generation.id, 1, document(row), "chunk", f"c{row:06}", f"d{document(row)}", row,
         json.dumps(metadata(row)), "", bytes(16), HalfVector(vector))
        for row, vector in enumerate(vectors, after)
    ]  # fmt: skip
    async with database.administer() as connection:
        await connection.copy_records_to_table(
            table, schema_name="braid", columns=COLUMNS, records=records
        )
    await database.fetch_row(f"ANALYZE braid.{table}")


async def current(database: Database, collection: Collection) -> Collection:
    """The collection as a search that begins now sees it."""
    async with database.administer() as connection:
        found = await find_collection(connection, collection.id)
    assert found is not None
    return found


def exact_ids(vectors: Vector, query: Vector, rows: Sequence[int], limit: int) -> list[str]:
    """The chunks of `rows` that are most similar to the query by brute force."""
    chosen = vectors[list(rows)].astype(np.float16).astype(np.float64)
    asked = query.astype(np.float16).astype(np.float64)
    norms = np.linalg.norm(chosen, axis=1) * np.linalg.norm(asked)
    best = np.argsort(-(chosen @ asked) / norms, kind="stable")[:limit]
    return [f"c{rows[place]:06}" for place in best.tolist()]
