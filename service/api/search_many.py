"""One search over several collections."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.params import JSONBody

from service.api.access import reach, requires
from service.api.fields import Name
from service.api.problems import SEARCHING
from service.api.search import server_timing
from service.api.services import CurrentServices
from service.errors import InvalidRequestError
from service.search.pipeline import search_collections
from service.search.request import SearchRequest
from service.search.response import SearchResponse

MAX_COLLECTIONS = 20


class SearchManyRequest(SearchRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search, and the collections that it goes through."""

    collections: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=MAX_COLLECTIONS)]


@post(
    "/search",
    guards=[requires("search")],
    responses=SEARCHING,
    status_code=200,
    summary="Search several collections",
    tags=["search"],
)
async def search_many(
    data: JSONBody[SearchManyRequest],
    request: Request[Any, Any, State],
    services: CurrentServices,
) -> Response[SearchResponse]:
    """Rank the chunks, or documents, of several collections in one list.

    The best candidates of each leg over all collections are fused once. Cosines compare as long
    as the vectors come from one model; BM25 as a share of what the query could score at most.
    """
    for at, name in enumerate(data.collections):
        if name in data.collections[:at]:
            raise InvalidRequestError.at(f"/collections/{at}", "is named twice")
    collections = await reach(request, data.collections)
    async with services.gate.place(collections[0].team_id):
        found = await search_collections(services.search, collections, data)
    return Response(found, headers={"Server-Timing": server_timing(found)})
