"""The embedders of a process: one for each model of each account, made when first used."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from service.errors import ProviderError
from service.models import Generation
from service.providers.base import Embedder
from service.providers.outbound import Account, Accounts
from service.providers.registry import EMBEDDERS, EmbedderOptions, create_embedder

NO_PROVIDER = "none"
BUNDLED = "local"
DEFAULT_MODELS = {BUNDLED: "multilingual-e5-small"}
MAX_REMOTE = 1000
"""Remote embedders that are kept; they hold no connection, only what they learned."""

FREE_PROVIDERS = {"local", NO_PROVIDER}

Create: TypeAlias = Callable[[str, str, int | None, EmbedderOptions | None], Embedder]


@runtime_checkable
class Warmable(Protocol):
    """An embedder that has something to load before its first call."""

    async def warm(self, *, documents: bool, queries: bool) -> None:
        """Load what these kinds of text need."""
        ...


@runtime_checkable
class Probing(Protocol):
    """An embedder that finds its dimension out by asking."""

    async def probe(self) -> int:
        """The dimension; raises `ProviderError` when the model cannot be used."""
        ...


def is_free(provider: str) -> bool:
    """Whether embedding costs nothing; what other providers ask is not known here."""
    return provider in FREE_PROVIDERS


class Embedders:
    """Hands out embedders and closes them all."""

    def __init__(
        self,
        options: EmbedderOptions,
        create: Create = create_embedder,
        accounts: Accounts | None = None,
    ) -> None:
        self._options = options
        self._create = create
        self._accounts = accounts
        self._made: dict[Hashable, Embedder] = {}
        self._remote: dict[Hashable, Embedder] = {}

    async def get(self, generation: Generation) -> Embedder | None:
        """The embedder of a generation, None without a provider; raises `ProviderError`."""
        if generation.provider == NO_PROVIDER or generation.model is None:
            return None
        return await self.find(
            generation.provider, generation.model, generation.dim, team_id=generation.team_id
        )

    async def find(
        self, provider: str, model: str, dim: int | None, *, team_id: int | None = None
    ) -> Embedder:
        """The embedder of a model; raises `ProviderError` when there is none.

        A provider is the bundled one or a name that the team has registered.
        """
        if provider == BUNDLED or self._accounts is None or team_id is None:
            return await self._bundled(provider, model, dim)
        account = await self._accounts.find(team_id, provider)
        kind = account.credential.kind
        if kind == BUNDLED:
            return await self._bundled(kind, model, dim)
        if kind not in EMBEDDERS:
            raise ProviderError(f"a provider of kind {kind} has no embeddings")
        return await self._of_account(account, model, dim)

    async def kind_of(self, provider: str, *, team_id: int) -> str:
        """The kind of a bundled or registered provider; raises `UnknownProviderError`."""
        if provider == BUNDLED or self._accounts is None:
            return provider
        return (await self._accounts.find(team_id, provider)).credential.kind

    async def check(self, provider: str, model: str, dim: int | None, *, team_id: int) -> int:
        """The dimension of a model that can be used; raises `ProviderError`.

        A service that is out of reach is believed when the dimension is given.
        """
        embedder = await self.find(provider, model, dim, team_id=team_id)
        if not isinstance(embedder, Probing):
            return embedder.dim
        try:
            return await embedder.probe()
        except ProviderError as error:
            if dim is None or not error.transient:
                raise
            return dim

    async def warm(self, *, documents: bool, queries: bool) -> None:
        """Load the bundled model, if it is installed; raises `ProviderError` if it is broken."""
        embedder = await self.find(BUNDLED, DEFAULT_MODELS[BUNDLED], None)
        if isinstance(embedder, Warmable):
            await embedder.warm(documents=documents, queries=queries)

    async def close(self) -> None:
        """Close every embedder once."""
        made = {id(embedder): embedder for embedder in self._made.values()}
        self._made.clear()
        self._remote.clear()
        for embedder in made.values():
            await embedder.close()

    async def _bundled(self, provider: str, model: str, dim: int | None) -> Embedder:
        wanted = (provider, model, dim)
        if wanted not in self._made:
            # The first use imports the provider's libraries, which takes a while.
            embedder = await asyncio.to_thread(self._create, provider, model, dim, self._options)
            self._made.setdefault(wanted, embedder)
        return self._made[wanted]

    async def _of_account(self, account: Account, model: str, dim: int | None) -> Embedder:
        wanted = (account.credential.id, model, dim)
        embedder = self._remote.get(wanted)
        if embedder is None:
            options = msgspec.structs.replace(self._options, account=account)
            embedder = self._create(account.credential.kind, model, dim, options)
            if len(self._remote) >= MAX_REMOTE:
                self._remote.clear()
            self._remote[wanted] = embedder
        return embedder
