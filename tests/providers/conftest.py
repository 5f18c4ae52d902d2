from collections.abc import AsyncIterator

import pytest
from support.fake_anthropic import FakeAnthropic
from support.fake_embeddings import FakeCohere, FakeOpenAI, FakeVoyage
from support.fake_http import running


@pytest.fixture
async def voyage() -> AsyncIterator[FakeVoyage]:
    fake = FakeVoyage()
    async with running(fake):
        yield fake


@pytest.fixture
async def openai() -> AsyncIterator[FakeOpenAI]:
    fake = FakeOpenAI()
    async with running(fake):
        yield fake


@pytest.fixture
async def cohere() -> AsyncIterator[FakeCohere]:
    fake = FakeCohere()
    async with running(fake):
        yield fake


@pytest.fixture
async def anthropic() -> AsyncIterator[FakeAnthropic]:
    fake = FakeAnthropic()
    async with running(fake):
        yield fake
