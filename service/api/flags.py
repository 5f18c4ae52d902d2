"""Feature flags, changed at run time in all processes at once. Only the root key sees them."""

from typing import Annotated, get_args

import msgspec
from litestar import get, put
from litestar.params import JSONBody, PathParameter
from msgspec import Meta

from service.api.access import CurrentPrincipal, requires_root
from service.api.fields import Name
from service.api.problems import EVERYWHERE, WITH_BODY
from service.api.services import CurrentServices
from service.db import flags
from service.db.audit_log import note
from service.db.flags import Flag
from service.errors import InvalidRequestError, NotFoundError
from service.models import FlagName

MAX_TEAMS = 10_000
FLAGS: tuple[FlagName, ...] = get_args(FlagName)


class FlagRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the feature is on.

    A team named in `teams` has what it says there. For all others it is on if `default` is true
    and they are among `percentage` of the teams: always the same ones, by a hash of flag and team.
    """

    default: bool = True
    percentage: Annotated[int, Meta(ge=0, le=100)] = 100
    teams: Annotated[dict[Name, bool], Meta(max_length=MAX_TEAMS)] = msgspec.field(
        default_factory=dict
    )


class FlagList(msgspec.Struct, frozen=True):
    """All flags, by name."""

    flags: list[Flag]


@put(
    "/flags/{name:str}",
    guards=[requires_root],
    responses=WITH_BODY,
    summary="Set a flag",
    tags=["flags"],
)
async def put_flag(
    data: JSONBody[FlagRequest],
    services: CurrentServices,
    principal: CurrentPrincipal,
    name: Annotated[str, PathParameter(description="name of the flag")],
) -> Flag:
    """Set a flag as a whole: what the body leaves out has its default.

    Every process obeys within two seconds.
    """
    known = next((one for one in FLAGS if one == name), None)
    if known is None:
        raise NotFoundError("unknown flag")
    flag = Flag(known, data.default, data.percentage, data.teams)
    async with services.database.administer() as connection:
        unknown = await flags.unknown_teams(connection, list(data.teams))
        if unknown:
            raise InvalidRequestError.at(f"/teams/{min(unknown)}", "unknown team")
        await flags.put_flag(connection, flag)
        await note(
            connection,
            principal,
            "flag.set",
            known,
            default=data.default,
            percentage=data.percentage,
            teams=data.teams,
        )
    await services.flags.refresh()
    return flag


@get("/flags", guards=[requires_root], responses=EVERYWHERE, summary="List flags", tags=["flags"])
async def list_flags(services: CurrentServices) -> FlagList:
    """List all flags, by name."""
    async with services.database.administer() as connection:
        return FlagList(await flags.list_flags(connection))
