"""What a model that writes headers is told, and what becomes of its answers and troubles."""

from collections.abc import AsyncIterator

import pytest
from support.contextualizing import BY_MODEL, contextualizers
from support.fake_anthropic import FakeAnthropic, error
from support.fake_http import Cut, Hang, Trouble, garbage, refusal
from support.rows import generation_of

from service.errors import CallTooLargeError, ProviderError, ProviderRefusalError
from service.providers import contextualizers as module
from service.providers.base import Contextualizer, Passage
from service.providers.context_prompt import INSTRUCTIONS

PASSAGE = Passage("It fell by 3 %.", "Report of ACME. It fell by 3 %.", "Report")


@pytest.fixture
def fake() -> FakeAnthropic:
    return FakeAnthropic()


@pytest.fixture
async def model(fake: FakeAnthropic) -> AsyncIterator[Contextualizer]:
    async with contextualizers(fake) as source:
        generation = generation_of(1, contextual=BY_MODEL)
        yield await source.get(generation)


async def test_the_document_is_a_system_block_of_its_own(
    fake: FakeAnthropic, model: Contextualizer
) -> None:
    header = await model.situate(PASSAGE, cached=True)
    sent = fake.calls[0].body
    assert sent["system"][0] == {"type": "text", "text": INSTRUCTIONS}
    assert sent["system"][1]["cache_control"] == {"type": "ephemeral"}
    assert "<title>Report</title>" in sent["system"][1]["text"]
    assert PASSAGE.document in sent["system"][1]["text"]
    assert "It fell by 3 %." in sent["messages"][0]["content"]
    assert header.text.startswith("About ")
    assert (header.usage.output, header.usage.cache_read) == (3, 0)
    await model.situate(PASSAGE, cached=False)
    assert "cache_control" not in fake.calls[1].body["system"][1]


async def test_only_the_text_of_an_answer_is_the_header(
    fake: FakeAnthropic, model: Contextualizer
) -> None:
    fake.thinks = True
    assert (await model.situate(PASSAGE, cached=False)).text.startswith("About ")
    fake.refuses = True
    assert (await model.situate(PASSAGE, cached=False)).text == ""


@pytest.mark.parametrize(
    ("trouble", "kind", "transient"),
    [
        (error(401, "authentication_error", "no"), ProviderRefusalError, False),
        (error(400, "invalid_request_error", "prompt is too long"), CallTooLargeError, False),
        (error(413, "request_too_large", "too large"), CallTooLargeError, False),
        (error(400, "invalid_request_error", "no such thing"), ProviderError, False),
        (error(529, "overloaded_error", "overloaded"), ProviderError, True),
        (refusal(500), ProviderError, True),
        (garbage(), ProviderError, True),
        (garbage(b'{"content": 3}', "application/json"), ProviderError, True),
        (Cut(), ProviderError, True),
        (Hang(), ProviderError, True),
    ],
)
async def test_troubles_are_told_apart(
    fake: FakeAnthropic,
    model: Contextualizer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    trouble: Trouble,
    kind: type[ProviderError],
    transient: bool,
) -> None:
    monkeypatch.setattr(module, "CALL_SECONDS", 0.1 if isinstance(trouble, Hang) else 30.0)
    fake.always = trouble
    with pytest.raises(kind) as raised:
        await model.situate(PASSAGE, cached=False)
    assert raised.value.transient is transient
    assert PASSAGE.text not in str(raised.value)


async def test_the_pause_that_is_asked_for_is_told_and_kept(
    fake: FakeAnthropic, model: Contextualizer
) -> None:
    fake.troubles.append(refusal(429, retry_after="30"))
    for _ in range(2):
        with pytest.raises(ProviderError) as raised:
            await model.situate(PASSAGE, cached=False)
        assert raised.value.retry_after == pytest.approx(30, abs=5)
    assert len(fake.calls) == 1
