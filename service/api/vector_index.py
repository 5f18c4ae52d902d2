"""The approximate index over a collection's vectors: build it, drop it."""

from litestar import delete, post

from service.api.access import CurrentCollection, requires
from service.api.documents import Accepted
from service.api.problems import ACTING, EVERYWHERE
from service.api.services import CurrentServices
from service.indexing.vector_index import request_index


@post(
    "/collections/{name:str}/index",
    guards=[requires("admin")],
    responses=ACTING,
    status_code=202,
    summary="Build the vector index",
    tags=["collections"],
)
async def build_index(services: CurrentServices, collection: CurrentCollection) -> Accepted:
    """Build the approximate index whatever the size, or measure its recall again if it is there.

    Searches and writes go on meanwhile; the job tells how far it is.
    """
    return Accepted(await request_index(services.database, collection, "hnsw"))


@delete(
    "/collections/{name:str}/index",
    guards=[requires("admin")],
    responses=EVERYWHERE,
    status_code=202,
    summary="Drop the vector index",
    tags=["collections"],
)
async def drop_index(services: CurrentServices, collection: CurrentCollection) -> Accepted:
    """Drop the approximate index; every vector is compared until it is built on demand again."""
    return Accepted(await request_index(services.database, collection, "exact"))
