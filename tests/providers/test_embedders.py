"""The contract of embedders, one test over all of them, and what is particular to services."""

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
from support.credentials import LOOPBACK, account, credential
from support.fake_embeddings import FakeOpenAI, FakeProvider, FakeVoyage, vector_of
from support.fake_http import Answer, Cut, CutBody, Delay, Hang, Trouble, garbage, refusal, running
from support.hashed_embedder import HashedEmbedder

from service.errors import CallTooLargeError, ProviderError, ProviderRefusalError
from service.indexing.embedding import embed_texts
from service.providers.addresses import parse_allowed
from service.providers.base import Embedder
from service.providers.outbound import Outbound
from service.providers.registry import EmbedderOptions, create_embedder

TEXTS = ["a key is rotated every month", "the garden in spring", "", "鍵は毎月交換される"]


@pytest.fixture(params=["hashed", "local", "voyage", "openai"])
async def embedder(
    request: pytest.FixtureRequest, voyage: FakeVoyage, openai: FakeOpenAI
) -> AsyncIterator[Embedder]:
    made: Embedder
    if request.param == "hashed":
        made = HashedEmbedder()
    elif request.param == "local":
        made = create_embedder("local", "multilingual-e5-small")
    else:
        fake: FakeProvider = voyage if request.param == "voyage" else openai
        options = EmbedderOptions(account=account(request.param, fake.url))
        made = create_embedder(request.param, "a-model", 256, options)
    yield made
    await made.close()


async def test_every_embedder_keeps_the_contract(embedder: Embedder) -> None:
    texts = [text for text in TEXTS if text or not isinstance(embedder, HashedEmbedder)]
    texts = [text or "blank" for text in texts]
    batch = await embedder.embed_documents(texts)
    assert batch.vectors.shape == (len(texts), embedder.dim)
    assert batch.vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(batch.vectors, axis=1), 1, atol=1e-4)
    assert batch.tokens > 0
    assert batch.truncated == ()
    again = await embedder.embed_documents(texts[::-1])
    assert np.allclose(again.vectors[::-1], batch.vectors, atol=1e-5)
    query = await embedder.embed_query(texts[0])
    assert query.shape == (embedder.dim,)
    assert np.isclose(np.linalg.norm(query), 1, atol=1e-4)
    assert (await embedder.embed_documents([])).vectors.shape == (0, embedder.dim)
    assert embedder.count_tokens("") == 0
    assert 0 < embedder.count_tokens("word " * 10) < embedder.count_tokens("word " * 100)
    assert embedder.max_tokens > 0
    assert embedder.batch_texts > 0
    assert embedder.batch_tokens > embedder.max_tokens


async def test_every_embedder_reports_what_it_cuts(embedder: Embedder) -> None:
    long = "word " * (embedder.max_tokens * 2)
    batch = await embedder.embed_documents(["short", long])
    assert batch.truncated == (1,)
    assert batch.vectors.shape == (2, embedder.dim)


Make = Callable[..., Embedder]


@pytest.fixture
def make(voyage: FakeVoyage) -> Make:
    def make(dim: int | None = 256, model: str = "voyage-large", **limits: int) -> Embedder:
        outbound = Outbound(parse_allowed(LOOPBACK), **limits)
        options = EmbedderOptions(account=account("voyage", voyage.url, outbound))
        return create_embedder("voyage", model, dim, options)

    return make


def words(count: int, start: int = 0) -> str:
    return " ".join(f"w{at}" for at in range(start, start + count))


async def test_voyage_is_told_what_is_document_and_query(make: Make, voyage: FakeVoyage) -> None:
    embedder = make(dim=None)
    with pytest.raises(ProviderError, match="not known yet"):
        assert embedder.dim
    query = await embedder.embed_query("key")
    assert np.allclose(query, vector_of("key", 1024, "query"), atol=1e-5)
    assert embedder.dim == 1024
    documents = await embedder.embed_documents(["key"])
    assert np.allclose(documents.vectors[0], vector_of("key", 1024, "document"), atol=1e-5)
    sent = [call.body for call in voyage.calls]
    assert [body["input_type"] for body in sent] == ["query", "document"]
    assert all(body["truncation"] is False for body in sent)
    assert all("output_dimension" not in body for body in sent)


async def test_a_dimension_is_asked_for_only_when_it_is_not_the_models_own(
    make: Make, voyage: FakeVoyage
) -> None:
    embedder = make(dim=256)
    batches = [[f"text {at}"] for at in range(6)]
    found = await asyncio.gather(*(embedder.embed_documents(batch) for batch in batches))
    assert {batch.vectors.shape for batch in found} == {(1, 256)}
    asked = [call.body.get("output_dimension") for call in voyage.calls]
    assert asked == [None] + [256] * 7
    # What was asked without the dimension is thrown away: no text is among it.
    assert voyage.calls[0].body["input"] == ["dimension"]


async def test_a_dimension_that_the_model_does_not_give_is_refused(openai: FakeOpenAI) -> None:
    openai.shortens = False
    options = EmbedderOptions(account=account("openai", openai.url))
    fitting = create_embedder("openai", "m", 1536, options)
    assert (await fitting.embed_documents(["a"])).vectors.shape == (1, 1536)
    assert "dimensions" not in openai.calls[-1].body
    other = create_embedder("openai", "m", 512, options)
    with pytest.raises(ProviderError, match="answers 400"):
        await other.embed_documents(["a"])
    openai.shortens, openai.dim = True, 64
    with pytest.raises(ProviderError, match="64 dimensions instead of 1536"):
        await fitting.embed_documents(["a"])


async def test_batches_keep_within_the_models_limit(make: Make, voyage: FakeVoyage) -> None:
    texts = [words(630, at) for at in range(300)]
    embeddings = await embed_texts(make(), texts)
    assert all(isinstance(vector, np.ndarray) for vector in embeddings.vectors)
    for at in (0, 150, 299):
        assert np.allclose(embeddings.vectors[at], vector_of(texts[at], 256, "document"), atol=1e-5)
    assert embeddings.tokens >= 300 * 630
    assert not embeddings.truncated
    sent = [tuple(call.body["input"]) for call in voyage.calls]
    refused = [tuple(inputs) for inputs in voyage.refused]
    assert all(sent.count(inputs) == 1 for inputs in refused)
    assert len(voyage.calls) <= 6


async def test_no_refused_call_is_repeated_as_it_was(make: Make, voyage: FakeVoyage) -> None:
    voyage.call_tokens = 2_000  # far below what the model is known for
    texts = [words(630, at) for at in range(300)]
    embeddings = await embed_texts(make(), texts)
    assert all(isinstance(vector, np.ndarray) for vector in embeddings.vectors)
    sent = [tuple(call.body["input"]) for call in voyage.calls]
    assert voyage.refused
    for inputs in voyage.refused:
        assert sent.count(tuple(inputs)) == 1
    assert voyage.tokens >= 300 * 630


async def test_what_batches_really_had_is_learned(make: Make, voyage: FakeVoyage) -> None:
    embedder = make()
    before = embedder.batch_tokens
    await embedder.embed_documents(["; " * 400])  # a token for each two characters
    assert embedder.batch_tokens < before
    assert embedder.batch_tokens == pytest.approx(120_000 / 2.1, rel=0.01)


async def test_a_text_that_is_longer_than_estimated_is_cut_and_named(
    make: Make, voyage: FakeVoyage
) -> None:
    voyage.window = 100
    dense = "; " * 500
    embeddings = await embed_texts(make(), ["short", dense, "another"])
    assert all(isinstance(vector, np.ndarray) for vector in embeddings.vectors)
    assert embeddings.truncated == {1}
    sent = [tuple(call.body["input"]) for call in voyage.calls]
    assert len(sent) == len(set(sent)) + 1  # the first answer's dimension was another
    query = await make().embed_query(dense)
    assert query.shape == (256,)


PASSING: list[tuple[Trouble, str, float | None]] = [
    (refusal(429, retry_after="3"), "the provider is busy", 3.0),
    (refusal(429), "the provider is busy", None),
    (refusal(500), "the provider answers 500", None),
    (refusal(503, b"<html>", retry_after="soon"), "the provider answers 503", None),
    (refusal(529, {"error": {"type": "overloaded_error"}}), "529 (overloaded_error)", None),
    (Cut(), "the provider does not answer", None),
    (CutBody(), "the provider does not answer", None),
    (garbage(), "cannot be read", None),
    (garbage(b""), "cannot be read", None),
    (garbage(b'{"data": [{"index": 0, "embedding": "%%%"}]}'), "cannot be read", None),
    (garbage(b'{"data": [{"index": 0, "embedding": "AAAA"}]}'), "cannot be read", None),
    (garbage(b'{"data": [{"index": 0, "embedding": []}]}'), "cannot be read", None),
    (garbage(b'{"data": []}'), "did not answer for every text", None),
    (garbage(b'{"data": [{"index": 1, "embedding": [1.0]}]}'), "for every text", None),
    (
        garbage(b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}'),
        "for every text",
        None,
    ),
]


@pytest.mark.parametrize(("trouble", "reason", "retry_after"), PASSING)
async def test_passing_trouble_is_told_from_refusals(
    make: Make, voyage: FakeVoyage, trouble: Trouble, reason: str, retry_after: float | None
) -> None:
    embedder = make(dim=1024)
    voyage.troubles.append(trouble)
    with pytest.raises(ProviderError) as raised:
        await embedder.embed_query("text")
    assert raised.value.transient
    assert raised.value.retry_after == retry_after
    assert reason in str(raised.value)
    assert len(voyage.calls) == 1  # a query is never tried again
    assert (await embedder.embed_query("text")).shape == (1024,)


REFUSING: list[tuple[Answer, type[ProviderError]]] = [
    (refusal(401), ProviderRefusalError),
    (refusal(403), ProviderRefusalError),
    (refusal(404), ProviderRefusalError),
    (refusal(400, {"detail": "bad input"}), ProviderError),
    (refusal(422, {"error": {"code": "bad"}}), ProviderError),
    (refusal(307, location="http://127.0.0.1:1/"), ProviderError),
    (refusal(413), CallTooLargeError),
]


@pytest.mark.parametrize(("answer", "kind"), REFUSING)
async def test_a_refusal_is_no_passing_trouble(
    make: Make, voyage: FakeVoyage, answer: Answer, kind: type[ProviderError]
) -> None:
    voyage.troubles.append(answer)
    with pytest.raises(kind) as raised:
        await make(dim=1024).embed_documents(["one", "two"])
    assert type(raised.value) is kind
    assert not raised.value.transient


async def test_a_refused_key_is_not_tried_for_every_text(make: Make, voyage: FakeVoyage) -> None:
    voyage.always = refusal(401)
    embeddings = await embed_texts(make(), [f"text {at}" for at in range(200)])
    assert all(isinstance(one, ProviderError) for one in embeddings.vectors)
    assert len(voyage.calls) == 1


async def test_nothing_is_called_while_a_pause_lasts(make: Make, voyage: FakeVoyage) -> None:
    embedder = make(dim=1024)
    voyage.troubles.append(refusal(429, retry_after="60"))
    with pytest.raises(ProviderError) as first:
        await embedder.embed_documents(["text"])
    assert first.value.retry_after == 60
    with pytest.raises(ProviderError, match="asked for a pause") as second:
        await embedder.embed_documents(["text"])
    assert second.value.transient
    assert second.value.retry_after == pytest.approx(60, abs=5)
    assert len(voyage.calls) == 1
    assert (await embedder.embed_query("text")).shape == (1024,)


async def test_a_short_pause_is_waited_for(make: Make, voyage: FakeVoyage) -> None:
    voyage.troubles.append(refusal(429, retry_after="0.2"))
    embeddings = await embed_texts(make(dim=1024), ["text"])
    assert isinstance(embeddings.vectors[0], np.ndarray)
    assert [call.body["input"] for call in voyage.calls] == [["dimension"], ["dimension"], ["text"]]


async def test_a_team_has_a_bounded_number_of_calls_in_flight(
    make: Make, voyage: FakeVoyage
) -> None:
    embedder = make(dim=1024, calls_per_team=2)
    await embedder.embed_documents(["first"])
    voyage.always = Delay(0.05)
    await asyncio.gather(*(embedder.embed_documents([f"text {at}"]) for at in range(8)))
    assert voyage.most_in_flight == 2


async def test_indexing_leaves_room_for_queries(make: Make, voyage: FakeVoyage) -> None:
    embedder = make(dim=1024, calls_per_team=1)
    await embedder.embed_documents(["first"])
    voyage.called.clear()
    voyage.troubles.append(Hang())
    loading = asyncio.create_task(embedder.embed_documents(["text"]))
    await voyage.called.wait()
    async with asyncio.timeout(5):
        assert (await embedder.embed_query("text")).shape == (1024,)
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)


async def test_cancelling_a_call_closes_its_connection(make: Make, voyage: FakeVoyage) -> None:
    embedder = make(dim=1024)
    await embedder.embed_query("text")
    voyage.called.clear()
    voyage.troubles.append(Hang())
    asking = asyncio.create_task(embedder.embed_query("text"))
    await voyage.called.wait()
    asking.cancel()
    async with asyncio.timeout(5):
        await voyage.abandoned.wait()


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("voyage-4-lite", 1_000_000),
        ("voyage-4", 320_000),
        ("voyage-3.5", 320_000),
        ("voyage-4-large", 120_000),
        ("voyage-code-3", 120_000),
        ("voyage-next", 120_000),
    ],
)
def test_models_have_limits_of_their_own(make: Make, model: str, tokens: int) -> None:
    assert make(model=model).batch_tokens == int(tokens / 1.2)


async def test_an_account_is_for_its_own_team_and_an_allowed_address() -> None:
    outbound = Outbound(parse_allowed("http://127.0.0.1:9"))
    with pytest.raises(ProviderRefusalError, match="another team"):
        outbound.account(credential("voyage", "http://127.0.0.1:9", team_id=2), 1)
    with pytest.raises(ProviderRefusalError, match="not in BRAID_ALLOWED_BASE_URLS"):
        outbound.account(credential("voyage", "http://127.0.0.1:90"), 1)
    with pytest.raises(ProviderRefusalError, match="no longer valid"):
        outbound.account(credential("voyage", "http://u@127.0.0.1:9"), 1)


async def test_a_service_without_a_key_gets_none(openai: FakeOpenAI) -> None:
    outbound = Outbound(parse_allowed(LOOPBACK))
    open_account = outbound.account(credential("openai", openai.url, secret=None), 1)
    embedder = create_embedder("openai", "m", 8, EmbedderOptions(account=open_account))
    with pytest.raises(ProviderRefusalError):
        await embedder.embed_query("text")
    assert "authorization" not in openai.calls[0].headers


async def test_two_servers_do_not_share_a_pause() -> None:
    fakes = [FakeVoyage(), FakeVoyage()]
    async with running(fakes[0]), running(fakes[1]):
        for fake in fakes:
            options = EmbedderOptions(account=account("voyage", fake.url))
            embedder = create_embedder("voyage", "m", 1024, options)
            fake.troubles.append(refusal(429, retry_after="60"))
            with pytest.raises(ProviderError):
                await embedder.embed_documents(["a"])
            assert len(fake.calls) == 1
