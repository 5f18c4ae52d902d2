"""Writes what was paid for even while the database is away for a moment."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import stamina

from service.errors import UnavailableError

ATTEMPTS = 6
T = TypeVar("T")


async def persistently(write: Callable[[], Awaitable[T]]) -> T:
    """The result of a write that may be begun again; raises `UnavailableError` in the end."""
    async for attempt in stamina.retry_context(
        on=UnavailableError, attempts=ATTEMPTS, timeout=None, wait_initial=0.1, wait_max=2.0
    ):
        with attempt:
            return await write()
    raise AssertionError("unreachable")
