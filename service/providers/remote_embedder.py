"""Embeddings from a service: what Voyage, OpenAI and everything compatible have in common."""

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from service.errors import CallTooLargeError, ProviderError
from service.providers.base import EmbeddingBatch, Vector
from service.providers.outbound import Account, Purpose
from service.text import clip_tokens, estimate_tokens

TextKind = Literal["document", "query"]

PROBE_TEXT = "dimension"
SHRINK = 0.6
MAX_SHRINKS = 16
FIRST_RATIO, MOST_RATIO = 1.2, 6.0
LEAST_MEASURED = 200
PARSE_IN_THREAD_BYTES = 2**20


class Dialect(Protocol):
    """What one kind of service says and takes."""

    path: str
    window: int
    """Tokens of one text."""
    call_tokens: int
    """Tokens of all texts of one call."""
    call_texts: int

    def body(
        self, model: str, texts: Sequence[str], kind: TextKind, dim: int | None
    ) -> dict[str, Any]:
        """The request; `dim` only when it is to differ from the model's own."""
        ...


class _Item(msgspec.Struct):
    index: int
    embedding: str | list[float]


class _Usage(msgspec.Struct):
    total_tokens: int = 0


class _Answer(msgspec.Struct):
    data: list[_Item]
    usage: _Usage | None = None


_decoder = msgspec.json.Decoder(_Answer)


class RemoteEmbedder:
    """One model of a service; it learns how many tokens its texts really have."""

    def __init__(self, account: Account, model: str, dim: int | None, dialect: Dialect) -> None:
        self.model = model
        self.max_tokens = dialect.window
        self.batch_texts = dialect.call_texts
        self._account = account
        self._dialect = dialect
        self._dim = dim
        self._shorten: bool | None = None
        """Whether the dimension has to be asked for; None before the first answer."""
        self._first = asyncio.Lock()
        self._ratio = FIRST_RATIO

    @property
    def dim(self) -> int:
        """Length of the vectors; `probe` finds it out if nobody said."""
        if self._dim is None:
            raise ProviderError("the dimension of the model is not known yet")
        return self._dim

    @property
    def batch_tokens(self) -> int:
        """Estimated tokens that fit into one call, by what earlier calls really had."""
        return int(self._dialect.call_tokens / self._ratio)

    async def probe(self) -> int:
        """Ask for one vector: the key, the model and the dimension work, or `ProviderError`."""
        await self._embed([PROBE_TEXT], "query", "search")
        return self.dim

    async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
        """Embed texts as documents; raises `CallTooLargeError` for more than one call takes."""
        fitting, truncated = self._fit(texts)
        if not fitting:
            return EmbeddingBatch(np.zeros((0, self.dim), np.float32), 0)
        try:
            vectors, tokens = await self._embed(fitting, "document", "index")
        except CallTooLargeError:
            self._ratio = min(self._ratio * 1.25, MOST_RATIO)
            if len(fitting) > 1:
                raise
            vectors, tokens = await self._embed_shrunk(fitting[0], "document", "index")
            truncated = (0,)
        return EmbeddingBatch(vectors, tokens, truncated)

    async def embed_query(self, text: str) -> Vector:
        """Embed one text as a query, shape (dim,); nothing is tried again."""
        (fitting,), _ = self._fit([text])
        try:
            vectors, _ = await self._embed([fitting], "query", "search")
        except CallTooLargeError:
            vectors, _ = await self._embed_shrunk(fitting, "query", "search")
        vector: Vector = vectors[0]
        if not vector.any() or not np.isfinite(vector).all():
            raise ProviderError("the provider answered a vector without direction")
        return vector

    def count_tokens(self, text: str) -> int:
        """Tokens of the text, estimated."""
        return estimate_tokens(text)

    async def close(self) -> None:
        """Nothing: the connections belong to the process."""

    def _fit(self, texts: Sequence[str]) -> tuple[list[str], tuple[int, ...]]:
        """Texts cut to the window, and the places of those that were longer."""
        fitting = [clip_tokens(text, self.max_tokens) for text in texts]
        pairs = enumerate(zip(texts, fitting, strict=True))
        return fitting, tuple(at for at, (whole, part) in pairs if len(part) < len(whole))

    async def _embed_shrunk(
        self, text: str, kind: TextKind, purpose: Purpose
    ) -> tuple[Vector, int]:
        """Embed the beginning of a text that is longer than estimated."""
        for _ in range(MAX_SHRINKS):
            text = text[: int(len(text) * SHRINK)]
            try:
                return await self._embed([text], kind, purpose)
            except CallTooLargeError:
                continue
        raise ProviderError("the provider takes no part of the text")

    async def _embed(
        self, texts: Sequence[str], kind: TextKind, purpose: Purpose
    ) -> tuple[Vector, int]:
        if self._shorten is None and purpose == "index":
            # A call of one word finds out what the model gives: with the texts its answer would
            # be paid for and thrown away. The others wait for what it learns.
            async with self._first:
                if self._shorten is None:
                    await self._embed_first([PROBE_TEXT], kind, purpose)
        if self._shorten is None:
            return await self._embed_first(texts, kind, purpose)
        return await self._ask(texts, kind, purpose, shorten=self._shorten)

    async def _embed_first(
        self, texts: Sequence[str], kind: TextKind, purpose: Purpose
    ) -> tuple[Vector, int]:
        """Not every model takes a dimension, so it is asked for only when its own is another."""
        vectors, tokens = await self._ask(texts, kind, purpose, shorten=False, check=False)
        self._dim = self._dim or vectors.shape[1]
        if vectors.shape[1] == self._dim:
            self._shorten = False
            return vectors, tokens
        found = await self._ask(texts, kind, purpose, shorten=True)
        self._shorten = True
        return found

    async def _ask(
        self,
        texts: Sequence[str],
        kind: TextKind,
        purpose: Purpose,
        *,
        shorten: bool,
        check: bool = True,
    ) -> tuple[Vector, int]:
        dialect = self._dialect
        body = dialect.body(self.model, texts, kind, self._dim if shorten else None)
        answer = await self._account.call("POST", dialect.path, body, purpose=purpose)
        if len(answer) > PARSE_IN_THREAD_BYTES:
            vectors, tokens = await asyncio.to_thread(_parse, answer, len(texts))
        else:
            vectors, tokens = _parse(answer, len(texts))
        if check and vectors.shape[1] != self._dim:
            raise ProviderError(
                f"the model gives {vectors.shape[1]} dimensions instead of {self._dim}"
            )
        self._measure(texts, tokens)
        self._account.count("embedding", tokens)
        return vectors, tokens

    def _measure(self, texts: Sequence[str], tokens: int) -> None:
        estimated = sum(map(estimate_tokens, texts))
        if estimated >= LEAST_MEASURED and tokens:
            seen = tokens / estimated * 1.05
            self._ratio = min(max(seen, 0.9 * self._ratio + 0.1 * seen), MOST_RATIO)


def _parse(answer: bytes, count: int) -> tuple[Vector, int]:
    """Unit-length vectors in the order of the texts, and tokens; raises `ProviderError`."""
    try:
        parsed = _decoder.decode(answer)
        rows = {item.index: _vector(item.embedding) for item in parsed.data}
        if len(parsed.data) != count or set(rows) != set(range(count)):
            raise ProviderError("the provider did not answer for every text", transient=True)
        vectors = np.stack([rows[at] for at in range(count)])
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, binascii.Error) as error:
        raise ProviderError("the provider's answer cannot be read", transient=True) from error
    if vectors.shape[1] == 0:
        raise ProviderError("the provider's answer cannot be read", transient=True)
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return unit, parsed.usage.total_tokens if parsed.usage else 0


def _vector(embedding: str | list[float]) -> Vector:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4")
    return np.array(embedding, np.float32)
