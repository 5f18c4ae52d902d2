"""Teams, collections and generations: the rows that say where everything else belongs."""

from collections.abc import Sequence
from datetime import datetime

import asyncpg
import msgspec

from service.db.disposal import leave_behind
from service.db.pool import Connection, Database
from service.errors import ConflictError
from service.models import (
    AnalyzerKind,
    Collection,
    Contextual,
    Generation,
    IndexPolicy,
    Quantization,
    RerankDefaults,
    SearchDefaults,
    VectorIndex,
    Weights,
)

COLLECTION_TABLES = "braid.collections c JOIN braid.generations g ON g.id = c.active_generation_id"
COLLECTION_COLUMNS = """
c.id AS collection_id, c.name AS collection_name, c.search_mode, c.fusion_method, c.weight_dense,
c.weight_lexical, c.rrf_k, c.fetch_k, c.target_recall, c.quantization, c.rerank_enabled,
c.rerank_provider, c.rerank_model, c.rerank_top_n, c.rerank_timeout_ms, g.id AS generation_id,
g.team_id AS generation_team_id,
g.provider, g.model, g.dim, g.base_url, g.language, g.analyzer, g.chunk_size, g.chunk_overlap,
g.k1, g.b, g.row_budget, g.average_length, g.contextual, g.context_version, g.index_quantization,
g.index_rows, g.index_ef_search
"""

REVISION = "SELECT version_num FROM braid.schema_revision"

INSERT_TEAM = """
INSERT INTO braid.teams (name) VALUES ($1) ON CONFLICT (name) DO NOTHING
RETURNING name, created_at
"""
LIST_TEAMS = """
SELECT name, created_at FROM braid.teams ORDER BY id LIMIT $1 OFFSET $2
"""
COUNT_TEAMS = "SELECT count(*) FROM braid.teams"
TEAM_ID = "SELECT id FROM braid.teams WHERE name = $1"

LANGUAGES = (
    "SELECT array_agg(DISTINCT cfgname::text) FROM pg_ts_config WHERE pg_ts_config_is_visible(oid)"
)

INSERT_COLLECTION = """
INSERT INTO braid.collections (team_id, name, search_mode, fusion_method, weight_dense,
    weight_lexical, rrf_k, fetch_k, target_recall, quantization)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (team_id, name) DO NOTHING RETURNING id
"""
INSERT_GENERATION = """
INSERT INTO braid.generations (team_id, collection_id, provider, model, dim, language, analyzer,
    chunk_size, chunk_overlap, k1, b, row_budget, contextual, context_version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::jsonb, $14) RETURNING id
"""
ACTIVATE_GENERATION = "UPDATE braid.collections SET active_generation_id = $2 WHERE id = $1"
CREATE_PARTITION = "SELECT braid.create_partition($1)"

FIND_COLLECTION = f"SELECT {COLLECTION_COLUMNS} FROM {COLLECTION_TABLES} WHERE c.id = $1"
LOCK_COLLECTION = f"""
SELECT {COLLECTION_COLUMNS} FROM {COLLECTION_TABLES} WHERE c.id = $1 FOR UPDATE OF c
"""
UPDATE_SEARCH = """
UPDATE braid.collections SET search_mode = $2, fusion_method = $3, weight_dense = $4,
    weight_lexical = $5, rrf_k = $6, fetch_k = $7, target_recall = $8, quantization = $9,
    updated_at = now()
WHERE id = $1
"""

UPDATE_RERANK = """
UPDATE braid.collections SET rerank_enabled = $2, rerank_provider = $3, rerank_model = $4,
    rerank_top_n = $5, rerank_timeout_ms = $6, updated_at = now()
WHERE id = $1
"""

SET_ROW_BUDGET = "UPDATE braid.generations SET row_budget = $2 WHERE collection_id = $1"

DELETE_COLLECTION = "DELETE FROM braid.collections WHERE id = $1"

# Counted as the owner: without the policy's condition an index-only scan answers.
INFO = f"""
SELECT {COLLECTION_COLUMNS}, c.created_at, c.updated_at, c.index_policy, g.index_recall,
    g.index_measured_at, g.index_note,
    (SELECT count(*) FROM braid.documents d WHERE d.collection_id = c.id) AS documents,
    (SELECT count(*) FROM braid.chunks h
     WHERE h.generation_id = g.id AND h.type = 'chunk') AS chunks,
    (SELECT count(*) FROM braid.chunks h
     WHERE h.generation_id = g.id AND h.type = 'summary') AS summaries,
    (SELECT count(*) FROM braid.jobs j
     WHERE j.collection_id = c.id AND j.status IN ('pending', 'processing')) AS pending_jobs,
    (SELECT count(*) FROM braid.chunks h WHERE h.generation_id = g.id AND h.document_id IN (
        SELECT i.document_id FROM braid.jobs j JOIN braid.ingests i ON i.job_id = j.id
        WHERE j.collection_id = c.id AND j.status IN ('pending', 'processing')
          AND i.status = 'pending')) AS stale_chunks
FROM {COLLECTION_TABLES}
WHERE c.team_id = $1 AND ($2::bigint[] IS NULL OR c.id = ANY ($2))
ORDER BY c.name LIMIT $3 OFFSET $4
"""
COUNT_COLLECTIONS = """
SELECT count(*) FROM braid.collections
WHERE team_id = $1 AND ($2::bigint[] IS NULL OR id = ANY ($2))
"""

COLLECTION_IDS = """
SELECT asked.position, c.id FROM unnest($2::text[]) WITH ORDINALITY AS asked (name, position)
LEFT JOIN braid.collections c ON c.team_id = $1 AND c.name = asked.name ORDER BY asked.position
"""


class Team(msgspec.Struct, frozen=True):
    """A tenant."""

    name: str
    created_at: datetime


class NewCollection(msgspec.Struct, frozen=True):
    """A checked request for a collection."""

    name: str
    search: SearchDefaults
    provider: str
    model: str | None
    dim: int | None
    language: str
    analyzer: AnalyzerKind
    chunk_size: int
    chunk_overlap: int
    k1: float = 1.2
    b: float = 0.75
    contextual: Contextual = Contextual()
    rerank: RerankDefaults = RerankDefaults()


class IndexRecord(msgspec.Struct, frozen=True):
    """The approximate index of the vectors: what is wanted, what is there, how good it is."""

    policy: IndexPolicy
    """`auto` builds it past a size, `hnsw` has it and `exact` has none at any size."""
    built: bool
    quantization: Quantization | None
    ef_search: int | None
    recall: float | None
    """Recall@10 against exact search at `ef_search`, or at the largest one when that is null."""
    rows: int | None
    measured_at: datetime | None
    note: str | None
    """Why searches stay exact, if not for the size."""


class CollectionRecord(msgspec.Struct, frozen=True):
    """A collection and what it holds at the moment."""

    collection: Collection
    index: IndexRecord
    documents: int
    chunks: int
    summaries: int
    pending_jobs: int
    stale_chunks: int
    """Rows that are shown although a newer version of their document waits."""
    created_at: datetime
    updated_at: datetime


async def stored_revision(database: Database) -> str | None:
    """Revision of the schema in the database; None before the first migration."""
    try:
        row = await database.fetch_row(REVISION)
    except asyncpg.UndefinedTableError:
        return None
    return row["version_num"] if row else None


async def insert_team(connection: Connection, name: str) -> Team:
    """Add a team; raises `ConflictError`."""
    row = await connection.fetchrow(INSERT_TEAM, name)
    if row is None:
        raise ConflictError("a team of this name exists")
    return Team(row["name"], row["created_at"])


async def list_teams(connection: Connection, *, limit: int, offset: int) -> tuple[list[Team], int]:
    """Teams, the oldest first, and how many there are."""
    rows = await connection.fetch(LIST_TEAMS, limit, offset)
    teams = [Team(row["name"], row["created_at"]) for row in rows]
    return teams, await connection.fetchval(COUNT_TEAMS)


async def find_team(connection: Connection, name: str) -> int | None:
    """Id of a team."""
    team_id: int | None = await connection.fetchval(TEAM_ID, name)
    return team_id


async def text_search_configurations(database: Database) -> frozenset[str]:
    """Names that a collection's `language` may take on this server."""
    row = await database.fetch_row(LANGUAGES)
    return frozenset(row[0]) if row else frozenset()


async def insert_collection(
    connection: Connection, team_id: int, new: NewCollection
) -> tuple[int, int]:
    """Add a collection with its first generation and partition; ids of both."""
    collection_id = await connection.fetchval(
        INSERT_COLLECTION, team_id, new.name, *_search_columns(new.search)
    )
    if collection_id is None:
        raise ConflictError("a collection of this name exists")
    generation_id = await connection.fetchval(
        INSERT_GENERATION,
        team_id,
        collection_id,
        new.provider,
        new.model,
        new.dim,
        new.language,
        new.analyzer,
        new.chunk_size,
        new.chunk_overlap,
        new.k1,
        new.b,
        new.search.row_budget,
        *contextual_columns(new.contextual),
    )
    if new.rerank != RerankDefaults():
        await update_rerank(connection, collection_id, new.rerank)
    await connection.execute(ACTIVATE_GENERATION, collection_id, generation_id)
    await connection.execute(CREATE_PARTITION, generation_id)
    return collection_id, generation_id


async def find_collection(connection: Connection, collection_id: int) -> Collection | None:
    """The collection as it is now."""
    row = await connection.fetchrow(FIND_COLLECTION, collection_id)
    return as_collection(row) if row else None


async def lock_collection(connection: Connection, collection_id: int) -> Collection | None:
    """The collection as it is now, held still until the transaction ends."""
    # Who waited for a swap of generations finds no row: the generation it joined is another one.
    row = await connection.fetchrow(LOCK_COLLECTION, collection_id) or await connection.fetchrow(
        LOCK_COLLECTION, collection_id
    )
    return as_collection(row) if row else None


async def update_search(connection: Connection, collection_id: int, search: SearchDefaults) -> None:
    """Set how the collection is searched, but for the row budget."""
    await connection.execute(UPDATE_SEARCH, collection_id, *_search_columns(search))


async def update_rerank(connection: Connection, collection_id: int, rerank: RerankDefaults) -> None:
    """Set how candidates are reranked."""
    await connection.execute(UPDATE_RERANK, collection_id, *msgspec.structs.astuple(rerank))


async def set_row_budget(connection: Connection, collection_id: int, rows: int) -> None:
    """Set the row budget, which stands with each generation: the lock does not read that anew."""
    await connection.execute(SET_ROW_BUDGET, collection_id, rows)


async def delete_collection(connection: Connection, collection_id: int) -> None:
    """Delete a collection; what belonged to it is unreachable, and removed in the background."""
    await leave_behind(connection, collection_id)
    await connection.execute(DELETE_COLLECTION, collection_id)


async def describe_collections(
    connection: Connection,
    team_id: int,
    *,
    only: Sequence[int] | None = None,
    limit: int = 1,
    offset: int = 0,
) -> list[CollectionRecord]:
    """Collections of a team by name, with their counts."""
    rows = await connection.fetch(INFO, team_id, only, limit, offset)
    return [_as_record(row) for row in rows]


async def count_collections(
    connection: Connection, team_id: int, *, only: Sequence[int] | None
) -> int:
    """How many collections a team has, or how many of `only` are left."""
    count: int = await connection.fetchval(COUNT_COLLECTIONS, team_id, only)
    return count


async def collection_ids(
    connection: Connection, team_id: int, names: Sequence[str]
) -> list[int | None]:
    """Ids of a team's collections in the order of their names; None for an unknown one."""
    return [row["id"] for row in await connection.fetch(COLLECTION_IDS, team_id, names)]


def as_collection(row: asyncpg.Record) -> Collection | None:
    """The collection in a row of `COLLECTION_COLUMNS`; None when an outer join found none."""
    if row["collection_id"] is None:
        return None
    generation = Generation(
        id=row["generation_id"],
        team_id=row["generation_team_id"],
        collection_id=row["collection_id"],
        provider=row["provider"],
        model=row["model"],
        dim=row["dim"],
        base_url=row["base_url"],
        language=row["language"],
        analyzer=row["analyzer"],
        chunk_size=row["chunk_size"],
        chunk_overlap=row["chunk_overlap"],
        k1=row["k1"],
        b=row["b"],
        row_budget=row["row_budget"],
        average_length=row["average_length"],
        contextual=_as_contextual(row),
        vector_index=_as_vector_index(row),
    )
    return Collection(
        id=row["collection_id"],
        team_id=row["generation_team_id"],
        name=row["collection_name"],
        search=_as_search(row),
        rerank=RerankDefaults(
            enabled=row["rerank_enabled"],
            provider=row["rerank_provider"],
            model=row["rerank_model"],
            top_n=row["rerank_top_n"],
            timeout_ms=row["rerank_timeout_ms"],
        ),
        generation=generation,
    )


def contextual_columns(contextual: Contextual) -> tuple[str, int]:
    """How the headers of a generation are made, as its row holds it, and the version."""
    return msgspec.json.encode(contextual).decode(), contextual.version


def _as_contextual(row: asyncpg.Record) -> Contextual:
    stored = msgspec.json.decode(row["contextual"], type=Contextual)
    return msgspec.structs.replace(stored, version=row["context_version"])


def _as_vector_index(row: asyncpg.Record) -> VectorIndex | None:
    if row["index_quantization"] is None:
        return None
    return VectorIndex(row["index_quantization"], row["index_rows"], row["index_ef_search"])


def _as_search(row: asyncpg.Record) -> SearchDefaults:
    weighted = row["weight_dense"] is not None
    return SearchDefaults(
        mode=row["search_mode"],
        method=row["fusion_method"],
        weights=Weights(row["weight_dense"], row["weight_lexical"]) if weighted else None,
        rrf_k=row["rrf_k"],
        fetch_k=row["fetch_k"],
        target_recall=row["target_recall"],
        quantization=row["quantization"],
        row_budget=row["row_budget"],
    )


def _search_columns(search: SearchDefaults) -> tuple[object, ...]:
    weights = search.weights
    return (
        search.mode,
        search.method,
        weights.dense if weights else None,
        weights.lexical if weights else None,
        search.rrf_k,
        search.fetch_k,
        search.target_recall,
        search.quantization,
    )


def _as_record(row: asyncpg.Record) -> CollectionRecord:
    collection = as_collection(row)
    assert collection is not None
    return CollectionRecord(
        collection=collection,
        index=IndexRecord(
            policy=row["index_policy"],
            built=row["index_quantization"] is not None,
            quantization=row["index_quantization"],
            ef_search=row["index_ef_search"],
            recall=row["index_recall"],
            rows=row["index_rows"],
            measured_at=row["index_measured_at"],
            note=row["index_note"],
        ),
        documents=row["documents"],
        chunks=row["chunks"],
        summaries=row["summaries"],
        pending_jobs=row["pending_jobs"],
        stale_chunks=row["stale_chunks"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
