"""The rerankers of a process, each behind a guard: bounded, validated, and left alone if broken."""

import asyncio
import math
from collections.abc import Hashable, Sequence

import msgspec

from service.errors import BadAnswerError
from service.providers.base import Relevance, Reranker
from service.providers.breaker import Breaker
from service.providers.outbound import Account, Accounts
from service.providers.registry import Reranking, reranking
from service.text import clip_tokens

MAX_BREAKERS = 10_000


class _Item(msgspec.Struct):
    index: int
    relevance_score: float


class _Answer(msgspec.Struct):
    data: list[_Item] | None = None
    results: list[_Item] | None = None


_decoder = msgspec.json.Decoder(_Answer)


class RemoteReranker:
    """One model of a service."""

    def __init__(self, account: Account, model: str, kind: Reranking) -> None:
        self._account = account
        self._model = model
        self._kind = kind

    async def rerank(self, query: str, documents: Sequence[str]) -> Sequence[Relevance]:
        """Scores as the service gives them."""
        kind = self._kind
        body = kind.body(
            self._model,
            clip_tokens(query, kind.query_tokens),
            [clip_tokens(text, kind.document_tokens) for text in documents],
        )
        answer = await self._account.send("POST", kind.path, body)
        try:
            parsed = _decoder.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadAnswerError("the reranker's answer cannot be read") from error
        items = parsed.data if parsed.data is not None else parsed.results
        return [Relevance(item.index, item.relevance_score) for item in items or ()]


class GuardedReranker:
    """Takes a place, asks, and validates; a service that keeps failing is not asked."""

    def __init__(self, inner: Reranker, breaker: Breaker, places: asyncio.Semaphore) -> None:
        self._inner = inner
        self._breaker = breaker
        self._places = places

    async def rerank(self, query: str, documents: Sequence[str]) -> Sequence[Relevance]:
        """Valid scores, best first; raises `ProviderError`."""
        self._breaker.admit()
        async with self._places:
            with self._breaker.watching():
                return validated(await self._inner.rerank(query, documents), len(documents))


def validated(answer: Sequence[Relevance], count: int) -> list[Relevance]:
    """Scores in falling order; raises `BadAnswerError`.

    Every index is in range, none comes twice, every score is finite. An answer for at least half
    of the documents is one for a part of them, with less it is none.
    """
    indexes = {one.index for one in answer}
    if len(indexes) < len(answer):
        raise BadAnswerError("the reranker names a document twice")
    if not indexes <= set(range(count)):
        raise BadAnswerError("the reranker names a document that was not sent")
    if not all(math.isfinite(one.score) for one in answer):
        raise BadAnswerError("the reranker gives a score that is no number")
    if 2 * len(answer) < count:
        raise BadAnswerError(f"the reranker ranks {len(answer)} of {count} documents")
    return sorted(answer, key=lambda one: (-one.score, one.index))


async def check_reranker(accounts: Accounts, team_id: int, provider: str) -> None:
    """Raise `ProviderError` for a provider that is not registered or does not rank."""
    reranking((await accounts.find(team_id, provider)).credential.kind)


class Rerankers:
    """Hands out rerankers; the failures of each are counted for the whole process."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._breakers: dict[Hashable, Breaker] = {}

    async def check(self, team_id: int, provider: str) -> None:
        """Raise `ProviderError` for a provider that is not registered or does not rank."""
        reranking((await self._accounts.find(team_id, provider)).credential.kind)

    async def get(self, team_id: int, provider: str, model: str | None) -> Reranker | None:
        """The team's reranker, None without a model; raises `ProviderError`."""
        account = await self._accounts.find(team_id, provider)
        kind = reranking(account.credential.kind)
        model = model or kind.default_model
        if model is None:
            return None
        breaker = self._breaker((account.credential.id, model), provider)
        return GuardedReranker(
            RemoteReranker(account, model, kind), breaker, account.place("rerank")
        )

    def _breaker(self, key: Hashable, name: str) -> Breaker:
        if key not in self._breakers and len(self._breakers) >= MAX_BREAKERS:
            self._breakers.clear()
        return self._breakers.setdefault(key, Breaker(name))
