"""Search: the handler, its admission and its timings."""

from typing import Any

from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.params import JSONBody

from service.api.access import collection_of, requires
from service.api.fields import PathName
from service.api.problems import SEARCHING
from service.api.services import Services
from service.search.pipeline import search_collection
from service.search.request import SearchRequest
from service.search.response import SearchResponse


@post(
    "/collections/{name:str}/search",
    guards=[requires("search")],
    responses=SEARCHING,
    status_code=200,
    summary="Search a collection",
    tags=["search"],
)
async def search(
    data: JSONBody[SearchRequest],
    request: Request[Any, Any, State],
    name: PathName,  # noqa: ARG001 - so that the path's parameter is documented
) -> Response[SearchResponse]:
    """Rank the chunks, or documents, of a collection by a query.

    Weighted RRF: score = sum over legs of weight / (rrf_k + rank), ranks from 1. Some libraries
    divide the rank by the weight instead: their weights mean something else. dbsf: each leg's
    scores scaled by its mean +- 3 standard deviations, then the weighted sum.
    """
    # Taken from the request: two dependencies would each cost a task.
    services: Services = request.app.state.services
    collection = collection_of(request)
    async with services.gate.place(collection.team_id):
        found = await search_collection(services.search, collection, data)
    return Response(found, headers={"Server-Timing": server_timing(found)})


def server_timing(found: SearchResponse) -> str:
    """The stages of a search as a `Server-Timing` header, in milliseconds."""
    stages = [f"{name};dur={facts['ms']:.1f}" for name, facts in found.stages.items()]
    return ", ".join([*stages, f"total;dur={found.took_ms:.1f}"])
