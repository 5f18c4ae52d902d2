"""The models that write headers for chunks, one for each account and name."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
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
BATCH_SECONDS = 300.0


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
        _count(self._account, header)
        return cleaned(header)


class RemoteBatches:
    """The batches of one model of a service."""

    def __init__(self, account: Account, model: str, kind: Contextualizing, path: str) -> None:
        self._account = account
        self._model = model
        self._kind = kind
        self._path = path

    async def submit(self, passages: Mapping[str, Passage]) -> str:
        """Ask about passages; the id of the batch. Raises `ProviderError`."""
        requests = {
            name: self._kind.body(self._model, passage, cached=True, lasting=True)
            for name, passage in passages.items()
        }
        answer = await self._call("POST", self._path, self._kind.batch_body(requests))
        return self._kind.batch_state(answer)[0]

    async def has_ended(self, batch: str) -> bool:
        """Whether the answers are there; raises `ProviderError`."""
        return self._kind.batch_state(await self._call("GET", self._at(batch)))[1]

    async def headers(self, batch: str) -> Mapping[str, Header]:
        """The headers by the ids of their passages; raises `ProviderError`."""
        answer = await self._call("GET", self._at(batch) + "/results")
        found = await asyncio.to_thread(self._kind.batch_headers, answer)
        for header in found.values():
            _count(self._account, header)
        return {name: cleaned(header) for name, header in found.items()}

    def _at(self, batch: str) -> str:
        return f"{self._path}/{quote(batch, safe='')}"

    async def _call(self, method: str, path: str, body: Any = None) -> bytes:
        return await self._account.call(method, path, body, purpose="index", seconds=BATCH_SECONDS)


class Contextualizers:
    """Hands out the contextualizer of a generation."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._places: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    async def get(self, generation: Generation) -> Contextualizer:
        """The generation's contextualizer; raises `ProviderError`."""
        account, model, kind = await self._find(generation)
        places = self._places.get(generation.id)
        if places is None:
            places = asyncio.Semaphore(generation.contextual.concurrency)
            self._places[generation.id] = places
        return RemoteContextualizer(account, model, kind, places)

    async def bulk(self, generation: Generation) -> RemoteBatches | None:
        """The same for many passages at once; raises `ProviderError`."""
        account, model, kind = await self._find(generation)
        return RemoteBatches(account, model, kind, kind.batch_path) if kind.batch_path else None

    async def _find(self, generation: Generation) -> tuple[Account, str, Contextualizing]:
        asked = generation.contextual
        if asked.provider is None or asked.model is None:
            raise ProviderError("the collection names no model that writes headers")
        account = await self._accounts.find(generation.team_id, asked.provider)
        return account, asked.model, contextualizing(account.credential.kind)


async def check_contextualizer(accounts: Accounts, team_id: int, provider: str) -> None:
    """Raise `ProviderError` for a provider that is not registered or writes no headers."""
    contextualizing((await accounts.find(team_id, provider)).credential.kind)


def _count(account: Account, header: Header) -> None:
    for kind, tokens in msgspec.structs.asdict(header.usage).items():
        account.count(kind, tokens)


def cleaned(header: Header) -> Header:
    """The header on one line, bounded, without what cannot be stored."""
    text = " ".join(clean(header.text)[0].split())
    if len(text) > MAX_HEADER_CHARACTERS:
        text = text[:MAX_HEADER_CHARACTERS].rpartition(" ")[0] or text[:MAX_HEADER_CHARACTERS]
    return msgspec.structs.replace(header, text=text)
