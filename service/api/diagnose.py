"""Why a document is in an answer or not."""

from litestar import post
from litestar.params import JSONBody

from service.api.access import CurrentCollection, requires
from service.api.problems import SEARCHING
from service.api.services import CurrentServices
from service.search.diagnose import DiagnoseRequest, diagnose
from service.search.diagnosis import Diagnosis


@post(
    "/collections/{name:str}/search/diagnose",
    guards=[requires("search")],
    responses=SEARCHING,
    status_code=200,
    summary="Diagnose a search",
    tags=["search"],
)
async def diagnose_search(
    data: JSONBody[DiagnoseRequest], services: CurrentServices, collection: CurrentCollection
) -> Diagnosis:
    """Say why a document or record is in the answer to a search, or what kept it out.

    Runs the search and its legs several times: meant for people, not for every query.
    """
    async with services.gate.place(collection.team_id):
        return await diagnose(services.search, collection, data)
