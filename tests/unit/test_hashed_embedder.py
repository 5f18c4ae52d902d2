import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import ProviderError
from service.providers.base import Embedder
from tests.support.hashed_embedder import HashedEmbedder


@given(st.text(st.characters(codec=None, exclude_categories=())), st.integers(1, 512))
def test_any_text_has_one_unit_vector_of_the_dimension(text: str, dim: int) -> None:
    embedder: Embedder = HashedEmbedder(dim)
    first = asyncio.run(embedder.embed_query(text))
    second = asyncio.run(HashedEmbedder(dim).embed_documents(["other", text])).vectors[1]
    assert first.shape == (dim,)
    assert abs(np.linalg.norm(first) - 1) < 1e-5
    assert (first == second).all()


async def test_texts_that_share_words_are_nearer_than_those_that_do_not() -> None:
    embedder = HashedEmbedder(256)
    texts = ["rotate the api key", "opening hours of the library", "how the keys are rotated"]
    documents = (await embedder.embed_documents(texts)).vectors
    order = np.argsort(-(documents @ await embedder.embed_query("key rotation")))
    assert order[-1] == 1


async def test_truncation_is_reported_and_calls_are_recorded() -> None:
    embedder = HashedEmbedder(max_tokens=3)
    batch = await embedder.embed_documents(["a b c", "a b c d"])
    await embedder.embed_query("q")
    assert (batch.truncated, batch.tokens) == ((1,), 6)
    assert (embedder.documents, embedder.queries) == (["a b c", "a b c d"], ["q"])


async def test_it_fails_and_hangs_on_command() -> None:
    embedder = HashedEmbedder(fail_with=ProviderError("down", transient=True))
    with pytest.raises(ProviderError, match="down"):
        await embedder.embed_query("a")
    embedder.fail_with = None
    embedder.hang = asyncio.Event()
    call = asyncio.create_task(embedder.embed_documents(["a"]))
    await asyncio.sleep(0)
    assert not call.done()
    embedder.hang.set()
    assert (await call).vectors.shape == (1, 64)
