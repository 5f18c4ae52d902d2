"""The models that write headers for chunks, one for each account and name."""

import asyncio
from weakref import WeakValueDictionary

import msgspec

from service.errors import ProviderError
from service.models import Generation
from service.providers.base import Contextualizer, Header, Passage
from service.providers.outbound import Account, Accounts
from service.providers.registry import Contextualizing, contextualizing
from service.text import clean

MAX_HEADER_CHARACTERS = 1_000
CALL_SECONDS = 60.0


class RemoteContextualizer:
    """One model of a service; calls for one generation share its places."""

    def __init__(
        self, account: Account, model: str, kind: Contextualizing, places: asyncio.Semaphore
    ) -> None:
        self._account = account
        self._model = model
        self._kind = kind
        self._places = places

    async def situate(self, passage: Passage, *, cached: bool) -> Header:
        """The header of a passage; raises `ProviderError`."""
        body = self._kind.body(self._model, passage, cached=cached)
        async with self._places:
            answer = await self._account.call(
                "POST", self._kind.path, body, purpose="index", seconds=CALL_SECONDS
            )
        header = self._kind.header(answer)
        for kind, tokens in msgspec.structs.asdict(header.usage).items():
            self._account.count(kind, tokens)
        return cleaned(header)


class Contextualizers:
    """Hands out the contextualizer of a generation."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._places: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    async def get(self, generation: Generation) -> Contextualizer:
        """The generation's contextualizer; raises `ProviderError`."""
        asked = generation.contextual
        if asked.provider is None or asked.model is None:
            raise ProviderError("the collection names no model that writes headers")
        account = await self._accounts.find(generation.team_id, asked.provider)
        kind = contextualizing(account.credential.kind)
        places = self._places.get(generation.id)
        if places is None:
            places = self._places[generation.id] = asyncio.Semaphore(asked.concurrency)
        return RemoteContextualizer(account, asked.model, kind, places)


async def check_contextualizer(accounts: Accounts, team_id: int, provider: str) -> None:
    """Raise `ProviderError` for a provider that is not registered or writes no headers."""
    contextualizing((await accounts.find(team_id, provider)).credential.kind)


def cleaned(header: Header) -> Header:
    """The header on one line, bounded, without what cannot be stored."""
    text = " ".join(clean(header.text)[0].split())
    if len(text) > MAX_HEADER_CHARACTERS:
        text = text[:MAX_HEADER_CHARACTERS].rpartition(" ")[0] or text[:MAX_HEADER_CHARACTERS]
    return msgspec.structs.replace(header, text=text)
