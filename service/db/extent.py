"""How much there is to carry over: counts, and texts to estimate from."""

import msgspec

from service.db.pool import Connection
from service.models import Generation

EXACT_ROWS = 20_000
SAMPLED_TEXTS = 200

READY = "SELECT count(*) FROM braid.documents WHERE collection_id = $1 AND status = 'ready'"
ROWS = "SELECT count(*) FROM braid.chunks WHERE generation_id = $1"
# `raw` rows are split from a text of their own document.
KINDS = f"""
SELECT count(*) AS seen, count(embedding) AS embedded,
    count(*) FILTER (WHERE embedding IS NOT NULL AND (own_vector OR $2)) AS own,
    count(*) FILTER (WHERE start_offset IS NOT NULL) AS raw,
    coalesce(sum(length(text)), 0) AS characters
FROM (SELECT embedding, own_vector, start_offset, text FROM braid.chunks
      WHERE generation_id = $1 LIMIT {EXACT_ROWS}) AS first_rows
"""
ANY_OWN = """
SELECT EXISTS (SELECT FROM braid.chunks
               WHERE generation_id = $1 AND embedding IS NOT NULL AND (own_vector OR $2))
"""
TEXTS = f"""
SELECT text FROM braid.chunks WHERE generation_id = $1 AND text <> '' LIMIT {SAMPLED_TEXTS}
"""


class Extent(msgspec.Struct, frozen=True):
    """What a generation holds; parts of a large one are estimated from its first rows."""

    documents: int
    rows: int
    embedded: int
    raw: int
    characters: int
    any_own: bool
    """Some vectors are the client's."""
    texts: list[str]
    """Some of its texts."""


async def extent_of(connection: Connection, generation: Generation) -> Extent:
    """Count what a generation holds."""
    clients = generation.provider == "none"
    documents = await connection.fetchval(READY, generation.collection_id)
    rows = await connection.fetchval(ROWS, generation.id)
    kinds = await connection.fetchrow(KINDS, generation.id, clients)
    assert kinds is not None
    share = rows / max(kinds["seen"], 1)
    return Extent(
        documents=documents,
        rows=rows,
        embedded=round(kinds["embedded"] * share),
        raw=round(kinds["raw"] * share),
        characters=round(kinds["characters"] * share),
        any_own=await connection.fetchval(ANY_OWN, generation.id, clients),
        texts=[row["text"] for row in await connection.fetch(TEXTS, generation.id)],
    )
