"""Documents that are deleted while the worker is at them hold nobody up."""

import asyncio
from collections.abc import Sequence

import pytest
from support.hashed_embedder import HashedEmbedder
from support.indexing import (
    column,
    finished,
    ingest,
    make_collection,
    rows,
    submit,
    working,
)

from service.db.pool import Database
from service.indexing import abandon
from service.indexing.editing import delete_document
from service.providers.base import EmbeddingBatch


class Stuck(HashedEmbedder):
    """Never comes to an end with a text that holds the word "stuck"."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work = asyncio.Event()

    async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
        batch = await super().embed_documents(texts)
        if any("stuck" in text for text in texts):
            self.at_work.set()
            await asyncio.Event().wait()
        return batch


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abandon, "LOOK_SECONDS", 0.05)


async def test_a_deleted_document_frees_the_worker(database: Database, dsn: str) -> None:
    collection, embedder = await make_collection(database), Stuck()
    async with working(database, dsn, embedder, concurrency=1):
        job_id = await submit(database, collection, {"doc_id": "a", "text": "stuck"})
        await embedder.at_work.wait()
        await delete_document(database, collection, "a")
        await finished(database, collection, job_id)
        ended = await ingest(database, collection, {"doc_id": "b", "text": "next"})
    assert ended.counts.indexed == 1
    assert column(await rows(database, collection, "b"), "text") == ["next"]
