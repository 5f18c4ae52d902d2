"""Embeds texts in batches; a text that the embedder refuses never spoils the others."""

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np
import stamina

from service.errors import CallTooLargeError, ProviderError, ProviderRefusalError
from service.models import Vector
from service.providers.base import Embedder
from service.text import estimate_tokens

CONCURRENCY = 4
CALL_SECONDS = 120.0
PATIENCE_SECONDS = 10.0
"""Longest wait within a call's retries; a longer one frees the worker for other jobs."""


class Embeddings(msgspec.Struct, frozen=True):
    """What became of n texts, in their order: a vector, or why there is none."""

    vectors: list[Vector | ProviderError]
    truncated: frozenset[int]
    tokens: int

    @property
    def trouble(self) -> ProviderError | None:
        """Why some texts have no vector yet although they may get one later."""
        errors = [one for one in self.vectors if isinstance(one, ProviderError)]
        return next((error for error in errors if error.transient), None)


class InterruptedEmbeddingError(ProviderError):
    """Trying again later can help; some of the texts have their vectors already."""

    def __init__(self, error: ProviderError, embeddings: Embeddings) -> None:
        super().__init__(str(error), transient=True, retry_after=error.retry_after)
        self.embeddings = embeddings


async def embed_texts(embedder: Embedder, texts: Sequence[str]) -> Embeddings:
    """Embed texts; raises `InterruptedEmbeddingError` when trying again later can help."""
    limit = asyncio.Semaphore(CONCURRENCY)
    trouble: list[ProviderError] = []

    async def bounded(batch: Sequence[str]) -> Embeddings:
        async with limit:
            if trouble:
                return _without_vectors(trouble[0], len(batch))
            embeddings = await _embed_batch(embedder, batch)
            if embeddings.trouble:
                trouble.append(embeddings.trouble)
            return embeddings

    batches = _batches(texts, embedder.batch_texts, embedder.batch_tokens)
    tasks = [asyncio.ensure_future(bounded(batch)) for batch in batches]
    try:
        embeddings = _join(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
    if trouble:
        raise InterruptedEmbeddingError(trouble[0], embeddings)
    return embeddings


def _without_vectors(error: ProviderError, count: int) -> Embeddings:
    return Embeddings([error] * count, frozenset(), 0)


def _batches(texts: Sequence[str], most_texts: int, most_tokens: int) -> list[Sequence[str]]:
    batches: list[list[str]] = []
    tokens = 0
    for text in texts:
        more = estimate_tokens(text)
        tokens += more
        if not batches or len(batches[-1]) == most_texts or tokens > most_tokens:
            batches.append([])
            tokens = more
        batches[-1].append(text)
    return list(batches)


async def _embed_batch(embedder: Embedder, texts: Sequence[str]) -> Embeddings:
    """Embed a batch; when it is refused, find out which texts are."""
    try:
        return await _call(embedder, texts)
    except ProviderError as error:
        if error.transient or len(texts) == 1 or isinstance(error, ProviderRefusalError):
            return _without_vectors(error, len(texts))
        halves = texts[: len(texts) // 2], texts[len(texts) // 2 :]
        if isinstance(error, CallTooLargeError):
            return _join([await _embed_batch(embedder, half) for half in halves])
    return await _embed_halves(embedder, *halves)


async def _embed_halves(embedder: Embedder, one: Sequence[str], other: Sequence[str]) -> Embeddings:
    first = await _embed_batch(embedder, one)
    if error := first.trouble:
        return _join([first, _without_vectors(error, len(other))])
    if len(one) > 1 and all(isinstance(vector, ProviderError) for vector in first.vectors):
        last = await _embed_batch(embedder, other[-1:])
        if isinstance(last.vectors[0], ProviderError):
            # The service, not a text: asking for each of the others would only repeat it.
            between = _without_vectors(last.vectors[0], len(other) - 1)
            return _join([first, between, last])
        return _join([first, await _embed_batch(embedder, other[:-1]), last])
    return _join([first, await _embed_batch(embedder, other)])


async def _call(embedder: Embedder, texts: Sequence[str]) -> Embeddings:
    async for attempt in stamina.retry_context(
        on=wait_for_retry, attempts=3, timeout=None, wait_initial=0.2
    ):
        with attempt:
            return await _call_once(embedder, texts)
    raise AssertionError("unreachable")


def wait_for_retry(error: Exception) -> bool | float:
    """Whether to try again at once, or after how many seconds."""
    if not isinstance(error, ProviderError) or not error.transient:
        return False
    if error.retry_after is None:
        return True
    return error.retry_after if error.retry_after <= PATIENCE_SECONDS else False


async def _call_once(embedder: Embedder, texts: Sequence[str]) -> Embeddings:
    try:
        async with asyncio.timeout(CALL_SECONDS):
            batch = await embedder.embed_documents(texts)
    except TimeoutError as error:
        raise ProviderError(
            f"the embedder did not answer in {CALL_SECONDS:.0f} s", transient=True
        ) from error
    if batch.vectors.shape != (len(texts), embedder.dim):
        raise ProviderError(
            f"the embedder answered {batch.vectors.shape} numbers"
            f" instead of {(len(texts), embedder.dim)}"
        )
    finite, directed = np.isfinite(batch.vectors).all(axis=1), batch.vectors.any(axis=1)
    return Embeddings(
        [
            vector if fine else ProviderError("the embedder answered a vector without direction")
            for vector, fine in zip(batch.vectors, np.logical_and(finite, directed), strict=True)
        ],
        frozenset(batch.truncated),
        batch.tokens,
    )


def _join(parts: Sequence[Embeddings]) -> Embeddings:
    vectors: list[Vector | ProviderError] = []
    truncated: set[int] = set()
    for part in parts:
        truncated.update(len(vectors) + at for at in part.truncated)
        vectors += part.vectors
    return Embeddings(vectors, frozenset(truncated), sum(part.tokens for part in parts))
