"""The audit of a collection."""

from litestar import get

from service.api.access import CurrentCollection, requires
from service.api.problems import EVERYWHERE
from service.api.services import CurrentServices
from service.db.audit import read_audit
from service.indexing.health import CollectionHealth, judge


@get(
    "/collections/{name:str}/health",
    guards=[requires("index", "admin")],
    responses=EVERYWHERE,
    summary="Audit a collection",
    tags=["collections"],
)
async def get_health(services: CurrentServices, collection: CurrentCollection) -> CollectionHealth:
    """Look for what slows searches down or hides documents, and say what sets it right."""
    async with services.database.administer() as connection:
        audit = await read_audit(connection, collection.generation)
    return judge(collection, audit)
