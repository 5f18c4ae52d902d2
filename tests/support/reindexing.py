"""Start a re-index without HTTP and look at what comes of it."""

from typing import Any

import msgspec
from support.indexing import TEAM, OneEmbedder, finished

from service.db.catalog import lock_collection
from service.db.jobs import JobInfo, get_job
from service.db.pool import Database
from service.indexing.reindexing import plan_reindex, start_reindex
from service.models import Collection
from service.providers.base import Embedder


async def current(database: Database, collection: Collection) -> Collection:
    """The collection with the generation that is active now."""
    async with database.administer() as connection:
        found = await lock_collection(connection, collection.id)
    assert found is not None
    return found


async def start(
    database: Database,
    collection: Collection,
    embedder: Embedder | None = None,
    **changes: Any,
) -> int:
    """Begin to build a generation with these settings changed; the job's id."""
    collection = await current(database, collection)
    wanted = msgspec.structs.replace(collection.generation, **changes)
    plan = await plan_reindex(database, OneEmbedder(embedder), collection.generation, wanted)
    return await start_reindex(database, collection, wanted, plan)


async def reindexed(
    database: Database,
    collection: Collection,
    embedder: Embedder | None = None,
    **changes: Any,
) -> tuple[JobInfo, Collection]:
    """The end of a re-index, and the collection after it."""
    job_id = await start(database, collection, embedder, **changes)
    job = await finished(database, collection, job_id)
    return job, await current(database, collection)


async def job_of(database: Database, collection: Collection, job_id: int) -> JobInfo:
    """How a job stands."""
    async with database.write(TEAM) as connection:
        job = await get_job(connection, collection.id, job_id)
    assert job is not None
    return job
