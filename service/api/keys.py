"""API keys: make, list, revoke, rotate. A key is shown once, in the answer that makes it."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from litestar import delete, get, post
from litestar.params import JSONBody
from msgspec import Meta

from service.api.access import CurrentPrincipal, requires
from service.api.fields import Label, Limit, Name, Offset, RowId
from service.api.problems import CREATING, EVERYWHERE
from service.api.services import CurrentServices
from service.db import catalog, keys
from service.db.audit_log import note
from service.db.keys import NewKey, StoredKey
from service.db.pool import Connection
from service.errors import ForbiddenError, InvalidRequestError, NotFoundError
from service.models import KeyScope, Principal
from service.security import hash_key, new_key

MAX_OVERLAP_SECONDS = 30 * 24 * 3600
MAX_LIFETIME_DAYS = 36_500


class KeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new key; only the root key may name another `team`."""

    name: Label
    scopes: Annotated[list[KeyScope], Meta(min_length=1, max_length=3)]
    team: Name | None = None
    collections: Annotated[list[Name], Meta(min_length=1, max_length=100)] | None = None
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None


class RotationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the old key goes on working."""

    overlap_s: Annotated[int, Meta(ge=0, le=MAX_OVERLAP_SECONDS)] = 0


class KeyInfo(msgspec.Struct, frozen=True):
    """A key without the key; `collections` is null when it reaches all of them."""

    id: int
    name: str
    scopes: list[KeyScope]
    collections: list[str] | None
    expires_at: datetime | None
    created_at: datetime
    last_used_at: datetime | None


class CreatedKey(KeyInfo, frozen=True, kw_only=True):
    """A new key, with the key itself."""

    key: str


class RotatedKey(CreatedKey, frozen=True, kw_only=True):
    """The new key, and when the old one ends."""

    replaces: int
    old_expires_at: datetime


class KeyList(msgspec.Struct, frozen=True):
    """Keys in force, the oldest first."""

    keys: list[KeyInfo]
    total: int


@post(
    "/keys",
    guards=[requires("admin", whole_team=True)],
    responses=CREATING,
    status_code=201,
    summary="Create a key",
    tags=["keys"],
)
async def create_key(
    data: JSONBody[KeyRequest],
    services: CurrentServices,
    principal: CurrentPrincipal,
) -> CreatedKey:
    """Create a key with some scopes, optionally for some collections and until some time."""
    _check_end(data.expires_at)
    key = new_key()
    async with services.database.administer() as connection:
        team_id = await _team_of(connection, data, principal)
        new = NewKey(
            name=data.name,
            hash=hash_key(key),
            scopes=sorted(set(data.scopes)),
            collection_ids=await _collection_ids(connection, team_id, data.collections),
            expires_at=data.expires_at,
        )
        stored = await keys.insert_key(connection, team_id, new)
        await note(
            connection,
            principal,
            "key.create",
            stored.id,
            team_id=team_id,
            name=data.name,
            scopes=new.scopes,
            collections=data.collections,
            expires_at=data.expires_at,
        )
    return CreatedKey(**msgspec.structs.asdict(stored), key=key)


@get(
    "/keys",
    guards=[requires("admin", whole_team=True)],
    responses=EVERYWHERE,
    summary="List keys",
    tags=["keys"],
)
async def list_keys(
    services: CurrentServices,
    principal: CurrentPrincipal,
    limit: Limit = 100,
    offset: Offset = 0,
) -> KeyList:
    """List the keys of the team that are neither revoked nor expired, the oldest first."""
    async with services.database.administer() as connection:
        stored, total = await keys.list_keys(
            connection, principal.team_id, limit=limit, offset=offset
        )
    return KeyList([_info(key) for key in stored], total)


@delete(
    "/keys/{key_id:str}",
    guards=[requires("admin", whole_team=True)],
    responses=EVERYWHERE,
    summary="Revoke a key",
    tags=["keys"],
)
async def revoke_key(key_id: RowId, services: CurrentServices, principal: CurrentPrincipal) -> None:
    """Revoke a key at once."""
    async with services.database.administer() as connection:
        await keys.revoke_key(connection, principal.team_id, key_id)
        await note(connection, principal, "key.revoke", key_id)
    services.access.forget()


@post(
    "/keys/{key_id:str}/rotate",
    guards=[requires("admin", whole_team=True)],
    responses=CREATING,
    status_code=201,
    summary="Rotate a key",
    tags=["keys"],
)
async def rotate_key(
    key_id: RowId,
    services: CurrentServices,
    principal: CurrentPrincipal,
    data: JSONBody[RotationRequest | None] = None,
) -> RotatedKey:
    """Make a new key with the same rights and lifetime; the old one ends after `overlap_s`.

    A key is rotated once: 409 while the overlap lasts, 404 after it.
    """
    overlap_s = data.overlap_s if data else 0
    key = new_key()
    async with services.database.administer() as connection:
        stored, old_expires_at = await keys.rotate_key(
            connection, principal.team_id, key_id, new_hash=hash_key(key), overlap_s=overlap_s
        )
        await note(connection, principal, "key.rotate", key_id, new=stored.id, overlap_s=overlap_s)
    services.access.forget()
    return RotatedKey(
        **msgspec.structs.asdict(stored), key=key, replaces=key_id, old_expires_at=old_expires_at
    )


def _check_end(expires_at: datetime | None) -> None:
    if expires_at is None:
        return
    now = datetime.now(UTC)
    if expires_at <= now:
        raise InvalidRequestError.at("/expires_at", "must be in the future")
    if expires_at > now + timedelta(days=MAX_LIFETIME_DAYS):
        raise InvalidRequestError.at(
            "/expires_at", f"must be at most {MAX_LIFETIME_DAYS} days from now"
        )


async def _team_of(connection: Connection, data: KeyRequest, principal: Principal) -> int:
    if data.team is None:
        return principal.team_id
    if not principal.root:
        raise ForbiddenError("only the root key may name a team")
    team_id = await catalog.find_team(connection, data.team)
    if team_id is None:
        raise NotFoundError("unknown team")
    return team_id


async def _collection_ids(
    connection: Connection, team_id: int, names: list[str] | None
) -> list[int] | None:
    if names is None:
        return None
    found = await catalog.collection_ids(connection, team_id, names)
    for index, collection_id in enumerate(found):
        if collection_id is None:
            raise InvalidRequestError.at(f"/collections/{index}", "unknown collection")
    return sorted({one for one in found if one is not None})


def _info(stored: StoredKey) -> KeyInfo:
    return KeyInfo(**msgspec.structs.asdict(stored))
