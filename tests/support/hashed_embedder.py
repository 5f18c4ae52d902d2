"""An embedder for tests: hashed character n-grams, no model, and switches to break it."""

import asyncio
import re
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from service.providers.base import EmbeddingBatch, Vector

TOKEN = re.compile(r"\w+|[^\w\s]")


class HashedEmbedder:
    """Texts that share words or parts of words are similar; equal texts have equal vectors.

    Set `fail_with` to an error and every call raises it; set `hang` to an event and every
    call waits for it first. `documents` and `queries` record what was embedded.
    """

    batch_texts = 64
    batch_tokens = 25_000

    def __init__(
        self,
        dim: int = 64,
        *,
        model: str = "hashed",
        max_tokens: int = 512,
        fail_with: Exception | None = None,
        hang: asyncio.Event | None = None,
    ) -> None:
        self.model = model
        self.dim = dim
        self.max_tokens = max_tokens
        self.fail_with = fail_with
        self.hang = hang
        self.closed = False
        self.documents: list[str] = []
        self.queries: list[str] = []

    async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
        await self._obey_switches()
        self.documents.extend(texts)
        counts = [self.count_tokens(text) for text in texts]
        return EmbeddingBatch(
            vectors=np.array([self.vector(text) for text in texts], np.float32).reshape(
                -1, self.dim
            ),
            tokens=sum(min(count, self.max_tokens) for count in counts),
            truncated=tuple(at for at, count in enumerate(counts) if count > self.max_tokens),
        )

    async def embed_query(self, text: str) -> Vector:
        await self._obey_switches()
        self.queries.append(text)
        return self.vector(text)

    def count_tokens(self, text: str) -> int:
        return len(TOKEN.findall(text))

    async def close(self) -> None:
        self.closed = True

    def vector(self, text: str) -> Vector:
        """The vector of this text, whether document or query."""
        hashes = np.fromiter((zlib.crc32(gram) for gram in _grams(text)), np.uint32)
        signs = np.where(hashes & 1, 1.0, -1.0)
        sums = np.bincount((hashes >> 1) % self.dim, weights=signs, minlength=self.dim)
        if not sums.any():
            sums[0] = 1.0
        return (sums / np.linalg.norm(sums)).astype(np.float32)

    async def _obey_switches(self) -> None:
        if self.hang is not None:
            await self.hang.wait()
        if self.fail_with is not None:
            raise self.fail_with


def _grams(text: str) -> Iterator[bytes]:
    for token in TOKEN.findall(text.casefold()):
        word = f"<{token}>".encode("utf-8", "replace")
        yield word
        for size in (3, 4):
            for start in range(len(word) - size + 1):
                yield word[start : start + size]
