"""The embedders of a process: one for each provider, model and dimension, made when first used."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from service.models import Generation
from service.providers.base import Embedder
from service.providers.registry import EMBEDDERS, EmbedderOptions, create_embedder

NO_PROVIDER = "none"
DEFAULT_MODELS = {"local": "multilingual-e5-small"}

FREE_PROVIDERS = {"local", NO_PROVIDER}

Create: TypeAlias = Callable[[str, str, int | None, EmbedderOptions | None], Embedder]


@runtime_checkable
class Warmable(Protocol):
    """An embedder that has something to load before its first call."""

    async def warm(self, *, documents: bool, queries: bool) -> None:
        """Load what these kinds of text need."""
        ...


def provider_names() -> list[str]:
    """What `embedding.provider` may name."""
    return [*sorted(EMBEDDERS), NO_PROVIDER]


def is_free(provider: str) -> bool:
    """Whether embedding costs nothing; what other providers ask is not known here."""
    return provider in FREE_PROVIDERS


class Embedders:
    """Hands out embedders and closes them all."""

    def __init__(self, options: EmbedderOptions, create: Create = create_embedder) -> None:
        self._options = options
        self._create = create
        self._made: dict[tuple[str, str, int | None], Embedder] = {}

    async def get(self, generation: Generation) -> Embedder | None:
        """The embedder of a generation, None without a provider; raises `ProviderError`."""
        if generation.provider == NO_PROVIDER or generation.model is None:
            return None
        return await self.find(generation.provider, generation.model, generation.dim)

    async def find(self, provider: str, model: str, dim: int | None) -> Embedder:
        """The embedder of a model; raises `ProviderError` when there is none."""
        wanted = (provider, model, dim)
        if wanted not in self._made:
            # The first use imports the provider's libraries, which takes a while.
            embedder = await asyncio.to_thread(self._create, provider, model, dim, self._options)
            self._made.setdefault(wanted, embedder)
        return self._made[wanted]

    async def warm(self, *, documents: bool, queries: bool) -> None:
        """Load the bundled model, if it is installed; raises `ProviderError` if it is broken."""
        embedder = await self.find("local", DEFAULT_MODELS["local"], None)
        if isinstance(embedder, Warmable):
            await embedder.warm(documents=documents, queries=queries)

    async def close(self) -> None:
        """Close every embedder once."""
        made = {id(embedder): embedder for embedder in self._made.values()}
        self._made.clear()
        for embedder in made.values():
            await embedder.close()
