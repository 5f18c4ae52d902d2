"""Ending jobs early at a client's wish."""

from service.db.cancelling import cancel_ingest_job
from service.db.documents import hold_generation
from service.db.jobs import job_kind
from service.db.pool import Database
from service.errors import ConflictError, ForbiddenError, NotFoundError
from service.indexing.reindexing import cancel_reindex
from service.models import Collection


async def cancel_job(
    database: Database, collection: Collection, job_id: int, *, may_reindex: bool
) -> None:
    """End a job that takes documents in, or a re-index; what is indexed stays.

    Raises `NotFoundError`, `ConflictError` for other jobs and those that are over, and
    `ForbiddenError` for a re-index unless `may_reindex`.
    """
    async with database.write(collection.team_id) as connection:
        kind = await job_kind(connection, collection.id, job_id)
        if kind is None:
            raise NotFoundError("unknown job")
        if kind == "ingest":
            await hold_generation(connection, collection.id)
            if not await cancel_ingest_job(connection, job_id):
                raise ConflictError("this job is over")
            return
    if kind != "reindex":
        raise ConflictError("only an ingest or a re-index can be cancelled")
    if not may_reindex:
        raise ForbiddenError("the key needs the scope admin")
    await cancel_reindex(database, collection, job_id)
