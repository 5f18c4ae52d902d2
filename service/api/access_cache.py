"""Keys and collections that were looked up lately; valid as long as changes are heard."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from service.db.changes import Changes
from service.db.keys import Access
from service.errors import UnavailableError
from service.instruments import CACHE_REQUESTS

MAX_AGE_SECONDS = 60.0
"""So that the last use of a key is written down about once a minute."""
MAX_ENTRIES = 10_000
LOOK_UP_SECONDS = 2.0
"""A server that stands still must not hold every request as long as any may take."""

Asked: TypeAlias = tuple[bytes | str, str | None]
"""Hash of a key, or the team that the root key acts for; and the collection's name."""


class _Known(msgspec.Struct, frozen=True):
    access: Access
    until: float


class AccessCache:
    """What keys may reach. Only what exists is kept: an unknown key is looked up each time."""

    def __init__(self, changes: Changes, clock: Callable[[], float] = time.monotonic) -> None:
        self._changes = changes
        self._clock = clock
        self._known: dict[Asked, _Known] = {}
        changes.subscribe(self.forget)

    def forget(self) -> None:
        """Look everything up again: something may have changed."""
        self._known = {}

    def peek(self, asked: Asked) -> Access | None:
        """The access, if it is in memory."""
        known = self._known.get(asked)
        return None if known is None else known.access

    async def get(
        self, asked: Asked, look_up: Callable[[], Awaitable[Access | None]]
    ) -> Access | None:
        """The access, from memory or by `look_up`."""
        now = self._clock()
        known = self._known.get(asked)
        if known is not None and now < known.until and self._changes.current:
            CACHE_REQUESTS.add(1, "access", "hit")
            return known.access
        CACHE_REQUESTS.add(1, "access", "miss")
        remembered = self._known
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                access = await look_up()
        except TimeoutError as error:
            raise UnavailableError("the key could not be looked up in time") from error
        if access is not None and _lasts(access, asked):
            if len(remembered) >= MAX_ENTRIES:
                remembered.clear()
            # When a change came meanwhile, this dict is the one that `forget` has let go of.
            remembered[asked] = _Known(access, now + min(access.seconds_left, MAX_AGE_SECONDS))
        return access


def _lasts(access: Access, asked: Asked) -> bool:
    """Nothing is missing that may be there the next time, and nothing is left to write down."""
    return access.unused_key is None and (access.collection is None) == (asked[1] is None)
