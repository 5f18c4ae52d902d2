"""Jobs: how far accepted documents are."""

from typing import Annotated

import msgspec
from litestar import get, post
from litestar.params import QueryParameter

from service.api.access import CurrentCollection, CurrentPrincipal, requires
from service.api.fields import Limit, Offset, RowId
from service.api.problems import ACTING, EVERYWHERE
from service.api.services import CurrentServices, Services
from service.db import jobs
from service.db.jobs import JobInfo
from service.errors import NotFoundError
from service.indexing import cancelling
from service.models import Collection, JobStatus

Status = Annotated[JobStatus | None, QueryParameter(description="only jobs in this state")]


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
    status: Status = None,
) -> JobList:
    """List the jobs of a collection, the newest first; `total` counts those in the state."""
    async with services.database.write(collection.team_id) as connection:
        found = await jobs.list_jobs(
            connection, collection.id, status=status, limit=limit, offset=offset
        )
    return JobList(*found)


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


@post(
    "/collections/{name:str}/jobs/{job_id:str}/cancel",
    guards=[requires("index", "admin")],
    responses=ACTING,
    status_code=200,
    summary="Cancel a job",
    tags=["jobs"],
)
async def cancel_job(
    job_id: RowId,
    services: CurrentServices,
    collection: CurrentCollection,
    principal: CurrentPrincipal,
) -> JobInfo:
    """End a job that takes documents in, or a re-index (scope `admin`); what is indexed stays."""
    await cancelling.cancel_job(
        services.database, collection, job_id, may_reindex="admin" in principal.scopes
    )
    return await find_job(services, collection, job_id)


async def find_job(services: Services, collection: Collection, job_id: int) -> JobInfo:
    """A job of the collection; raises `NotFoundError`."""
    async with services.database.write(collection.team_id) as connection:
        job = await jobs.get_job(connection, collection.id, job_id)
    if job is None:
        raise NotFoundError("unknown job")
    return job
