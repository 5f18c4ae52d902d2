"""Is the process alive, and can it serve? No key is asked for, so nothing of tenants is told."""

import asyncio
from typing import Literal

import msgspec
from litestar import get
from litestar.datastructures import State

from service import __version__
from service.api.problems import documented
from service.api.services import CurrentServices
from service.db.catalog import stored_revision
from service.errors import UnavailableError

READY_SECONDS = 2.0


class Alive(msgspec.Struct, frozen=True):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Health(msgspec.Struct, frozen=True):
    """The process answers, and what it is."""

    version: str
    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct, frozen=True):
    """The database answers and has the schema that this version needs."""

    revision: str
    status: Literal["ok"] = "ok"


@get("/livez", summary="Is the process alive?", tags=["health"])
async def livez() -> Alive:
    """Answer 200 as long as the process runs; asks nothing of the database."""
    return Alive()


@get("/healthz", summary="Is the process alive, and which version is it?", tags=["health"])
async def healthz() -> Health:
    """Answer 200 with the version as long as the process runs."""
    return Health(__version__)


@get(
    "/readyz",
    responses=documented(UnavailableError),
    summary="Can the process serve?",
    tags=["health"],
)
async def readyz(services: CurrentServices, state: State) -> Readiness:
    """Answer 200 when the database answers and has the newest schema and no stop was asked for."""
    if state.leaving.is_set():
        raise UnavailableError("the process is about to stop")
    if services.stopped:
        raise UnavailableError(f"stopped: {', '.join(services.stopped)}")
    try:
        async with asyncio.timeout(READY_SECONDS):
            revision = await stored_revision(services.database)
    except TimeoutError as error:
        raise UnavailableError("the database does not answer in time") from error
    # A newer one is an upgrade under way, in which the old version goes on serving.
    if revision is None or revision < services.schema_revision:
        raise UnavailableError(
            f"the schema is at revision {revision}, {services.schema_revision} is needed"
        )
    return Readiness(revision)
