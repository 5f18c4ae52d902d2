"""Voyage AI: embeddings and reranking."""

from collections.abc import Sequence
from typing import Any

import msgspec

from service.errors import ProviderError
from service.providers.registry import EmbedderOptions, Probe
from service.providers.remote_embedder import RemoteEmbedder, TextKind

PROBE_MODEL = "voyage-4-lite"
CALL_TOKENS = (("lite", 1_000_000), ("large", 120_000), ("code", 120_000))
"""Tokens of one call by a part of the model's name; the general models are in between."""
GENERAL = ("voyage-4", "voyage-3.5")
GENERAL_TOKENS, LEAST_TOKENS = 320_000, 120_000


class Kind(msgspec.Struct, frozen=True):
    """What all calls to Voyage share."""

    base_url: str = "https://api.voyageai.com/v1"

    def headers(self, secret: str) -> dict[str, str]:
        """The key as a bearer token."""
        return {"Authorization": f"Bearer {secret}"}

    def probe(self, model: str | None) -> Probe:
        """One word embedded: there is no call that costs nothing."""
        return Probe("POST", "/embeddings", {"model": model or PROBE_MODEL, "input": ["key"]})


KIND = Kind()


class Dialect(msgspec.Struct):
    """`POST /embeddings`; a text that is too long is refused, not cut in silence."""

    call_tokens: int
    path: str = "/embeddings"
    window: int = 32_000
    call_texts: int = 256

    def body(
        self, model: str, texts: Sequence[str], kind: TextKind, dim: int | None
    ) -> dict[str, Any]:
        """The request."""
        body = {
            "model": model,
            "input": texts,
            "input_type": kind,
            "truncation": False,
            "encoding_format": "base64",
        }
        return body if dim is None else {**body, "output_dimension": dim}


class Reranking(msgspec.Struct):
    """`POST /rerank`; scores of all documents."""

    path: str = "/rerank"
    default_model: str | None = "rerank-2.5"
    query_tokens: int = 8_000
    document_tokens: int = 8_000

    def body(self, model: str, query: str, documents: Sequence[str]) -> dict[str, Any]:
        """The request."""
        return {"model": model, "query": query, "documents": documents, "truncation": True}


RERANKING = Reranking()


def call_tokens(model: str) -> int:
    """Tokens that one call may have, by the model's family."""
    for part, tokens in CALL_TOKENS:
        if part in model:
            return tokens
    return GENERAL_TOKENS if model.startswith(GENERAL) else LEAST_TOKENS


def create(model: str, dim: int | None, options: EmbedderOptions) -> RemoteEmbedder:
    """An embedder for one model of an account."""
    if options.account is None:
        raise ProviderError("voyage has to be registered as a provider first")
    return RemoteEmbedder(options.account, model, dim, Dialect(call_tokens(model)))
