"""Which module makes the embedder of each provider kind: a new one is one file and one line."""

from importlib import import_module
from typing import Protocol, cast

import msgspec

from service.errors import ProviderError
from service.providers.base import Embedder

EMBEDDERS = {
    "local": "service.providers.local",
}
"""Provider kind: module with `create(model, dim, options)`, imported when first used."""


class EmbedderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator or a team configures; each provider reads what concerns it."""

    document_threads: int = 1
    query_threads: int = 2


class EmbedderFactory(Protocol):
    """What a provider's module offers."""

    def create(self, model: str, dim: int | None, options: EmbedderOptions) -> Embedder:
        """Make or share an embedder; raises `ProviderError` when it cannot work."""
        ...


def create_embedder(
    provider: str,
    model: str,
    dim: int | None = None,
    options: EmbedderOptions | None = None,
) -> Embedder:
    """The embedder of a provider kind; without `dim` the model's own dimension."""
    if provider not in EMBEDDERS:
        known = ", ".join(sorted(EMBEDDERS))
        raise ProviderError(f"unknown embedding provider, expected one of: {known}")
    try:
        factory = cast(EmbedderFactory, import_module(EMBEDDERS[provider]))
    except ModuleNotFoundError as error:
        raise ProviderError(
            f"the {provider} embedder is not installed: pip install 'braid[{provider}]'"
        ) from error
    return factory.create(model, dim, options or EmbedderOptions())
