"""Which module serves each kind of provider: a new kind is one file and one line a capability."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from service.errors import ProviderError
from service.providers.base import Embedder, Header, Passage

if TYPE_CHECKING:
    from service.providers.outbound import Account

REMOTES = {
    "anthropic": "service.providers.anthropic",
    "cohere": "service.providers.cohere",
    "openai": "service.providers.openai",
    "voyage": "service.providers.voyage",
}
"""Kind of a service over HTTP: module with `KIND`."""
EMBEDDERS = {
    "local": "service.providers.local",
    "openai": "service.providers.openai",
    "voyage": "service.providers.voyage",
}
"""Provider kind: module with `create(model, dim, options)`, imported when first used."""

RERANKERS = {
    "cohere": "service.providers.cohere",
    "voyage": "service.providers.voyage",
}
"""Kind of a reranking service: module with `RERANKING`."""

CONTEXTUALIZERS = {
    "anthropic": "service.providers.anthropic",
}
"""Kind of a service that situates passages: module with `CONTEXTUALIZING`."""


class EmbedderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator or a team configures; each provider reads what concerns it."""

    document_threads: int = 1
    query_threads: int = 2
    account: "Account | None" = None
    """Whose name calls to a service are made in."""


class Probe(msgspec.Struct, frozen=True):
    """A call that costs next to nothing and tells whether a key works."""

    method: str
    path: str
    body: Any = None


class RemoteKind(Protocol):
    """What all calls to one kind of service share."""

    base_url: str

    def headers(self, secret: str) -> dict[str, str]:
        """How a key is sent."""
        ...

    def probe(self, model: str | None) -> Probe:
        """The cheapest call that checks the key, and the model if one is named."""
        ...


class Contextualizing(Protocol):
    """What one kind of service says and takes to situate a passage."""

    path: str
    batch_path: str | None

    def body(
        self, model: str, passage: Passage, *, cached: bool, lasting: bool = False
    ) -> dict[str, Any]:
        """The request; with `cached` the document is kept for the requests that follow.

        `lasting`: for an hour, not for minutes.
        """
        ...

    def header(self, answer: bytes) -> Header:
        """What the answer says; raises `ProviderError`."""
        ...

    def batch_body(self, requests: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Many requests in one, by id."""
        ...

    def batch_state(self, answer: bytes) -> tuple[str, bool]:
        """Id of a batch and whether it has ended; raises `ProviderError`."""
        ...

    def batch_headers(self, answer: bytes) -> dict[str, Header]:
        """Headers by id, of those requests that were answered; raises `ProviderError`."""
        ...


class Reranking(Protocol):
    """What one kind of service says and takes to rank documents."""

    path: str
    default_model: str | None
    query_tokens: int
    document_tokens: int

    def body(self, model: str, query: str, documents: Sequence[str]) -> dict[str, Any]:
        """The request for the scores of all documents."""
        ...


class EmbedderFactory(Protocol):
    """What a provider's module offers."""

    def create(self, model: str, dim: int | None, options: EmbedderOptions) -> Embedder:
        """Make or share an embedder; raises `ProviderError` when it cannot work."""
        ...


@cache
def remote_kind(kind: str) -> RemoteKind:
    """What calls to this kind of service share; raises `ProviderError` for one in this process."""
    if kind not in REMOTES:
        raise ProviderError(f"{kind} is no service")
    return cast(RemoteKind, import_module(REMOTES[kind]).KIND)


@cache
def reranking(kind: str) -> Reranking:
    """How this kind of service ranks; raises `ProviderError` when it does not."""
    if kind not in RERANKERS:
        raise ProviderError(f"a provider of kind {kind} has no reranking")
    return cast(Reranking, import_module(RERANKERS[kind]).RERANKING)


@cache
def contextualizing(kind: str) -> Contextualizing:
    """How this kind of service writes headers; raises `ProviderError` when it does not."""
    if kind not in CONTEXTUALIZERS:
        raise ProviderError(f"a provider of kind {kind} writes no headers")
    return cast(Contextualizing, import_module(CONTEXTUALIZERS[kind]).CONTEXTUALIZING)


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
