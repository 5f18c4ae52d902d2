"""Work ends soon after nobody wants it."""

import asyncio
import threading

import pytest

from service.indexing import abandon
from service.indexing.abandon import AbandonedError, Checkpoint, in_thread, while_wanted


async def test_a_thread_ends_at_the_checkpoint_after_its_caller_was_cancelled() -> None:
    began, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    def work(checkpoint: Checkpoint) -> None:
        began.set()
        cancelled.wait(30)
        try:
            checkpoint()
        except AbandonedError:
            ended.set()

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(began.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cancelled.set()
    assert await asyncio.to_thread(ended.wait, 30)


async def test_work_that_is_wanted_runs_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abandon, "LOOK_SECONDS", 0.0)
    looks = asyncio.Semaphore(0)

    async def work() -> str:
        for _ in range(3):
            await looks.acquire()
        return "done"

    async def is_wanted() -> bool:
        looks.release()
        return True

    assert await while_wanted(work(), is_wanted) == "done"


async def test_work_that_is_no_longer_wanted_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abandon, "LOOK_SECONDS", 0.0)
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def is_wanted() -> bool:
        await asyncio.sleep(0)
        return False

    assert await while_wanted(work(), is_wanted) is None
    assert cancelled.is_set()


async def test_an_error_of_the_work_is_the_callers() -> None:
    async def work() -> None:
        raise ValueError("broken")

    async def is_wanted() -> bool:
        return True

    with pytest.raises(ValueError, match="broken"):
        await while_wanted(work(), is_wanted)
