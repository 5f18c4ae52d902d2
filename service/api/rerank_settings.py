"""How a collection's candidates are reranked: given when it is made, changed at any time."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from service.api.fields import Count, ModelName, Name, provider_at
from service.api.services import Services
from service.models import RerankDefaults
from service.providers.rerankers import check_reranker

Milliseconds = Annotated[int, Meta(ge=1, le=60_000)]


class RerankSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reranking by default; it needs all of `enabled`, a provider and a model to happen."""

    enabled: bool = False
    provider: Name | None = None
    model: ModelName | None = None
    top_n: Count = 50
    timeout_ms: Milliseconds = 800


class RerankChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change of it."""

    enabled: bool | UnsetType = UNSET
    provider: Name | UnsetType | None = UNSET
    model: ModelName | UnsetType | None = UNSET
    top_n: Count | UnsetType = UNSET
    timeout_ms: Milliseconds | UnsetType = UNSET


async def check_rerank(
    asked: RerankSettings | RerankChanges, services: Services, team_id: int
) -> None:
    """Raise `InvalidRequestError` when the provider is not registered or does not rank."""
    if not isinstance(asked.provider, str):
        return
    with provider_at("/rerank/provider", "local or the name of a registered provider"):
        await check_reranker(services.providers.accounts, team_id, asked.provider)


def changed_rerank(
    current: RerankDefaults, asked: RerankSettings | RerankChanges
) -> RerankDefaults:
    """The settings as they are to be."""
    given = {
        field: getattr(asked, field)
        for field in asked.__struct_fields__
        if getattr(asked, field) is not UNSET
    }
    return msgspec.structs.replace(current, **given)
