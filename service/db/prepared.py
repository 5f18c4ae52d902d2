"""What was made for chunks that are not written yet: headers and vectors that were paid for."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import asyncpg
import msgspec
import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from service.db.pool import Connection
from service.models import Generation

KEEP_HOURS = 48

PREPARED = """
SELECT document_id, content_hash, context, embedding FROM braid.prepared
WHERE generation_id = $1 AND document_id = ANY($2)
"""
VECTORS_OF = """
SELECT document_id, text, embedding FROM braid.chunks
WHERE generation_id = $1 AND id = ANY($2) AND embedding IS NOT NULL AND NOT own_vector
"""
# A document that was deleted meanwhile, or a generation that was dropped, needs nothing any more.
KEEP = """
INSERT INTO braid.prepared AS p
    (generation_id, document_id, content_hash, team_id, context, embedding)
SELECT $1, made.document_id, made.content_hash, $2, made.context, made.embedding
FROM unnest($3::bigint[], $4::bytea[], $5::text[], $6::halfvec[])
    AS made (document_id, content_hash, context, embedding)
WHERE EXISTS (SELECT FROM braid.documents d WHERE d.id = made.document_id)
ON CONFLICT (generation_id, document_id, content_hash) DO UPDATE
    SET context = coalesce(excluded.context, p.context),
        embedding = coalesce(excluded.embedding, p.embedding)
"""
FORGET = "DELETE FROM braid.prepared WHERE generation_id = $1 AND document_id = ANY($2)"
FORGET_DOCUMENT = "DELETE FROM braid.prepared WHERE document_id = $1"
EXPIRE = f"DELETE FROM braid.prepared WHERE created_at < now() - interval '{KEEP_HOURS} hours'"


class Prepared(msgspec.Struct, frozen=True):
    """A header and a vector, each None when it was not made; an empty header is the model's."""

    context: str | None = None
    embedding: NDArray[np.float16] | None = None


PreparedByHash: TypeAlias = Mapping[tuple[int, bytes], Prepared]
"""By document and content hash of the chunk."""


async def prepared_for(
    connection: Connection, generation_id: int, documents: Sequence[int]
) -> PreparedByHash:
    """What is kept for documents."""
    return {
        (row["document_id"], row["content_hash"]): as_prepared(row)
        for row in await connection.fetch(PREPARED, generation_id, documents)
    }


async def vectors_of(
    connection: Connection, generation_id: int, rows: Sequence[int]
) -> dict[tuple[int, str], NDArray[np.float16]]:
    """Vectors that were made of the texts of rows, by document and text."""
    return {
        (row["document_id"], row["text"]): np.asarray(row["embedding"].to_numpy(), np.float16)
        for row in await connection.fetch(VECTORS_OF, generation_id, rows)
    }


async def keep_prepared(
    connection: Connection, generation: Generation, made: PreparedByHash
) -> None:
    """Keep what was made until its document is written."""
    await connection.execute(
        KEEP,
        generation.id,
        generation.team_id,
        [document for document, _ in made],
        [content_hash for _, content_hash in made],
        [one.context for one in made.values()],
        [None if one.embedding is None else HalfVector(one.embedding) for one in made.values()],
    )


async def forget_prepared(
    connection: Connection, generation_id: int, documents: Sequence[int]
) -> None:
    """Drop what was kept for documents that are written."""
    await connection.execute(FORGET, generation_id, documents)


async def forget_document(connection: Connection, document: int) -> None:
    """Drop what was kept for a document that is deleted."""
    await connection.execute(FORGET_DOCUMENT, document)


async def expire_prepared(connection: Connection) -> None:
    """Drop what nobody came back for."""
    await connection.execute(EXPIRE)


def as_prepared(row: asyncpg.Record) -> Prepared:
    """The header and the vector of a row."""
    vector = row["embedding"]
    embedding = None if vector is None else np.asarray(vector.to_numpy(), np.float16)
    return Prepared(row["context"], embedding)
