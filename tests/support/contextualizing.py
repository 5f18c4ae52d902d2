"""A worker whose headers come from a fake server, and documents that are worth situating."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from support.credentials import LOOPBACK, credential
from support.fake_anthropic import FakeAnthropic
from support.fake_http import running
from support.hashed_embedder import HashedEmbedder
from support.indexing import working

from service.db.pool import Database
from service.models import Contextual, Credential
from service.providers.addresses import parse_allowed
from service.providers.context_prompt import PROMPT_VERSION
from service.providers.contextualizers import Contextualizers
from service.providers.outbound import Accounts, Outbound

BY_MODEL = Contextual(
    enabled=True, provider="claude", model="claude-test", concurrency=3, version=PROMPT_VERSION
)
BY_HEADING = Contextual(enabled=True, mode="heading", version=1)


class OneCredential:
    """Every name is the account of one server."""

    def __init__(self, url: str) -> None:
        self._credential = credential("anthropic", url)

    async def find(self, _team_id: int, _name: str) -> Credential | None:
        return self._credential


@contextlib.asynccontextmanager
async def contextualizers(fake: FakeAnthropic) -> AsyncIterator[Contextualizers]:
    """What asks the fake server for headers, while it listens."""
    outbound = Outbound(parse_allowed(LOOPBACK))
    async with running(fake):
        yield Contextualizers(Accounts(OneCredential(fake.url), outbound))
        await outbound.close()


@contextlib.asynccontextmanager
async def situating(
    database: Database,
    dsn: str,
    fake: FakeAnthropic,
    embedder: HashedEmbedder | None = None,
    **options: Any,
) -> AsyncIterator[HashedEmbedder]:
    """A worker beside the test that asks the fake server for headers."""
    embedder = embedder or HashedEmbedder()
    async with (
        contextualizers(fake) as source,
        working(database, dsn, embedder, contextualizers=source, **options),
    ):
        yield embedder


def paragraphs(count: int, *, version: str = "first") -> list[str]:
    """Texts that each fill a chunk of 64 tokens, so that each is one."""
    return [
        f"Paragraph {at} of the {version} edition. " + f"It tells of matter {at} at length. " * 5
        for at in range(count)
    ]
