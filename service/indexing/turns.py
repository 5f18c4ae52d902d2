"""Who may work at the same time within one process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Turns:
    """Ordinary work runs side by side; what may bring the process down runs alone.

    Otherwise the document that stops the worker would take those beside it along each time.
    """

    def __init__(self, *, builds: int = 1) -> None:
        self._changed = asyncio.Condition()
        self._beside = 0
        self._alone = False
        self.builds = asyncio.Semaphore(builds)
        """Long jobs at once: they must not keep documents waiting."""
        self.upkeep = asyncio.Lock()
        """One refresh of a generation at a time: each takes several connections."""

    @contextlib.asynccontextmanager
    async def take(self, *, alone: bool) -> AsyncIterator[None]:
        """Wait for a turn and hold it."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._alone)
            if alone:
                await self._clear_the_room()
            else:
                self._beside += 1
        try:
            yield
        finally:
            async with self._changed:
                if alone:
                    self._alone = False
                else:
                    self._beside -= 1
                self._changed.notify_all()

    async def _clear_the_room(self) -> None:
        self._alone = True
        try:
            await self._changed.wait_for(lambda: self._beside == 0)
        except BaseException:
            self._alone = False
            self._changed.notify_all()
            raise
