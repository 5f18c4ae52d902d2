"""Has a model situate chunks in their documents, so that each document is read once at full price.

The first chunk of a document goes alone and writes it to the provider's prompt cache; once that is
readable the others follow, a bounded number at a time. A header that cannot be had is left out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any

import msgspec
import stamina

from service.errors import CallTooLargeError, ProviderError
from service.indexing.context import window_size, window_start
from service.indexing.embedding import wait_for_retry
from service.providers.base import Contextualizer, Header, Passage

WINDOW_TOKENS = 80_000
"""Of a document that are shown at once; prices rise, and attention falls, far beyond."""
LEAST_WINDOW_TOKENS = 1_000
SETTLE_SECONDS = 2.2
"""Until what a call wrote to the prompt cache is readable for others: up to two seconds."""
SETTLE_TIMES = 3
ATTEMPTS = 4
GIVE_UP_AFTER = 5
"""Chunks in a row without a header, each tried several times: the model is out of reach."""
UNCACHED = (
    "document {!r} is too short for the model's prompt cache: each of its headers pays for it"
)


class Wish(msgspec.Struct, frozen=True):
    """A chunk that needs a header; its place in the document, in characters."""

    key: Hashable
    text: str
    start: int
    end: int


class Wishes(msgspec.Struct, frozen=True):
    """The chunks of one document that need headers, in reading order."""

    doc_id: str
    text: str
    title: str | None
    chunks: Sequence[Wish]


class Situated(msgspec.Struct):
    """What came of wishes: a header each, empty if the model has none to give, or none."""

    headers: dict[Hashable, str] = {}
    failures: dict[Hashable, ProviderError] = {}
    warnings: list[str] = []


Keep = Callable[[Hashable, Header], Awaitable[None]]
"""Called with each header as soon as it is there, so that it is never paid for again."""


async def situate(
    contextualizer: Contextualizer, documents: Sequence[Wishes], keep: Keep
) -> Situated:
    """Headers for the chunks of documents; raises what `keep` raises and no `ProviderError`."""
    caller = _Caller(contextualizer, keep)
    await _all([_Document(caller, one).situate() for one in documents])
    return caller.situated


async def _all(work: Sequence[Coroutine[Any, Any, object]]) -> None:
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class _Caller:
    """Calls and what came of them; one that fails again and again is not asked any more."""

    def __init__(self, contextualizer: Contextualizer, keep: Keep) -> None:
        self._contextualizer = contextualizer
        self._keep = keep
        self._failed_in_a_row = 0
        self._last_error = ProviderError("the model was not asked")
        self.situated = Situated()

    async def ask(self, passage: Passage, wish: Wish, *, cached: bool) -> Header:
        """The header of a chunk; raises `ProviderError`."""
        if self._failed_in_a_row >= GIVE_UP_AFTER:
            raise self._last_error
        try:
            header = await self._call(passage, cached=cached)
        except CallTooLargeError:
            raise
        except ProviderError as error:
            self._last_error = error
            self._failed_in_a_row += 1
            raise
        self._failed_in_a_row = 0
        await self._keep(wish.key, header)
        self.situated.headers[wish.key] = header.text
        return header

    async def _call(self, passage: Passage, *, cached: bool) -> Header:
        async for attempt in stamina.retry_context(
            on=wait_for_retry, attempts=ATTEMPTS, timeout=None, wait_initial=0.2
        ):
            with attempt:
                return await self._contextualizer.situate(passage, cached=cached)
        raise AssertionError("unreachable")


class _Document:
    def __init__(self, caller: _Caller, wishes: Wishes) -> None:
        self._caller = caller
        self._wishes = wishes
        self._situated = caller.situated
        self._warned = False

    async def situate(self) -> None:
        left, tokens = list(self._wishes.chunks), WINDOW_TOKENS
        while left:
            too_large = False
            for start, window, wishes in self._parts(left, tokens):
                document = self._wishes.text[start : start + window]
                try:
                    await self._part(document, wishes)
                except CallTooLargeError:
                    too_large = tokens > LEAST_WINDOW_TOKENS
                except ProviderError as error:
                    self._fail(wishes, error)
            done = self._situated.headers.keys() | self._situated.failures.keys()
            left = [wish for wish in left if wish.key not in done]
            if left and not too_large:
                return self._fail(left, CallTooLargeError("the document is too long for the model"))
            tokens //= 2
        return None

    def _parts(self, left: Sequence[Wish], tokens: int) -> list[tuple[int, int, list[Wish]]]:
        """Parts of the document that are shown at once, each with the chunks looked at in it."""
        text = self._wishes.text
        window = window_size(text, tokens)
        parts: dict[int, list[Wish]] = {}
        for wish in left:
            start = window_start(len(text), window, wish.start, wish.end)
            parts.setdefault(start, []).append(wish)
        return [(start, window, wishes) for start, wishes in sorted(parts.items())]

    async def _part(self, document: str, wishes: Sequence[Wish]) -> None:
        """Warm the cache, then ask for the rest together; raises the first chunk's error."""
        first, rest = wishes[0], list(wishes[1:])
        header = await self._ask(document, first, cached=bool(rest))
        if rest and header.usage.cache_write:
            rest = await self._settle(document, rest)
        elif rest and not header.usage.cache_read and not self._warned:
            self._warned = True
            self._situated.warnings.append(UNCACHED.format(self._wishes.doc_id))
        await _all([self._try(document, wish) for wish in rest])

    async def _settle(self, document: str, rest: list[Wish]) -> list[Wish]:
        """Wait until the cache answers, one chunk after the other; what is left to ask for."""
        for _ in range(SETTLE_TIMES):
            await asyncio.sleep(SETTLE_SECONDS)
            if not rest:
                break
            header = await self._try(document, rest.pop(0))
            if header is not None and header.usage.cache_read:
                break
        return rest

    async def _try(self, document: str, wish: Wish) -> Header | None:
        try:
            return await self._ask(document, wish, cached=True)
        except ProviderError as error:
            self._fail([wish], error)
            return None

    async def _ask(self, document: str, wish: Wish, *, cached: bool) -> Header:
        passage = Passage(wish.text, document, self._wishes.title)
        return await self._caller.ask(passage, wish, cached=cached)

    def _fail(self, wishes: Sequence[Wish], error: ProviderError) -> None:
        self._situated.failures.update({wish.key: error for wish in wishes})
