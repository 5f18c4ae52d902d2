"""Embedding in batches: order, bounds, retries, and texts that the embedder refuses."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
import stamina
from support.hashed_embedder import HashedEmbedder

from service.errors import ProviderError
from service.indexing import embedding
from service.indexing.embedding import embed_texts
from service.providers.base import EmbeddingBatch


class Picky(HashedEmbedder):
    """Refuses every batch that holds one of the given texts, and records each call."""

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self.refused = set(refused)
        self.calls: list[list[str]] = []

    async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
        self.calls.append(list(texts))
        if self.refused.intersection(texts):
            raise ProviderError("the embedder refused a text")
        return await super().embed_documents(texts)


class Flaky(HashedEmbedder):
    """Fails a number of times before it works."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)
        self.calls = 0

    async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return await super().embed_documents(texts)


@pytest.fixture(autouse=True)
def _no_waiting() -> None:
    stamina.set_testing(True, attempts=3)


@pytest.fixture(autouse=True, scope="module")
def _waiting_again():  # type: ignore[no-untyped-def]
    yield
    stamina.set_testing(False)


async def test_vectors_come_in_the_order_of_the_texts() -> None:
    embedder = HashedEmbedder()
    texts = [f"text number {n}" for n in range(200)]
    embeddings = await embed_texts(embedder, texts)
    for text, vector in zip(texts, embeddings.vectors, strict=True):
        assert not isinstance(vector, ProviderError)
        assert np.array_equal(vector, embedder.vector(text))
    assert embeddings.tokens == 600


async def test_batches_are_bounded_by_texts_and_characters() -> None:
    embedder = Picky()
    await embed_texts(embedder, ["short"] * 100 + ["long " * 10_000] * 3)
    assert [len(call) for call in embedder.calls] == [64, 37, 2]
    assert max(sum(map(len, call)) for call in embedder.calls) <= 100_000


async def test_one_text_longer_than_a_batch_goes_alone() -> None:
    embedder = Picky()
    await embed_texts(embedder, ["a", "b" * 200_000, "c"])
    assert [[len(text) for text in call] for call in embedder.calls] == [[1], [200_000], [1]]


async def test_what_was_truncated_is_named_by_its_place_in_all_texts() -> None:
    texts = ["short"] * 70 + ["far too long " * 10] + ["short"] * 5
    embeddings = await embed_texts(HashedEmbedder(max_tokens=20), texts)
    assert embeddings.truncated == {70}


@pytest.mark.parametrize("bad", [{0}, {63}, {0, 1}, {5, 40}, set(range(10, 30))])
async def test_only_the_refused_texts_fail(bad: set[int]) -> None:
    texts = [f"text {n}" for n in range(64)]
    embedder = Picky(*(texts[at] for at in bad))
    embeddings = await embed_texts(embedder, texts)
    failed = {at for at, one in enumerate(embeddings.vectors) if isinstance(one, ProviderError)}
    assert failed == bad


async def test_a_service_that_refuses_everything_is_not_asked_for_every_text() -> None:
    texts = [f"text {n}" for n in range(64)]
    embedder = Picky(*texts)
    embeddings = await embed_texts(embedder, texts)
    assert all(isinstance(one, ProviderError) for one in embeddings.vectors)
    assert len(embedder.calls) < 20


async def test_a_passing_failure_is_tried_again() -> None:
    busy = ProviderError("busy", transient=True)
    embedder = Flaky(busy, ProviderError("busy", transient=True, retry_after=0.01))
    embeddings = await embed_texts(embedder, ["a"])
    assert not isinstance(embeddings.vectors[0], ProviderError)
    assert embedder.calls == 3


async def test_a_long_wait_is_left_to_the_caller() -> None:
    embedder = Flaky(ProviderError("busy", transient=True, retry_after=120))
    with pytest.raises(ProviderError) as raised:
        await embed_texts(embedder, ["a"])
    assert raised.value.retry_after == 120
    assert embedder.calls == 1


async def test_an_embedder_that_hangs_is_a_passing_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "CALL_SECONDS", 0.01)
    with pytest.raises(ProviderError) as raised:
        await embed_texts(HashedEmbedder(hang=asyncio.Event()), ["a"])
    assert raised.value.transient


async def test_numbers_that_are_no_direction_are_refused_one_by_one() -> None:
    class Broken(HashedEmbedder):
        async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
            batch = await super().embed_documents(texts)
            batch.vectors[1] = np.nan
            batch.vectors[2] = 0
            return batch

    embeddings = await embed_texts(Broken(), ["a", "b", "c", "d"])
    refused = [isinstance(one, ProviderError) for one in embeddings.vectors]
    assert refused == [False, True, True, False]


async def test_an_answer_of_the_wrong_shape_is_refused() -> None:
    class Short(HashedEmbedder):
        async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
            batch = await super().embed_documents(texts)
            return EmbeddingBatch(batch.vectors[:, :3], batch.tokens)

    embeddings = await embed_texts(Short(), ["a"])
    assert isinstance(embeddings.vectors[0], ProviderError)
