"""An embedder that remembers on disk what it embedded, so that a repeated measurement is fast."""

import sqlite3
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from service.models import Vector
from service.providers.base import Embedder, EmbeddingBatch

CREATE = "CREATE TABLE IF NOT EXISTS embeddings (key BLOB PRIMARY KEY, vector BLOB)"
WAIT_SECONDS = 60.0


class CachedEmbedder:
    """Embeds each text once in the life of the file; in all else it is the embedder behind it."""

    def __init__(self, embedder: Embedder, path: Path) -> None:
        self._embedder = embedder
        self._file = sqlite3.connect(
            path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute(CREATE)

    async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
        """Embed texts as documents; those known are not counted in `tokens`."""
        keys = [self._key("document", text) for text in texts]
        known = {key: vector for key in keys if (vector := self._find(key)) is not None}
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        made = await self._embedder.embed_documents(list(new.values()))
        for key, vector in zip(new, made.vectors, strict=True):
            known[key] = self._keep(key, vector)
        return EmbeddingBatch(
            np.array([known[key] for key in keys], np.float32).reshape(-1, self.dim), made.tokens
        )

    async def embed_query(self, text: str) -> Vector:
        """Embed one text as a query, shape (dim,)."""
        key = self._key("query", text)
        found = self._find(key)
        if found is None:
            found = self._keep(key, await self._embedder.embed_query(text))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    async def close(self) -> None:
        """Close the file and the embedder."""
        self._file.close()
        await self._embedder.close()

    def _key(self, kind: str, text: str) -> bytes:
        return blake2b(repr((self.model, kind, text)).encode(), digest_size=16).digest()

    def _find(self, key: bytes) -> Vector | None:
        row = self._file.execute("SELECT vector FROM embeddings WHERE key = ?", (key,)).fetchone()
        return None if row is None else np.frombuffer(row[0], np.float32)

    def _keep(self, key: bytes, vector: Vector) -> Vector:
        self._file.execute(
            "INSERT OR REPLACE INTO embeddings VALUES (?, ?)", (key, vector.tobytes())
        )
        return vector
