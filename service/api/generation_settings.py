"""What a generation is built with: given when a collection is made, changed by a re-index."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from service.api.contextual_settings import ContextualSettings, checked_contextual
from service.api.fields import ModelName
from service.api.services import Services
from service.errors import InvalidRequestError, ProviderError, UnavailableError
from service.indexing.splitting import OVERLAP_PART
from service.models import AnalyzerKind, Generation
from service.providers.embedders import DEFAULT_MODELS, NO_PROVIDER
from service.providers.outbound import UnknownProviderError

DEFAULT_CHUNK_SIZE = 512

Language = Annotated[str, Meta(min_length=1, max_length=63)]
ProviderName = Annotated[str, Meta(min_length=1, max_length=64)]
Dimension = Annotated[int, Meta(ge=1, le=16_000)]


class EmbeddingChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who makes the vectors: `local` (the bundled model), `none`, or a registered provider."""

    provider: ProviderName = "local"
    model: ModelName | None = None
    dim: Dimension | None = None


class EmbeddingChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is to make the vectors from now on."""

    provider: ProviderName
    model: ModelName | None = None
    dim: Dimension | None = None


class Chunking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens of a chunk, and how many of them it shares with the one before it."""

    size: Annotated[int, Meta(ge=16, le=8192)] = DEFAULT_CHUNK_SIZE
    overlap: Annotated[int, Meta(ge=0, le=8191)] | None = None


class Bm25(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast repeated words saturate (`k1`), and how much long chunks are held back (`b`)."""

    k1: Annotated[float, Meta(ge=0, le=10)] = 1.2
    b: Annotated[float, Meta(ge=0, le=1)] = 0.75


class GenerationChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a new generation is to have otherwise; all else stays as it is."""

    language: Language | UnsetType = UNSET
    analyzer: AnalyzerKind | UnsetType = UNSET
    embedding: EmbeddingChange | UnsetType = UNSET
    chunking: Chunking | UnsetType = UNSET
    bm25: Bm25 | UnsetType = UNSET
    contextual: ContextualSettings | UnsetType = UNSET


async def checked_language(language: str, services: Services) -> str:
    """A language that this server knows; raises `InvalidRequestError`."""
    if not await services.languages.known(language):
        known = ", ".join(services.languages.names())
        raise InvalidRequestError.at("/language", f"must be one of: {known}")
    return language


async def checked_embedding(
    asked: EmbeddingChoice | EmbeddingChange, services: Services, team_id: int
) -> tuple[str | None, int | None]:
    """Model and dimension; raises `InvalidRequestError` when there is no such embedder."""
    if asked.provider == NO_PROVIDER:
        if asked.model is not None:
            raise InvalidRequestError.at("/embedding/model", "provider none has no model")
        return None, asked.dim
    embedders = services.embedders
    try:
        kind = await embedders.kind_of(asked.provider, team_id=team_id)
        model = asked.model or DEFAULT_MODELS.get(kind)
        if model is None:
            raise InvalidRequestError.at("/embedding/model", "is required for this provider")
        dim = await embedders.check(asked.provider, model, asked.dim, team_id=team_id)
    except UnknownProviderError as error:
        raise InvalidRequestError.at(
            "/embedding/provider", "must be local, none or the name of a registered provider"
        ) from error
    except ProviderError as error:
        if error.transient:
            raise UnavailableError(f"the dimension cannot be found out: {error}") from error
        raise InvalidRequestError.at("/embedding", str(error)) from error
    return model, dim


def checked_chunking(asked: Chunking) -> tuple[int, int]:
    """Size and overlap; raises `InvalidRequestError`."""
    size = asked.size
    overlap = size // OVERLAP_PART if asked.overlap is None else asked.overlap
    if overlap >= size:
        raise InvalidRequestError.at("/chunking/overlap", f"must be less than the size, {size}")
    return size, overlap


async def wanted_generation(
    changes: GenerationChanges, active: Generation, services: Services
) -> Generation:
    """The active generation as it would be with the changes; raises `InvalidRequestError`."""
    fields: dict[str, object] = {}
    if changes.language is not UNSET:
        fields["language"] = await checked_language(changes.language, services)
    if changes.analyzer is not UNSET:
        fields["analyzer"] = changes.analyzer
    if changes.embedding is not UNSET:
        model, dim = await checked_embedding(changes.embedding, services, active.team_id)
        fields.update(provider=changes.embedding.provider, model=model, dim=dim)
    if changes.chunking is not UNSET:
        fields["chunk_size"], fields["chunk_overlap"] = checked_chunking(changes.chunking)
    if changes.bm25 is not UNSET:
        fields.update(k1=changes.bm25.k1, b=changes.bm25.b)
    if changes.contextual is not UNSET:
        fields["contextual"] = await checked_contextual(
            changes.contextual, services, active.team_id
        )
    return msgspec.structs.replace(active, **fields)
