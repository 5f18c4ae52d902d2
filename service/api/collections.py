"""Collections: list, look at, delete."""

from datetime import datetime
from typing import Any, Literal

import msgspec
from litestar import Request, delete, get
from litestar.datastructures import State
from msgspec import UNSET, UnsetType

from service.api.access import CurrentCollection, CurrentPrincipal, any_scope, requires
from service.api.fields import Limit, Offset
from service.api.problems import EVERYWHERE
from service.api.services import CurrentServices, Services
from service.db import catalog
from service.db.catalog import CollectionRecord, IndexRecord
from service.db.keys import forget_collection
from service.db.partitions import drop_orphan_partitions
from service.db.pool import Connection
from service.errors import (
    NotFoundError,
    UnavailableError,
)
from service.models import (
    AnalyzerKind,
    SearchDefaults,
)
from service.telemetry import log


class EmbeddingInfo(msgspec.Struct, frozen=True):
    """Who makes the vectors of the active generation."""

    provider: str
    model: str | None
    dim: int | None


class ChunkingInfo(msgspec.Struct, frozen=True):
    """How raw text is split in the active generation."""

    size: int
    overlap: int


class CollectionInfo(msgspec.Struct, frozen=True):
    """A collection: its configuration and what it holds."""

    name: str
    language: str
    analyzer: AnalyzerKind
    embedding: EmbeddingInfo
    search: SearchDefaults
    chunking: ChunkingInfo
    generation: int
    index: Literal["exact", "hnsw"]
    """How vectors are searched: all compared, or by way of the approximate index."""
    vector_index: IndexRecord
    documents: int
    chunks: int
    summaries: int
    pending_jobs: int
    created_at: datetime
    updated_at: datetime
    collection_key: str | UnsetType = UNSET
    """Only in the answer that created it."""


class CollectionList(msgspec.Struct, frozen=True):
    """Collections by name; `total` counts all that the key may see."""

    collections: list[CollectionInfo]
    total: int


@get(
    "/collections",
    guards=[any_scope],
    responses=EVERYWHERE,
    summary="List collections",
    tags=["collections"],
)
async def list_collections(
    services: CurrentServices,
    principal: CurrentPrincipal,
    limit: Limit = 100,
    offset: Offset = 0,
) -> CollectionList:
    """List the collections that the key may see, by name."""
    allowed = principal.collection_ids
    only = None if allowed is None else sorted(allowed)
    async with services.database.administer() as connection:
        records = await catalog.describe_collections(
            connection, principal.team_id, only=only, limit=limit, offset=offset
        )
        total = await catalog.count_collections(connection, principal.team_id, only=only)
    return CollectionList([info_of(record) for record in records], total)


@get(
    "/collections/{name:str}",
    guards=[any_scope],
    responses=EVERYWHERE,
    summary="Get a collection",
    tags=["collections"],
)
async def get_collection(
    services: CurrentServices,
    principal: CurrentPrincipal,
    collection: CurrentCollection,
) -> CollectionInfo:
    """The configuration of a collection, its active generation and its counts."""
    async with services.database.administer() as connection:
        return info_of(await describe(connection, principal.team_id, collection.id))


async def drop_tables(request: Request[Any, Any, State]) -> None:
    """Drop the tables of deleted collections; one that is still read goes later."""
    services: Services = request.app.state.services
    try:
        left = await drop_orphan_partitions(services.database)
    except UnavailableError:
        log.warning("tables of deleted collections not dropped, the next start tries again")
        return
    if left:
        log.warning("tables still in use, dropped later", tables=len(left))


@delete(
    "/collections/{name:str}",
    guards=[requires("admin")],
    responses=EVERYWHERE,
    after_response=drop_tables,
    summary="Delete a collection",
    tags=["collections"],
)
async def delete_collection(
    services: CurrentServices, principal: CurrentPrincipal, collection: CurrentCollection
) -> None:
    """Delete a collection with its documents, jobs and the keys that were for it alone."""
    async with services.database.administer() as connection:
        # Held first: whoever changes its documents holds the collection before anything else.
        if await catalog.lock_collection(connection, collection.id) is None:
            raise NotFoundError("unknown collection")
        await forget_collection(connection, principal.team_id, collection.id)
        await catalog.delete_collection(connection, collection.id)
    services.access.forget()


async def describe(connection: Connection, team_id: int, collection_id: int) -> CollectionRecord:
    """A collection with its counts; raises `NotFoundError`."""
    records = await catalog.describe_collections(connection, team_id, only=[collection_id])
    if not records:
        raise NotFoundError("unknown collection")
    return records[0]


def info_of(record: CollectionRecord, key: str | None = None) -> CollectionInfo:
    """A collection as a client sees it."""
    collection, generation = record.collection, record.collection.generation
    return CollectionInfo(
        name=collection.name,
        language=generation.language,
        analyzer=generation.analyzer,
        embedding=EmbeddingInfo(generation.provider, generation.model, generation.dim),
        search=collection.search,
        chunking=ChunkingInfo(generation.chunk_size, generation.chunk_overlap),
        generation=generation.id,
        index="exact" if record.index.ef_search is None else "hnsw",
        vector_index=record.index,
        documents=record.documents,
        chunks=record.chunks,
        summaries=record.summaries,
        pending_jobs=record.pending_jobs,
        created_at=record.created_at,
        updated_at=record.updated_at,
        collection_key=key or UNSET,
    )
