"""Collections: list, look at, delete."""

from collections.abc import Sequence
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
from service.db.audit_log import note
from service.db.builds import BuildInfo, KeptGeneration, builds_under_way, kept_generations
from service.db.catalog import CollectionRecord, IndexRecord
from service.db.keys import forget_collection
from service.db.partitions import drop_orphan_partitions
from service.db.pool import Connection
from service.errors import NotFoundError, UnavailableError
from service.models import (
    AnalyzerKind,
    BatchPolicy,
    ContextMode,
    Generation,
    JobStatus,
    RerankDefaults,
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


class Bm25Info(msgspec.Struct, frozen=True):
    """Parameters of BM25 in the active generation."""

    k1: float
    b: float


class ContextualInfo(msgspec.Struct, frozen=True):
    """How chunks are situated in their documents in the active generation."""

    enabled: bool
    mode: ContextMode
    provider: str | None
    model: str | None
    batch: BatchPolicy
    embed: bool
    concurrency: int
    version: int
    """Of the prompt, or of the way headings are joined."""


class GenerationBuild(msgspec.Struct, frozen=True):
    """A generation that is being built, its settings, and how far it is."""

    generation: int
    job_id: int
    status: JobStatus
    documents: int
    indexed: int
    failed: int
    language: str
    analyzer: AnalyzerKind
    embedding: EmbeddingInfo
    chunking: ChunkingInfo
    bm25: Bm25Info
    contextual: ContextualInfo


class PreviousGeneration(msgspec.Struct, frozen=True):
    """The generation before the active one, while it can be returned to."""

    generation: int
    until: datetime


class CollectionInfo(msgspec.Struct, frozen=True):
    """A collection: its configuration and what it holds."""

    name: str
    language: str
    analyzer: AnalyzerKind
    embedding: EmbeddingInfo
    search: SearchDefaults
    chunking: ChunkingInfo
    bm25: Bm25Info
    contextual: ContextualInfo
    rerank: RerankDefaults
    generation: int
    building: GenerationBuild | None
    previous: PreviousGeneration | None
    index: Literal["exact", "hnsw"]
    """How vectors are searched: all compared, or by way of the approximate index."""
    vector_index: IndexRecord
    documents: int
    chunks: int
    summaries: int
    pending_jobs: int
    stale_chunks: int
    """Chunks and summaries that are shown although a newer version of their document waits."""
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
        infos = await infos_of(connection, records)
    return CollectionList(infos, total)


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
        return await describe(connection, principal.team_id, collection.id)


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
        await note(connection, principal, "collection.delete", collection.name)
    services.access.forget()


async def describe(
    connection: Connection, team_id: int, collection_id: int, key: str | None = None
) -> CollectionInfo:
    """A collection as a client sees it; raises `NotFoundError`."""
    records = await catalog.describe_collections(connection, team_id, only=[collection_id])
    if not records:
        raise NotFoundError("unknown collection")
    (info,) = await infos_of(connection, records)
    return msgspec.structs.replace(info, collection_key=key or UNSET)


async def infos_of(
    connection: Connection, records: Sequence[CollectionRecord]
) -> list[CollectionInfo]:
    """Collections as a client sees them."""
    ids = [record.collection.id for record in records]
    building = await builds_under_way(connection, ids)
    kept = await kept_generations(connection, ids)
    return [
        _info_of(record, building.get(record.collection.id), kept.get(record.collection.id))
        for record in records
    ]


def _info_of(
    record: CollectionRecord, building: BuildInfo | None, kept: KeptGeneration | None
) -> CollectionInfo:
    collection, generation = record.collection, record.collection.generation
    return CollectionInfo(
        name=collection.name,
        language=generation.language,
        analyzer=generation.analyzer,
        embedding=_embedding(generation),
        search=collection.search,
        chunking=_chunking(generation),
        bm25=Bm25Info(generation.k1, generation.b),
        contextual=_contextual(generation),
        rerank=collection.rerank,
        generation=generation.id,
        building=_build(building) if building else None,
        previous=PreviousGeneration(kept.id, kept.until) if kept else None,
        index="exact" if record.index.ef_search is None else "hnsw",
        vector_index=record.index,
        documents=record.documents,
        chunks=record.chunks,
        summaries=record.summaries,
        pending_jobs=record.pending_jobs,
        stale_chunks=record.stale_chunks,
        created_at=record.created_at,
        updated_at=record.updated_at,
    )


def _build(building: BuildInfo) -> GenerationBuild:
    generation = building.generation
    return GenerationBuild(
        generation=generation.id,
        job_id=building.job_id,
        status=building.status,
        documents=building.documents,
        indexed=building.indexed,
        failed=building.failed,
        language=generation.language,
        analyzer=generation.analyzer,
        embedding=_embedding(generation),
        chunking=_chunking(generation),
        bm25=Bm25Info(generation.k1, generation.b),
        contextual=_contextual(generation),
    )


def _embedding(generation: Generation) -> EmbeddingInfo:
    return EmbeddingInfo(generation.provider, generation.model, generation.dim)


def _chunking(generation: Generation) -> ChunkingInfo:
    return ChunkingInfo(generation.chunk_size, generation.chunk_overlap)


def _contextual(generation: Generation) -> ContextualInfo:
    return ContextualInfo(**msgspec.structs.asdict(generation.contextual))
