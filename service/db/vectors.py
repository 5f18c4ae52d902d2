"""The stored vectors of chosen rows, dense and of words."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.db.pool import Connection
from service.models import Vector

HEADER_BYTES = 12
"""Of a sparsevec in binary: dimensions, entries and an unused word, before indices and values."""

VECTORS = """
SELECT id, embedding FROM braid.searchable
WHERE generation_id = $1 AND id = ANY($2) AND embedding IS NOT NULL
"""

WORDS = """
SELECT id, length, sparsevec_send(bm25) AS bm25 FROM braid.searchable
WHERE generation_id = $1 AND id = ANY($2) AND bm25 IS NOT NULL
"""


async def stored_vectors(
    connection: Connection, generation_id: int, rows: Sequence[int]
) -> dict[int, Vector]:
    """Vectors by row, of those rows that have one."""
    found = await connection.fetch(VECTORS, generation_id, rows)
    return {row: vector.to_numpy().astype("f4") for row, vector in found}


async def word_impacts(
    connection: Connection, generation_id: int, rows: Sequence[int], positions: Sequence[int]
) -> dict[int, tuple[int, Vector]]:
    """Length of each row and its impacts of lexemes at these positions (from 1), 0 without one."""
    found = await connection.fetch(WORDS, generation_id, rows)
    wanted = np.asarray(positions, np.int64) - 1
    return {row["id"]: (row["length"], _at(row["bm25"], wanted)) for row in found}


def _at(sparse: bytes, wanted: NDArray[np.int64]) -> Vector:
    entries = (len(sparse) - HEADER_BYTES) // 8
    indices = np.frombuffer(sparse, ">i4", entries, HEADER_BYTES)
    values = np.frombuffer(sparse, ">f4", entries, HEADER_BYTES + 4 * entries)
    if not entries:
        return np.zeros(len(wanted), np.float32)
    places = np.minimum(np.searchsorted(indices, wanted), entries - 1)
    return np.where(indices[places] == wanted, values[places], 0).astype(np.float32)
