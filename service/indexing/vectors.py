"""Vectors for the texts of a batch: those that were made before, and calls for the others."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.db.jobs import JobProgress, add_progress
from service.db.pool import Database
from service.db.prepared import Prepared, PreparedByHash, keep_prepared
from service.errors import ProviderError
from service.indexing.embedding import Embeddings, InterruptedEmbeddingError, embed_texts
from service.models import Generation
from service.providers.base import Embedder

K = TypeVar("K", bound=Hashable)


class Unembedded(msgspec.Struct, frozen=True):
    """A text that needs a vector."""

    document: int
    content_hash: bytes
    """With the document, what its vector is kept by until it is written."""
    text: str
    final: bool = True
    """False: a header is still to come, and another vector with it."""

    @property
    def place(self) -> tuple[int, bytes]:
        """The key among what is prepared."""
        return self.document, self.content_hash


class Vectors(msgspec.Struct, Generic[K], frozen=True):
    """A vector for each text, or why there is none."""

    by_key: Mapping[K, NDArray[np.float16] | ProviderError] = {}
    truncated: Sequence[K] = ()
    """Texts that are longer than the model's window."""
    tokens: int = 0


class VectorStage:
    """Makes vectors for one job and one generation."""

    def __init__(self, database: Database, generation: Generation, job_id: int) -> None:
        self._database = database
        self._generation = generation
        self._job_id = job_id

    async def make(
        self, embedder: Embedder, texts: Mapping[K, Unembedded], made: PreparedByHash
    ) -> Vectors[K]:
        """Vectors for texts; raises `ProviderError` when trying again later can help.

        What was made until then is kept.
        """
        found: dict[K, NDArray[np.float16] | ProviderError] = {}
        for key, text in texts.items():
            before = made.get(text.place)
            if text.final and before is not None and before.embedding is not None:
                found[key] = before.embedding
        missing = [key for key in texts if key not in found]
        try:
            embeddings = await embed_texts(embedder, [texts[key].text for key in missing])
        except InterruptedEmbeddingError as error:
            await self._keep([texts[key] for key in missing], error.embeddings)
            raise
        for key, vector in zip(missing, embeddings.vectors, strict=True):
            found[key] = vector if isinstance(vector, ProviderError) else vector.astype(np.float16)
        truncated = [missing[place] for place in sorted(embeddings.truncated)]
        return Vectors(found, truncated, embeddings.tokens)

    async def _keep(self, texts: Sequence[Unembedded], embeddings: Embeddings) -> None:
        kept = {
            text.place: Prepared(embedding=vector.astype(np.float16))
            for text, vector in zip(texts, embeddings.vectors, strict=True)
            if text.final and not isinstance(vector, ProviderError)
        }
        async with self._database.write(self._generation.team_id) as connection:
            await keep_prepared(connection, self._generation, kept)
            spent = JobProgress(usage={"embedding_tokens": embeddings.tokens})
            await add_progress(connection, self._job_id, spent)
