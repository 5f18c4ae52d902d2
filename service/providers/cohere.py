"""Cohere: reranking."""

from collections.abc import Sequence
from typing import Any

import msgspec

from service.providers.registry import Probe


class Kind(msgspec.Struct, frozen=True):
    """What all calls share."""

    base_url: str = "https://api.cohere.com"

    def headers(self, secret: str) -> dict[str, str]:
        """The key as a bearer token."""
        return {"Authorization": f"Bearer {secret}"}

    def probe(self, model: str | None) -> Probe:
        """The list of models costs nothing; a named model ranks one word."""
        if model is None:
            return Probe("GET", "/v1/models?page_size=1")
        return Probe("POST", "/v2/rerank", {"model": model, "query": "key", "documents": ["key"]})


KIND = Kind()


class Reranking(msgspec.Struct):
    """`POST /v2/rerank`; scores of all documents."""

    path: str = "/v2/rerank"
    default_model: str | None = None
    query_tokens: int = 2_000
    document_tokens: int = 4_000

    def body(self, model: str, query: str, documents: Sequence[str]) -> dict[str, Any]:
        """The request."""
        return {"model": model, "query": query, "documents": documents, "top_n": len(documents)}


RERANKING = Reranking()
