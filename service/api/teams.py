"""Teams: the tenants. Only the root key sees them."""

import msgspec
from litestar import get, post
from litestar.params import JSONBody

from service.api.access import CurrentPrincipal, requires_root
from service.api.fields import Limit, Name, Offset
from service.api.problems import CREATING, EVERYWHERE
from service.api.services import CurrentServices
from service.db import catalog
from service.db.audit_log import note
from service.db.catalog import Team


class TeamRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new team."""

    name: Name


class TeamList(msgspec.Struct, frozen=True):
    """Teams, the oldest first."""

    teams: list[Team]
    total: int


@post(
    "/teams",
    guards=[requires_root],
    responses=CREATING,
    status_code=201,
    summary="Create a team",
    tags=["teams"],
)
async def create_team(
    data: JSONBody[TeamRequest], services: CurrentServices, principal: CurrentPrincipal
) -> Team:
    """Create a team; the root key acts for it with the header `X-Team`."""
    async with services.database.administer() as connection:
        team = await catalog.insert_team(connection, data.name)
        await note(connection, principal, "team.create", data.name)
        return team


@get("/teams", guards=[requires_root], responses=EVERYWHERE, summary="List teams", tags=["teams"])
async def list_teams(services: CurrentServices, limit: Limit = 100, offset: Offset = 0) -> TeamList:
    """List all teams, the oldest first."""
    async with services.database.administer() as connection:
        return TeamList(*await catalog.list_teams(connection, limit=limit, offset=offset))
