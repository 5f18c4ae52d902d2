"""A collection whose rows are written straight into the table, for tests of SQL at size."""

from collections.abc import Sequence

from service.db.pool import Database
from service.models import Collection, Generation, SearchDefaults

INSERT = """
    INSERT INTO braid.chunks (generation_id, team_id, document_id, type, chunk_id, doc_id, position,
                              text, content_hash, length, embedding, tsv, bm25)
    SELECT $1, 1, ordinal, 'chunk', 'c' || lpad(ordinal::text, 6, '0'), 'd' || ordinal, 0, words,
           decode(md5(words), 'hex'), braid.document_length(tsv), embedding, tsv,
           braid.bm25_document(tsv, braid.document_length(tsv), $4, 1.2, 0.75)
    FROM unnest($2::text[], $3::halfvec[]) WITH ORDINALITY AS given (words, embedding, ordinal),
         LATERAL (SELECT to_tsvector('simple', words) AS tsv) AS made
"""


async def stored_collection(
    database: Database,
    texts: Sequence[str],
    *,
    name: str = "rows",
    row_budget: int = 8000,
) -> Collection:
    """A collection without an embedder that holds these texts, one chunk a document."""
    average = sum(len(text.split()) for text in texts) / max(1, len(texts))
    async with database.administer() as connection:
        collection_id = await connection.fetchval(
            "INSERT INTO braid.collections (team_id, name) VALUES (1, $1) RETURNING id", name
        )
        generation_id = await connection.fetchval(
            "INSERT INTO braid.generations (team_id, collection_id, provider, row_budget,"
            " average_length) VALUES (1, $1, 'none', $2, $3) RETURNING id",
            collection_id,
            row_budget,
            average,
        )
        await connection.execute(
            "UPDATE braid.collections SET active_generation_id = $2 WHERE id = $1",
            collection_id,
            generation_id,
        )
        await connection.execute("SELECT braid.create_partition($1)", generation_id)
        vectors = [None] * len(texts)
        await connection.execute(INSERT, generation_id, list(texts), vectors, average)
        await connection.execute(f"ANALYZE braid.chunks_{generation_id:d}")
    generation = Generation(
        id=generation_id,
        team_id=1,
        collection_id=collection_id,
        provider="none",
        model=None,
        dim=None,
        base_url=None,
        language="simple",
        analyzer="language",
        chunk_size=512,
        chunk_overlap=64,
        k1=1.2,
        b=0.75,
        row_budget=row_budget,
        average_length=average,
    )
    return Collection(collection_id, 1, name, SearchDefaults(), generation)
