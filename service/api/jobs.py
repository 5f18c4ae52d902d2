"""Jobs: how far accepted documents are."""

import msgspec
from litestar import get

from service.api.access import CurrentCollection, requires
from service.api.fields import Limit, Offset, RowId
from service.api.problems import EVERYWHERE
from service.api.services import CurrentServices, Services
from service.db import jobs
from service.db.jobs import JobInfo
from service.errors import NotFoundError
from service.models import Collection


class JobList(msgspec.Struct, frozen=True):
    """Jobs of a collection, the newest first."""

    jobs: list[JobInfo]
    total: int


@get(
    "/collections/{name:str}/jobs",
    guards=[requires("index")],
    responses=EVERYWHERE,
    summary="List jobs",
    tags=["jobs"],
)
async def list_jobs(
    services: CurrentServices,
    collection: CurrentCollection,
    limit: Limit = 20,
    offset: Offset = 0,
) -> JobList:
    """List the jobs of a collection, the newest first."""
    async with services.database.write(collection.team_id) as connection:
        return JobList(*await jobs.list_jobs(connection, collection.id, limit=limit, offset=offset))


@get(
    "/collections/{name:str}/jobs/{job_id:str}",
    guards=[requires("index")],
    responses=EVERYWHERE,
    summary="Get a job",
    tags=["jobs"],
)
async def get_job(
    job_id: RowId, services: CurrentServices, collection: CurrentCollection
) -> JobInfo:
    """The state of a job, its counts, its warnings, and why documents failed."""
    return await find_job(services, collection, job_id)


async def find_job(services: Services, collection: Collection, job_id: int) -> JobInfo:
    """A job of the collection; raises `NotFoundError`."""
    async with services.database.write(collection.team_id) as connection:
        job = await jobs.get_job(connection, collection.id, job_id)
    if job is None:
        raise NotFoundError("unknown job")
    return job
