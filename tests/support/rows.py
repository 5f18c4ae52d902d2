"""A collection whose rows are written straight into the table, for tests of SQL at size."""

from collections.abc import Sequence
from typing import Any

from service.db.pool import Database
from service.models import Collection, Generation, SearchDefaults

# Row n is chunk c<n>, with n % 20 in its metadata; every tenth may be a summary, and a document
# may have several rows.
INSERT = """
    INSERT INTO braid.chunks (generation_id, team_id, document_id, type, chunk_id, doc_id, position,
                              text, metadata, content_hash, length, tsv, bm25)
    SELECT $1, 1, n / $5, CASE WHEN $6 AND n % 10 = 0 THEN 'summary' ELSE 'chunk' END,
           'c' || lpad(n::text, 6, '0'), 'd' || n / $5, n % $5, words,
           jsonb_build_object('n', n % 20), decode(md5(words), 'hex'),
           braid.document_length(tsv), tsv,
           braid.bm25_document(tsv, braid.document_length(tsv), $3, 1.2, 0.75)
    FROM unnest($2::text[]) WITH ORDINALITY AS given (words, ordinal),
         LATERAL (SELECT to_tsvector('simple', words) AS tsv, $4 + ordinal AS n) AS made
"""


async def stored_collection(
    database: Database,
    texts: Sequence[str],
    *,
    name: str = "rows",
    row_budget: int = 8000,
    rows_a_document: int = 1,
    summaries: bool = False,
) -> Collection:
    """A collection without an embedder that holds these texts as rows 1, 2, ..."""
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
    generation = generation_of(
        generation_id, collection_id=collection_id, row_budget=row_budget, average_length=average
    )
    await add_rows(
        database, generation, texts, rows_a_document=rows_a_document, summaries=summaries
    )
    return Collection(collection_id, 1, name, SearchDefaults(), generation)


def generation_of(generation_id: int, **fields: Any) -> Generation:
    """A generation of texts in no language and without vectors, unless told otherwise."""
    given: dict[str, Any] = {
        "team_id": 1,
        "collection_id": 1,
        "provider": "none",
        "model": None,
        "dim": None,
        "base_url": None,
        "language": "simple",
        "analyzer": "language",
        "chunk_size": 512,
        "chunk_overlap": 64,
        "k1": 1.2,
        "b": 0.75,
        "row_budget": 8000,
        "average_length": 100.0,
    }
    return Generation(id=generation_id, **{**given, **fields})


async def add_rows(
    database: Database,
    generation: Generation,
    texts: Sequence[str],
    *,
    after: int = 0,
    rows_a_document: int = 1,
    summaries: bool = False,
) -> None:
    """Store texts as the rows after + 1, after + 2, ... and renew the statistics."""
    async with database.administer() as connection:
        await connection.execute(
            INSERT,
            generation.id,
            list(texts),
            generation.average_length,
            after,
            rows_a_document,
            summaries,
        )
        await connection.execute(f"ANALYZE braid.chunks_{generation.id:d}")
