"""The stored vectors of chosen rows."""

from collections.abc import Sequence

from service.db.pool import Connection
from service.models import Vector

VECTORS = """
SELECT id, embedding FROM braid.searchable
WHERE generation_id = $1 AND id = ANY($2) AND embedding IS NOT NULL
"""


async def stored_vectors(
    connection: Connection, generation_id: int, rows: Sequence[int]
) -> dict[int, Vector]:
    """Vectors by row, of those rows that have one."""
    found = await connection.fetch(VECTORS, generation_id, rows)
    return {row: vector.to_numpy().astype("f4") for row, vector in found}
