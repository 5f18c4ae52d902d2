"""The fake servers speak what the providers' own clients send and read (if those are installed)."""

from typing import Any

import numpy as np
import pytest
from support.fake_anthropic import FakeAnthropic
from support.fake_embeddings import KEY, FakeCohere, FakeOpenAI, FakeVoyage, vector_of
from support.fake_http import refusal

TEXTS = ["how to rotate a key", "the garden in spring"]


async def test_voyage_embeds(voyage: FakeVoyage) -> None:
    voyageai = pytest.importorskip("voyageai")
    client = voyageai.AsyncClient(api_key=KEY, base_url=voyage.url, max_retries=0)
    found = await client.embed(
        TEXTS, model="voyage-4", input_type="document", output_dimension=256, truncation=False
    )
    expected = [vector_of(text, 256, "document") for text in TEXTS]
    assert np.allclose(found.embeddings, expected)
    assert found.total_tokens == 9
    assert voyage.calls[-1].path == "/embeddings"


async def test_voyage_reranks_and_refuses(voyage: FakeVoyage) -> None:
    voyageai = pytest.importorskip("voyageai")
    client = voyageai.AsyncClient(api_key=KEY, base_url=voyage.url, max_retries=0)
    found = await client.rerank("rotate key", TEXTS, model="rerank-2.5", top_k=1)
    assert [one.index for one in found.results] == [0]
    voyage.troubles.append(refusal(429, {"detail": "slow down"}, retry_after="1"))
    with pytest.raises(voyageai.error.RateLimitError, match="slow down"):
        await client.rerank("rotate key", TEXTS, model="rerank-2.5")
    stranger = voyageai.AsyncClient(api_key="other", base_url=voyage.url, max_retries=0)
    with pytest.raises(voyageai.error.AuthenticationError):
        await stranger.embed(TEXTS, model="voyage-4")


async def test_openai_embeds_and_refuses(openai: FakeOpenAI) -> None:
    sdk = pytest.importorskip("openai")
    async with sdk.AsyncOpenAI(api_key=KEY, base_url=openai.url + "/v1", max_retries=0) as client:
        found = await client.embeddings.create(input=TEXTS, model="m", dimensions=64)
        assert np.allclose([one.embedding for one in found.data], [vector_of(t, 64) for t in TEXTS])
        assert found.usage.total_tokens == 9
        assert openai.calls[-1].body["encoding_format"] == "base64"
        with pytest.raises(sdk.BadRequestError, match="maximum context length is 8192"):
            await client.embeddings.create(input=["word " * 9000], model="m")
        openai.troubles.append(refusal(429, {"error": {"message": "busy"}}, retry_after="1"))
        with pytest.raises(sdk.RateLimitError):
            await client.embeddings.create(input=TEXTS, model="m")
        assert [one.id async for one in client.models.list()] == ["text-embedding-3-small"]


async def test_cohere_reranks(cohere: FakeCohere) -> None:
    sdk = pytest.importorskip("cohere")
    client = sdk.AsyncClientV2(api_key=KEY, base_url=cohere.url)
    found = await client.rerank(model="rerank-v3.5", query="the garden", documents=TEXTS, top_n=1)
    assert [one.index for one in found.results] == [1]
    assert cohere.calls[-1].path == "/v2/rerank"


def prompt(document: str, chunk: str, **fields: Any) -> dict[str, Any]:
    cached = {"type": "text", "text": document, "cache_control": {"type": "ephemeral"}}
    return {
        "model": "claude-haiku",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Situate the chunk."}, cached],
        "messages": [{"role": "user", "content": chunk}],
        **fields,
    }


async def test_anthropic_caches_a_prefix_once_it_is_visible(anthropic: FakeAnthropic) -> None:
    sdk = pytest.importorskip("anthropic")
    now = [0.0]
    anthropic.clock, anthropic.visible_after = lambda: now[0], 2.0
    async with sdk.AsyncAnthropic(api_key=KEY, base_url=anthropic.url, max_retries=0) as client:
        first = await client.messages.create(**prompt("word " * 600, "a", max_tokens=0))
        assert first.usage.cache_creation_input_tokens == 604
        assert first.content == []
        early = await client.messages.create(**prompt("word " * 600, "b"))
        assert early.usage.cache_read_input_tokens == 0
        assert early.usage.cache_creation_input_tokens == 604
        now[0] = 2.0
        late = await client.messages.create(**prompt("word " * 600, "c"))
        assert late.usage.cache_read_input_tokens == 604
        assert late.content[0].text == "About 1 characters."
        short = await client.messages.create(**prompt("word " * 100, "d"))
        assert short.usage.cache_creation_input_tokens == 0
        with pytest.raises(sdk.BadRequestError, match="temperature"):
            await client.messages.create(**prompt("word", "e", extra_body={"temperature": 0}))
    assert (anthropic.cache_writes, anthropic.cache_reads) == (2, 1)


async def test_anthropic_batches_end_in_any_order(anthropic: FakeAnthropic) -> None:
    sdk = pytest.importorskip("anthropic")
    anthropic.erring, anthropic.expiring = {"b"}, {"c"}
    async with sdk.AsyncAnthropic(api_key=KEY, base_url=anthropic.url, max_retries=0) as client:
        requests = [{"custom_id": name, "params": prompt("word", name)} for name in "abc"]
        batch = await client.messages.batches.create(requests=requests)
        assert batch.processing_status == "in_progress"
        anthropic.end_batches()
        ended = await client.messages.batches.retrieve(batch.id)
        assert ended.request_counts.succeeded == 1
        results = await client.messages.batches.results(batch.id)
        found = [(one.custom_id, one.result.type) async for one in results]
    assert found == [("c", "expired"), ("b", "errored"), ("a", "succeeded")]
