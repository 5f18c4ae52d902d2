"""What waits in the database is counted by state, and is nought again when it is done."""

import asyncpg
from support.hashed_embedder import HashedEmbedder
from support.indexing import WAIT_SECONDS, make_collection, submit, working

from service.db.pool import Database
from service.db.queue import measure_queue
from service.indexing.waiting import wait_for_job
from service.instruments import DOCUMENTS_WAITING, JOBS_OLDEST, JOBS_UNFINISHED
from service.metrics import Gauge

PENDING = ("ingest", "pending")


def value(gauge: Gauge, *labels: str) -> float:
    return {one.labels: one.value for one in gauge.points()}[labels]


async def test_jobs_and_documents_that_wait_are_gauges(database: Database, dsn: str) -> None:
    collection = await make_collection(database)
    jobs = [
        await submit(
            database, collection, *({"doc_id": f"{at}-{n}", "text": "words"} for n in range(3))
        )
        for at in range(2)
    ]
    connection = await asyncpg.connect(dsn)
    await connection.execute("UPDATE braid.jobs SET created_at = created_at - interval '1 hour'")
    await connection.close()
    await measure_queue(database)
    assert value(JOBS_UNFINISHED, *PENDING) == 2
    assert value(DOCUMENTS_WAITING) == 6
    assert 3600 <= value(JOBS_OLDEST, "ingest") < 2 * 3600
    assert value(JOBS_OLDEST, "reindex") == 0
    async with working(database, dsn, HashedEmbedder()):
        for job in jobs:
            await wait_for_job(database, collection, job, seconds=WAIT_SECONDS)
    await measure_queue(database)
    assert value(DOCUMENTS_WAITING) == 0
