"""How a collection is set up, and what of it can be changed later."""

from typing import Annotated, Any

import msgspec
from litestar import patch, post
from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType

from service.api.access import CurrentCollection, CurrentPrincipal, requires
from service.api.collections import CollectionInfo, describe
from service.api.contextual_settings import ContextualSettings, checked_contextual
from service.api.fields import Count, GivenKey, Name, Share
from service.api.generation_settings import (
    Bm25,
    Chunking,
    EmbeddingChoice,
    GenerationChanges,
    Language,
    checked_chunking,
    checked_embedding,
    checked_language,
    wanted_generation,
)
from service.api.problems import CREATING
from service.api.rerank_settings import (
    RerankChanges,
    RerankSettings,
    changed_rerank,
    check_rerank,
)
from service.api.services import CurrentServices, Services
from service.db import catalog
from service.db.audit_log import note
from service.db.catalog import NewCollection
from service.db.keys import NewKey, insert_key
from service.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    ReindexRequiredError,
)
from service.indexing.reindexing import plan_reindex
from service.indexing.vector_index import request_index
from service.models import (
    AnalyzerKind,
    FusionMethod,
    Generation,
    Mode,
    Quantization,
    RerankDefaults,
    SearchDefaults,
    Weights,
)
from service.security import hash_key, new_key, same_key

TargetRecall = Annotated[float, Meta(ge=0.5, le=1)]
RowBudget = Annotated[int, Meta(ge=100, le=1_000_000)]


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
    target_recall: TargetRecall = 0.99
    """Recall@10 against exact search, below which an approximate one is not used."""
    quantization: Quantization = "none"
    """What the approximate index holds of a vector: all of it, or the signs only."""
    row_budget: RowBudget = 8000
    """Rows that the lexical leg looks at for a query where no posting lists are packed."""


class SearchChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change of the search settings; null returns to the automatic choice."""

    mode: Mode | UnsetType = UNSET
    method: FusionMethod | UnsetType | None = UNSET
    weights: LegWeights | UnsetType | None = UNSET
    rrf_k: Count | UnsetType | None = UNSET
    fetch_k: Count | UnsetType = UNSET
    target_recall: TargetRecall | UnsetType = UNSET
    quantization: Quantization | UnsetType = UNSET
    row_budget: RowBudget | UnsetType = UNSET


class CollectionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new collection; only `name` is required."""

    name: Name
    language: Language = "simple"
    analyzer: AnalyzerKind = "language"
    embedding: EmbeddingChoice = EmbeddingChoice()
    search: SearchSettings = SearchSettings()
    chunking: Chunking = Chunking()
    bm25: Bm25 = Bm25()
    contextual: ContextualSettings = ContextualSettings()
    rerank: RerankSettings = RerankSettings()
    collection_key: bool | GivenKey = False


class CollectionChanges(GenerationChanges, frozen=True, forbid_unknown_fields=True):
    """What to change; all but `search` and `rerank` needs a re-index: 409 with its plan."""

    search: SearchChanges = SearchChanges()
    rerank: RerankChanges = RerankChanges()


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
    new = await _checked(data, services, principal.team_id)
    key = _collection_key(data.collection_key, services)
    async with services.database.administer() as connection:
        collection_id, _ = await catalog.insert_collection(connection, principal.team_id, new)
        if key is not None:
            stored = NewKey(data.name, hash_key(key), ["index", "search"], [collection_id])
            await insert_key(connection, principal.team_id, stored)
        await note(
            connection, principal, "collection.create", data.name, collection_key=key is not None
        )
        return await describe(connection, principal.team_id, collection_id, key)


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
    await _refuse_rebuilds(data, collection.generation, services)
    await check_rerank(data.rerank, services, principal.team_id)
    async with services.database.administer() as connection:
        current = await catalog.lock_collection(connection, collection.id)
        if current is None:
            raise NotFoundError("unknown collection")
        changed = _changed(current.search, data.search)
        await catalog.update_search(connection, collection.id, changed)
        rerank = changed_rerank(current.rerank, data.rerank)
        if rerank != current.rerank:
            await catalog.update_rerank(connection, collection.id, rerank)
        if data.search.row_budget is not UNSET:
            await catalog.set_row_budget(connection, collection.id, data.search.row_budget)
        await note(
            connection,
            principal,
            "collection.change",
            collection.name,
            search=data.search,
            rerank=data.rerank,
        )
        info = await describe(connection, principal.team_id, collection.id)
    if _index_settings(changed) != _index_settings(current.search):
        await request_index(services.database, msgspec.structs.replace(current, search=changed))
    services.access.forget()
    return info


def _index_settings(search: SearchDefaults) -> tuple[Quantization, float]:
    return search.quantization, search.target_recall


async def _checked(data: CollectionRequest, services: Services, team_id: int) -> NewCollection:
    await checked_language(data.language, services)
    model, dim = await checked_embedding(data.embedding, services, team_id)
    size, overlap = checked_chunking(data.chunking)
    await check_rerank(data.rerank, services, team_id)
    search = data.search
    return NewCollection(
        name=data.name,
        search=SearchDefaults(
            mode=search.mode,
            method=search.method,
            weights=_weights(search.weights),
            rrf_k=search.rrf_k,
            fetch_k=search.fetch_k,
            target_recall=search.target_recall,
            quantization=search.quantization,
            row_budget=search.row_budget,
        ),
        provider=data.embedding.provider,
        model=model,
        dim=dim,
        language=data.language,
        analyzer=data.analyzer,
        chunk_size=size,
        chunk_overlap=overlap,
        k1=data.bm25.k1,
        b=data.bm25.b,
        contextual=await checked_contextual(data.contextual, services, team_id),
        rerank=changed_rerank(RerankDefaults(), data.rerank),
    )


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


async def _refuse_rebuilds(data: CollectionChanges, active: Generation, services: Services) -> None:
    wanted = await wanted_generation(data, active, services)
    if wanted == active:
        return
    plan = await plan_reindex(services.database, services.embedders, active, wanted)
    raise ReindexRequiredError(
        f"{', '.join(plan.changes)}: fixed when the index is built, to change it start a re-index",
        plan=msgspec.to_builtins(plan),
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
