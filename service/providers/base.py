"""The small Protocols that every provider fulfils; the rest of the service knows only these."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from service.models import Generation, Vector

__all__ = [
    "BulkContextualizer",
    "ContextUsage",
    "Contextualizer",
    "ContextualizerSource",
    "Embedder",
    "EmbedderSource",
    "EmbeddingBatch",
    "Header",
    "Passage",
    "Relevance",
    "Reranker",
    "RerankerSource",
    "Vector",
]


class EmbeddingBatch(msgspec.Struct, frozen=True):
    """Embeddings of n texts, in the order of the texts."""

    vectors: Vector
    tokens: int
    truncated: tuple[int, ...] = ()
    """Positions of the texts that were longer than the model's window."""


class Embedder(Protocol):
    """Turns texts into unit-length vectors of one model."""

    model: str
    dim: int
    max_tokens: int
    """The model's window; a longer text is truncated and reported."""
    batch_texts: int
    """Texts that one call takes."""

    @property
    def batch_tokens(self) -> int:
        """Estimated tokens that one call takes."""
        ...

    async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
        """Embed texts as documents; raises `ProviderError`, `CallTooLargeError` for too many."""
        ...

    async def embed_query(self, text: str) -> Vector:
        """Embed one text as a query, shape (dim,); raises `ProviderError`."""
        ...

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` in this model, counted or estimated without network."""
        ...

    async def close(self) -> None:
        """Release sessions, threads and connections."""
        ...


class Relevance(msgspec.Struct, frozen=True):
    """How well one of the documents answers the query; comparable within one answer."""

    index: int
    score: float


class Reranker(Protocol):
    """Scores documents by reading them together with the query."""

    async def rerank(self, query: str, documents: Sequence[str]) -> Sequence[Relevance]:
        """Scores in any order, not yet validated; raises `ProviderError`."""
        ...


class RerankerSource(Protocol):
    """Hands out rerankers that are guarded: their answers are validated and their failures end."""

    async def get(self, team_id: int, provider: str, model: str | None) -> Reranker | None:
        """The team's reranker, None without a model; raises `ProviderError`."""
        ...


class EmbedderSource(Protocol):
    """Hands out the embedder of a generation."""

    async def get(self, generation: Generation) -> Embedder | None:
        """The generation's embedder, None when it has none; raises `ProviderError`."""
        ...


class Passage(msgspec.Struct, frozen=True):
    """A piece of a document, and the document or the part of it that tells enough."""

    text: str
    document: str
    title: str | None


class ContextUsage(msgspec.Struct, frozen=True):
    """Tokens of one call."""

    input: int = 0
    """At the full price: neither read from the prompt cache nor written to it."""
    cache_write: int = 0
    cache_read: int = 0
    output: int = 0


class Header(msgspec.Struct, frozen=True):
    """What a model says of a passage; empty when it has nothing to say."""

    text: str
    usage: ContextUsage


class Contextualizer(Protocol):
    """Writes the header that situates a passage in its document."""

    async def situate(self, passage: Passage, *, cached: bool) -> Header:
        """The header; with `cached` the document is to be kept for the calls that follow.

        Raises `ProviderError`, `CallTooLargeError` for a document beyond the model's window.
        """
        ...


class BulkContextualizer(Protocol):
    """Takes many passages at once and answers within a day, for less."""

    async def submit(self, passages: Mapping[str, Passage]) -> str:
        """Ask about passages, each under an id of at most 64 letters, digits, `-` and `_`.

        The id of the batch; raises `ProviderError`.
        """
        ...

    async def has_ended(self, batch: str) -> bool:
        """Whether the answers are there; raises `ProviderError`."""
        ...

    async def headers(self, batch: str) -> Mapping[str, Header]:
        """The headers of a batch that has ended, without the passages that failed.

        Raises `ProviderError`.
        """
        ...


class ContextualizerSource(Protocol):
    """Hands out the contextualizer of a generation."""

    async def get(self, generation: Generation) -> Contextualizer:
        """The generation's contextualizer; raises `ProviderError`."""
        ...

    async def bulk(self, generation: Generation) -> BulkContextualizer | None:
        """The same for many passages, None where there is none; raises `ProviderError`."""
        ...
