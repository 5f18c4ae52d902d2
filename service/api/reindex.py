"""Re-indexing: build a generation with other settings beside the active one, and the way back."""

import msgspec
from litestar import Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody
from msgspec import UNSET, UnsetType

from service.api.access import CurrentCollection, requires
from service.api.fields import RowId
from service.api.generation_settings import GenerationChanges, wanted_generation
from service.api.jobs import find_job
from service.api.problems import ACTING, CREATING
from service.api.services import CurrentServices
from service.db.jobs import JobInfo
from service.indexing import reindexing
from service.indexing.reindexing import ReindexPlan


class ReindexRequest(GenerationChanges, frozen=True, forbid_unknown_fields=True):
    """What is to change, nothing of it too; with `plan_only` it is only worked out."""

    plan_only: bool = False


class Reindex(msgspec.Struct, frozen=True):
    """What the re-index does, and its job once it has begun."""

    plan: ReindexPlan
    job_id: int | UnsetType = UNSET


PLANNED = {
    200: ResponseSpec(Reindex, description="The plan alone", generate_examples=False),
}


class Rollback(msgspec.Struct, frozen=True):
    """The job that returns to the generation before."""

    job_id: int


@post(
    "/collections/{name:str}/reindex",
    guards=[requires("admin")],
    responses={**CREATING, **PLANNED},
    status_code=202,
    summary="Re-index a collection",
    tags=["collections"],
)
async def reindex(
    data: JSONBody[ReindexRequest], services: CurrentServices, collection: CurrentCollection
) -> Response[Reindex]:
    """Build a new generation in the background and swap it in when it is complete.

    Searches use the present one until then. With `plan_only` nothing begins: the answer is 200.
    """
    wanted = await wanted_generation(data, collection.generation, services)
    plan = await reindexing.plan_reindex(
        services.database, services.embedders, collection.generation, wanted
    )
    if data.plan_only:
        return Response(Reindex(plan), status_code=200)
    job_id = await reindexing.start_reindex(services.database, collection, wanted, plan)
    return Response(Reindex(plan, job_id))


@post(
    "/collections/{name:str}/rollback",
    guards=[requires("admin")],
    responses=ACTING,
    status_code=202,
    summary="Return to the generation before",
    tags=["collections"],
)
async def rollback(services: CurrentServices, collection: CurrentCollection) -> Rollback:
    """Undo the last swap: bring the generation before up to date, then swap it in again."""
    return Rollback(await reindexing.start_rollback(services.database, collection))


@post(
    "/collections/{name:str}/jobs/{job_id:str}/pause",
    guards=[requires("admin")],
    responses=ACTING,
    status_code=200,
    summary="Pause a re-index",
    tags=["jobs"],
)
async def pause_job(
    job_id: RowId, services: CurrentServices, collection: CurrentCollection
) -> JobInfo:
    """Let a re-index rest until it is resumed."""
    await reindexing.pause_reindex(services.database, collection, job_id)
    return await find_job(services, collection, job_id)


@post(
    "/collections/{name:str}/jobs/{job_id:str}/resume",
    guards=[requires("admin")],
    responses=ACTING,
    status_code=200,
    summary="Resume a re-index",
    tags=["jobs"],
)
async def resume_job(
    job_id: RowId, services: CurrentServices, collection: CurrentCollection
) -> JobInfo:
    """Let a paused re-index go on, or one that failed try again what failed."""
    await reindexing.resume_reindex(services.database, collection, job_id)
    return await find_job(services, collection, job_id)
