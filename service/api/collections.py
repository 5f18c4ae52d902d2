"""Collections: create, list, look at, change, delete."""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, delete, get, patch, post
from litestar.datastructures import State
from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType

from service.api.access import CurrentCollection, CurrentPrincipal, any_scope, requires
from service.api.fields import Count, GivenKey, Limit, ModelName, Name, Offset, Share
from service.api.problems import CREATING, EVERYWHERE
from service.api.services import CurrentServices, Services
from service.db import catalog
from service.db.catalog import CollectionRecord, NewCollection
from service.db.keys import NewKey, forget_collection, insert_key
from service.db.partitions import drop_orphan_partitions
from service.db.pool import Connection
from service.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    ProviderError,
    UnavailableError,
)
from service.models import (
    AnalyzerKind,
    FusionMethod,
    Mode,
    SearchDefaults,
    Weights,
)
from service.providers.embedders import DEFAULT_MODELS, NO_PROVIDER, provider_names
from service.security import hash_key, new_key, same_key
from service.telemetry import log

DEFAULT_CHUNK_SIZE = 512
OVERLAP_PART = 8
"""Without an overlap of its own a chunk shares an eighth of its size with the next."""


class LegWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Share of each leg in the fused score; not both 0."""

    dense: Share
    lexical: Share


class SearchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a collection is searched when a request does not say; null is the automatic choice."""

    mode: Mode = "hybrid"
    method: FusionMethod | None = None
    weights: LegWeights | None = None
    rrf_k: Count | None = None
    fetch_k: Count = 40


class SearchChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change of the search settings; null returns to the automatic choice."""

    mode: Mode | UnsetType = UNSET
    method: FusionMethod | UnsetType | None = UNSET
    weights: LegWeights | UnsetType | None = UNSET
    rrf_k: Count | UnsetType | None = UNSET
    fetch_k: Count | UnsetType = UNSET


class EmbeddingChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who makes the vectors: `local` (the bundled model) or `none` (the client, or nobody)."""

    provider: Annotated[str, Meta(min_length=1, max_length=64)] = "local"
    model: ModelName | None = None
    dim: Annotated[int, Meta(ge=1, le=16_000)] | None = None


class Chunking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens of a chunk, and how many of them it shares with the one before it."""

    size: Annotated[int, Meta(ge=16, le=8192)] = DEFAULT_CHUNK_SIZE
    overlap: Annotated[int, Meta(ge=0, le=8191)] | None = None


class CollectionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new collection; only `name` is required."""

    name: Name
    language: Annotated[str, Meta(min_length=1, max_length=63)] = "simple"
    analyzer: AnalyzerKind = "language"
    embedding: EmbeddingChoice = EmbeddingChoice()
    search: SearchSettings = SearchSettings()
    chunking: Chunking = Chunking()
    collection_key: bool | GivenKey = False


class CollectionChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change; all but `search` is fixed when the index is built and answers 409."""

    search: SearchChanges = SearchChanges()
    language: Any | UnsetType = UNSET
    analyzer: Any | UnsetType = UNSET
    embedding: Any | UnsetType = UNSET
    chunking: Any | UnsetType = UNSET


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
    index: Literal["exact"]
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


@post(
    "/collections",
    guards=[requires("admin", whole_team=True)],
    responses=CREATING,
    status_code=201,
    summary="Create a collection",
    tags=["collections"],
)
async def create_collection(
    data: JSONBody[CollectionRequest],
    services: CurrentServices,
    principal: CurrentPrincipal,
) -> CollectionInfo:
    """Create a collection with its first generation; with `collection_key` also a key for it."""
    new = await _checked(data, services)
    key = _collection_key(data.collection_key, services)
    async with services.database.administer() as connection:
        collection_id, _ = await catalog.insert_collection(connection, principal.team_id, new)
        if key is not None:
            stored = NewKey(data.name, hash_key(key), ["index", "search"], [collection_id])
            await insert_key(connection, principal.team_id, stored)
        record = await _describe(connection, principal.team_id, collection_id)
    return _info(record, key)


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
    return CollectionList([_info(record) for record in records], total)


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
        return _info(await _describe(connection, principal.team_id, collection.id))


@patch(
    "/collections/{name:str}",
    guards=[requires("admin")],
    responses=CREATING,
    summary="Change a collection",
    tags=["collections"],
)
async def change_collection(
    data: JSONBody[CollectionChanges],
    services: CurrentServices,
    principal: CurrentPrincipal,
    collection: CurrentCollection,
) -> CollectionInfo:
    """Change how a collection is searched; nothing is re-indexed."""
    _refuse_rebuilds(data)
    async with services.database.administer() as connection:
        current = await catalog.lock_collection(connection, collection.id)
        if current is None:
            raise NotFoundError("unknown collection")
        changed = _changed(current.search, data.search)
        await catalog.update_search(connection, collection.id, changed)
        return _info(await _describe(connection, principal.team_id, collection.id))


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


async def _checked(data: CollectionRequest, services: Services) -> NewCollection:
    if not await services.languages.known(data.language):
        known = ", ".join(services.languages.names())
        raise InvalidRequestError.at("/language", f"must be one of: {known}")
    model, dim = await _embedding(data.embedding, services)
    size, overlap = data.chunking.size, data.chunking.overlap
    overlap = size // OVERLAP_PART if overlap is None else overlap
    if overlap >= size:
        raise InvalidRequestError.at("/chunking/overlap", f"must be less than the size, {size}")
    search = data.search
    return NewCollection(
        name=data.name,
        search=SearchDefaults(
            mode=search.mode,
            method=search.method,
            weights=_weights(search.weights),
            rrf_k=search.rrf_k,
            fetch_k=search.fetch_k,
        ),
        provider=data.embedding.provider,
        model=model,
        dim=dim,
        language=data.language,
        analyzer=data.analyzer,
        chunk_size=size,
        chunk_overlap=overlap,
    )


async def _embedding(asked: EmbeddingChoice, services: Services) -> tuple[str | None, int | None]:
    if asked.provider not in provider_names():
        known = ", ".join(provider_names())
        raise InvalidRequestError.at("/embedding/provider", f"must be one of: {known}")
    if asked.provider == NO_PROVIDER:
        if asked.model is not None:
            raise InvalidRequestError.at("/embedding/model", "provider none has no model")
        return None, asked.dim
    model = asked.model or DEFAULT_MODELS.get(asked.provider)
    if model is None:
        raise InvalidRequestError.at("/embedding/model", "is required for this provider")
    try:
        embedder = await services.embedders.find(asked.provider, model, asked.dim)
    except ProviderError as error:
        raise InvalidRequestError.at("/embedding", str(error)) from error
    return model, embedder.dim


def _weights(given: LegWeights | None) -> Weights | None:
    if given is None:
        return None
    if given.dense + given.lexical == 0:
        raise InvalidRequestError.at("/search/weights", "must not both be 0")
    return Weights(given.dense, given.lexical)


def _collection_key(asked: bool | str, services: Services) -> str | None:
    if isinstance(asked, bool):
        return new_key() if asked else None
    root = services.settings.root_api_key
    if root is not None and same_key(asked, root.get_secret_value()):
        raise ConflictError("the key cannot be used, choose another")
    return asked


def _refuse_rebuilds(data: CollectionChanges) -> None:
    for field in ("language", "analyzer", "embedding", "chunking"):
        if getattr(data, field) is not UNSET:
            raise ConflictError(
                f"{field} is fixed when the index is built: changing it needs a re-index",
            )


def _changed(current: SearchDefaults, changes: SearchChanges) -> SearchDefaults:
    given: dict[str, Any] = {
        field: getattr(changes, field)
        for field in SearchChanges.__struct_fields__
        if getattr(changes, field) is not UNSET
    }
    if "weights" in given:
        given["weights"] = _weights(given["weights"])
    return msgspec.structs.replace(current, **given)


async def _describe(connection: Connection, team_id: int, collection_id: int) -> CollectionRecord:
    records = await catalog.describe_collections(connection, team_id, only=[collection_id])
    if not records:
        raise NotFoundError("unknown collection")
    return records[0]


def _info(record: CollectionRecord, key: str | None = None) -> CollectionInfo:
    collection, generation = record.collection, record.collection.generation
    return CollectionInfo(
        name=collection.name,
        language=generation.language,
        analyzer=generation.analyzer,
        embedding=EmbeddingInfo(generation.provider, generation.model, generation.dim),
        search=collection.search,
        chunking=ChunkingInfo(generation.chunk_size, generation.chunk_overlap),
        generation=generation.id,
        index="exact",
        documents=record.documents,
        chunks=record.chunks,
        summaries=record.summaries,
        pending_jobs=record.pending_jobs,
        created_at=record.created_at,
        updated_at=record.updated_at,
        collection_key=key or UNSET,
    )
