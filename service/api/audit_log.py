"""The log of administrative actions."""

from typing import Annotated

import msgspec
from litestar import get
from litestar.params import QueryParameter

from service.api.access import CurrentPrincipal, requires
from service.api.fields import MAX_ID, Limit
from service.api.problems import EVERYWHERE
from service.api.services import CurrentServices
from service.db.audit_log import AuditEntry, list_entries

Cursor = Annotated[int, QueryParameter(ge=1, le=MAX_ID, description="`next_cursor` of a page")]


class AuditPage(msgspec.Struct, frozen=True):
    """Actions, the newest first; `next_cursor` is null on the last page."""

    entries: list[AuditEntry]
    next_cursor: int | None


@get(
    "/audit",
    guards=[requires("admin", whole_team=True)],
    responses=EVERYWHERE,
    summary="List administrative actions",
    tags=["audit"],
)
async def list_audit(
    services: CurrentServices,
    principal: CurrentPrincipal,
    limit: Limit = 100,
    cursor: Cursor = MAX_ID,
) -> AuditPage:
    """What was done to the team's keys, providers and collections, by whom and when.

    The root key also sees new teams and changed flags.
    """
    async with services.database.administer() as connection:
        found = await list_entries(connection, principal, before=cursor, limit=limit + 1)
    shown = found[:limit]
    return AuditPage(shown, shown[-1].id if len(found) > limit else None)
