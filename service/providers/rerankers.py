"""The rerankers of a process, each behind a guard: bounded, validated, and left alone if broken."""

import asyncio
import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from service.errors import BadAnswerError, ProviderError
from service.instruments import CIRCUITS
from service.providers.base import Relevance, Reranker
from service.providers.breaker import Breaker
from service.providers.embedders import BUNDLED
from service.providers.outbound import Account, Accounts
from service.providers.registry import Reranking, reranking
from service.text import clip_tokens

if TYPE_CHECKING:
    from service.providers.onnx_reranker import OnnxReranker

MAX_BREAKERS = 10_000
LOCAL_PLACES = 4
"""Calls of local models that wait or run; each model runs one at a time."""
ONNX = "service.providers.onnx_reranker"
MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class _Item(msgspec.Struct):
    index: int
    relevance_score: float


class _Usage(msgspec.Struct):
    total_tokens: int = 0


class _Answer(msgspec.Struct):
    data: list[_Item] | None = None
    results: list[_Item] | None = None
    usage: _Usage | None = None


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
        answer = await self._account.send("POST", kind.path, body, purpose="rerank")
        try:
            parsed = _decoder.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadAnswerError("the reranker's answer cannot be read") from error
        if parsed.usage is not None:
            self._account.count("rerank", parsed.usage.total_tokens)
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
    if provider != BUNDLED:
        kind = (await accounts.find(team_id, provider)).credential.kind
        if kind != BUNDLED:
            reranking(kind)


class LocalRerankers:
    """The cross-encoders in the operator's folder, each loaded once."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._made: dict[str, OnnxReranker] = {}

    async def get(self, model: str) -> Reranker:
        """The model of this name; raises `ProviderError`."""
        if self._folder is None:
            raise ProviderError("the operator has not set BRAID_RERANKER_DIR")
        # The name is a tenant's: it names a folder in there, and no path.
        if not MODEL_NAME.fullmatch(model) or not (self._folder / model).is_dir():
            raise ProviderError("there is no such local reranker")
        if model not in self._made:
            self._made[model] = await asyncio.to_thread(_load_onnx, self._folder / model)
        return self._made[model]

    async def close(self) -> None:
        """Release the models."""
        made = list(self._made.values())
        self._made.clear()
        for reranker in made:
            await reranker.close()


def _load_onnx(folder: Path) -> "OnnxReranker":
    try:
        module = import_module(ONNX)
    except ModuleNotFoundError as error:
        raise ProviderError(
            "local reranking is not installed: pip install 'braid[rerank]'"
        ) from error
    made: OnnxReranker = module.OnnxReranker(folder)
    return made


class Rerankers:
    """Hands out rerankers; the failures of each are counted for the whole process."""

    def __init__(self, accounts: Accounts, local: LocalRerankers) -> None:
        self._accounts = accounts
        self._local = local
        self._places = asyncio.Semaphore(LOCAL_PLACES)
        self._breakers: dict[Hashable, Breaker] = {}

    async def check(self, team_id: int, provider: str) -> None:
        """Raise `ProviderError` for a provider that is not registered or does not rank."""
        reranking((await self._accounts.find(team_id, provider)).credential.kind)

    async def get(self, team_id: int, provider: str, model: str | None) -> Reranker | None:
        """The team's reranker, None without a model; raises `ProviderError`."""
        account = None if provider == BUNDLED else await self._accounts.find(team_id, provider)
        if account is None or account.credential.kind == BUNDLED:
            return await self._get_local(model)
        kind = reranking(account.credential.kind)
        model = model or kind.default_model
        if model is None:
            return None
        breaker = self._breaker((account.credential.id, model), account.credential.kind)
        return GuardedReranker(
            RemoteReranker(account, model, kind), breaker, account.place("rerank")
        )

    async def _get_local(self, model: str | None) -> Reranker | None:
        if model is None:
            return None
        reranker = await self._local.get(model)
        return GuardedReranker(reranker, self._breaker((BUNDLED, model), BUNDLED), self._places)

    def observe(self) -> None:
        """Set the gauges of the circuits that are not closed."""
        found = Counter((one.provider, one.state) for one in self._breakers.values())
        for provider in {provider for provider, _ in found}:
            for state in ("open", "half-open"):
                CIRCUITS.set(found[provider, state], provider, state)

    def _breaker(self, key: Hashable, name: str) -> Breaker:
        if key not in self._breakers and len(self._breakers) >= MAX_BREAKERS:
            self._breakers.clear()
        return self._breakers.setdefault(key, Breaker(name))
