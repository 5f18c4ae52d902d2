"""OpenAI, and every server that speaks its embeddings API."""

from collections.abc import Sequence
from typing import Any

import msgspec

from service.errors import ProviderError
from service.providers.registry import EmbedderOptions, Probe
from service.providers.remote_embedder import RemoteEmbedder, TextKind


class Kind(msgspec.Struct, frozen=True):
    """What all calls share."""

    base_url: str = "https://api.openai.com/v1"

    def headers(self, secret: str) -> dict[str, str]:
        """The key as a bearer token."""
        return {"Authorization": f"Bearer {secret}"}

    def probe(self, model: str | None) -> Probe:
        """The list of models costs nothing; a named model embeds one word."""
        if model is None:
            return Probe("GET", "/models")
        return Probe("POST", "/embeddings", {"model": model, "input": ["key"]})


KIND = Kind()


class Dialect(msgspec.Struct):
    """`POST /embeddings`; documents and queries are embedded alike."""

    path: str = "/embeddings"
    window: int = 8191
    call_tokens: int = 300_000
    call_texts: int = 256

    def body(
        self, model: str, texts: Sequence[str], kind: TextKind, dim: int | None
    ) -> dict[str, Any]:
        """The request."""
        del kind
        body = {"model": model, "input": texts, "encoding_format": "base64"}
        return body if dim is None else {**body, "dimensions": dim}


def create(model: str, dim: int | None, options: EmbedderOptions) -> RemoteEmbedder:
    """An embedder for one model of an account."""
    if options.account is None:
        raise ProviderError("openai has to be registered as a provider first")
    return RemoteEmbedder(options.account, model, dim, Dialect())
