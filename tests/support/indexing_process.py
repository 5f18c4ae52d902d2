"""A worker in a process of its own, to be killed. Run as a script with a DSN."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.hashed_embedder import HashedEmbedder
from support.indexing import OneEmbedder

from service.db.pool import open_database
from service.indexing import rebuild
from service.indexing.worker import Worker
from service.providers.base import EmbeddingBatch

LEASE_SECONDS = 0.6
SECONDS_A_TEXT = 0.008
ROOT = Path(__file__).resolve().parents[2]


class SlowEmbedder(HashedEmbedder):
    """Takes its time, so that a kill finds it at work."""

    async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
        await asyncio.sleep(SECONDS_A_TEXT * len(texts))
        return await super().embed_documents(texts)


def start_worker(dsn: str) -> "subprocess.Popen[bytes]":
    """Start a worker process that takes small steps; it prints a line when it is about to work."""
    process = subprocess.Popen(
        [sys.executable, __file__, dsn],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


async def work(dsn: str) -> None:
    rebuild.FIRST_ROWS = rebuild.LEAST_ROWS = rebuild.MOST_ROWS = 8
    database = await open_database(dsn, size=4)
    worker = Worker(database, dsn, OneEmbedder(SlowEmbedder()), lease_seconds=LEASE_SECONDS)
    print("ready", flush=True)  # noqa: T201
    await worker.run()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
