"""The least that a hybrid search over HTTP can be, to compare the product with.

Two statements at once over the product's own tables, posting lists added up in numpy, RRF, one more
statement for the texts. No keys, bounds, filters, caps, deadlines, telemetry, fresh rows or
degradation. Serves what BRAID_DATABASE_URL holds in the generation BARE_GENERATION.
"""

import asyncio
import hashlib
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec
import numpy as np
from litestar import Litestar, post
from litestar.datastructures import State
from pgvector import HalfVector
from pgvector.asyncpg import register_vector

LEGS = 40
IMPACT = 2.2 / 255
LEXEMES = "SELECT array(SELECT lexeme FROM unnest(to_tsvector('english', $1)))"
LISTS = "SELECT rows, data FROM braid.postings WHERE segment_id = $1 AND lexeme = ANY($2)"
SESSION = {"plan_cache_mode": "force_custom_plan", "jit": "off", "hnsw.ef_search": str(LEGS)}


class Question(msgspec.Struct):
    """Text and vector of a query."""

    text: str
    vector: list[float]


class Body(msgspec.Struct):
    """As much of a search request as this understands."""

    query: Question
    k: int = 10


class Path:
    """One generation with a single segment of packed postings."""

    def __init__(self, pool: Any, generation: int, segment: asyncpg.Record) -> None:
        dim = segment["dim"]
        self._pool = pool
        self._segment = segment["id"]
        self._rows = np.frombuffer(segment["row_ids"], np.int64)
        self._scores = np.zeros(len(self._rows), np.float32)
        self._dense = (
            f"SELECT id FROM braid.chunks_{generation:d}"
            f" ORDER BY embedding::halfvec({dim:d}) <=> $1 LIMIT {LEGS}"
        )
        self._texts = f"SELECT id, text FROM braid.chunks_{generation:d} WHERE id = ANY($1)"

    async def dense(self, vector: list[float]) -> list[int]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(self._dense, HalfVector(vector))
        return [row[0] for row in rows]

    async def lexical(self, text: str) -> list[int]:
        async with self._pool.acquire() as connection:
            hashes = [position(one) for one in await connection.fetchval(LEXEMES, text)]
            lists = await connection.fetch(LISTS, self._segment, hashes)
        touched = []
        for rows, data in lists:
            ordinals = np.frombuffer(data, "<i4", rows)
            levels = np.frombuffer(data, "u1", rows, 4 * rows)
            idf = math.log1p((len(self._rows) - rows + 0.5) / (rows + 0.5))
            self._scores[ordinals] += levels * np.float32(idf * IMPACT)
            touched.append(ordinals)
        if not touched:
            return []
        found = np.concatenate(touched)
        scores = self._scores[found]
        self._scores[found] = 0
        keep = min(len(found), LEGS * len(touched))
        best = np.argpartition(scores, len(found) - keep)[len(found) - keep :]
        ordinals, first = np.unique(found[best], return_index=True)
        order = np.argsort(-scores[best][first], kind="stable")[:LEGS]
        ids: list[int] = self._rows[ordinals[order]].tolist()
        return ids

    async def search(self, body: Body) -> list[dict[str, Any]]:
        fused: dict[int, float] = {}
        legs = asyncio.gather(self.dense(body.query.vector), self.lexical(body.query.text))
        for leg in await legs:
            for rank, row in enumerate(leg, 1):
                fused[row] = fused.get(row, 0.0) + 0.5 / (60 + rank)
        top = sorted(fused, key=lambda row: (-fused[row], row))[: body.k]
        async with self._pool.acquire() as connection:
            texts = dict(await connection.fetch(self._texts, top))
        return [{"id": row, "score": fused[row], "text": texts[row]} for row in top]


def position(lexeme: str) -> int:
    """A lexeme's place in the document vectors."""
    return int(hashlib.md5(lexeme.encode(), usedforsecurity=False).hexdigest()[:7], 16) + 1


@post("/search", status_code=200)
async def search(data: Body, state: State) -> dict[str, list[dict[str, Any]]]:
    """The k best rows."""
    path: Path = state.path
    return {"hits": await path.search(data)}


@asynccontextmanager
async def opened(app: Litestar) -> AsyncIterator[None]:
    generation = int(os.environ["BARE_GENERATION"])
    pool = await asyncpg.create_pool(
        os.environ["BRAID_DATABASE_URL"],
        min_size=6,
        max_size=6,
        init=register_vector,
        server_settings=SESSION,
    )
    segment = await pool.fetchrow(
        "SELECT s.id, s.row_ids, g.dim FROM braid.segments s"
        " JOIN braid.generations g ON g.id = s.generation_id"
        " WHERE g.id = $1 AND s.retired_at IS NULL",
        generation,
    )
    app.state.path = Path(pool, generation, segment)
    yield
    await pool.close()


app = Litestar([search], lifespan=[opened], openapi_config=None)
