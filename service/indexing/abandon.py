"""Work that ends soon after nobody wants its result any more."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

LOOK_SECONDS = 1.0

Checkpoint: TypeAlias = Callable[[], None]
"""To be called now and then by work in a thread."""
T = TypeVar("T")


class AbandonedError(Exception):
    """Nobody waits for this work."""


async def in_thread(work: Callable[[Checkpoint], T]) -> T:
    """Run work in a thread; after a cancellation its next checkpoint raises `AbandonedError`."""
    abandoned = threading.Event()

    def checkpoint() -> None:
        if abandoned.is_set():
            raise AbandonedError

    try:
        return await asyncio.to_thread(work, checkpoint)
    finally:
        abandoned.set()


async def while_wanted(
    work: Coroutine[Any, Any, T], is_wanted: Callable[[], Awaitable[bool]]
) -> T | None:
    """The result of the work, or None after it was cancelled because it was not wanted."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=LOOK_SECONDS))[0]:
            if not await is_wanted():
                return None
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
