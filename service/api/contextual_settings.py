"""How chunks are situated in their documents: part of what a generation is built with."""

from typing import Annotated

import msgspec
from msgspec import Meta

from service.api.fields import ModelName, Name, provider_at
from service.api.services import Services
from service.errors import InvalidRequestError
from service.indexing.headings import HEADING_VERSION
from service.models import BatchPolicy, ContextMode, Contextual
from service.providers.context_prompt import PROMPT_VERSION
from service.providers.contextualizers import check_contextualizer


class ContextualSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A short header for each chunk, written by a `model` or joined of the `heading`s above it."""

    enabled: bool = False
    mode: ContextMode = "model"
    provider: Name | None = None
    model: ModelName | None = None
    batch: BatchPolicy = "never"
    """`auto` asks by batch for more than 2,000 chunks of a job: half the price, hours later."""
    embed: bool = False
    """Embed headers made of headings too; a model's headers always are."""
    concurrency: Annotated[int, Meta(ge=1, le=64)] = 4
    """Calls in flight for the headers of the collection, in each process."""


async def checked_contextual(
    asked: ContextualSettings, services: Services, team_id: int
) -> Contextual:
    """The settings as a generation has them; raises `InvalidRequestError`."""
    if asked.enabled and asked.mode == "heading":
        return Contextual(enabled=True, mode="heading", embed=asked.embed, version=HEADING_VERSION)
    if not asked.enabled:
        return Contextual()
    if asked.provider is None or asked.model is None:
        missing = "provider" if asked.provider is None else "model"
        raise InvalidRequestError.at(
            f"/contextual/{missing}", "a model that writes headers needs it"
        )
    with provider_at("/contextual/provider", "the name of a registered provider"):
        await check_contextualizer(services.providers.accounts, team_id, asked.provider)
    return Contextual(
        enabled=True,
        provider=asked.provider,
        model=asked.model,
        batch=asked.batch,
        concurrency=asked.concurrency,
        version=PROMPT_VERSION,
    )
