"""Who may do what: the key of a request, its scope, and the collection that its route names.

`search` searches and reads documents, `index` writes documents and reads jobs, `admin` manages
collections and keys. No scope implies another; any of them may see what collections it reaches.
The root key has them all and may also manage teams.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler

from service.api.fields import NAME_WORDS, PathName
from service.api.services import Services
from service.db.keys import ALL_SCOPES, Access, find_access, find_root_access, touch_key
from service.errors import (
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    UnauthorizedError,
    Violation,
)
from service.models import Collection, KeyScope, Principal
from service.security import hash_key, same_key
from service.telemetry import log

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
DEFAULT_TEAM = "default"
MAX_DOC_ID_CHARACTERS = 512
# Up to the id: /v1/collections/NAME/documents/ and no further, whatever the names are.
_BEFORE_DOC_ID = re.compile(
    rb"(?:(?:/|%2F)+(?:(?!/|%2F).)+){4}(?:/|%2F)", re.IGNORECASE | re.DOTALL
)

Connection: TypeAlias = ASGIConnection[Any, Any, Any, State]
CurrentPrincipal: TypeAlias = NamedDependency[Principal]
CurrentCollection: TypeAlias = NamedDependency[Collection]
Guard = Callable[[Connection, BaseRouteHandler], Awaitable[None]]


def requires(*scopes: KeyScope, whole_team: bool = False) -> Guard:
    """A guard: the key holds one of the scopes and reaches the collection of the route.

    With `whole_team` the key must not be limited to some collections.
    """

    async def guard(connection: Connection, _handler: BaseRouteHandler) -> None:
        services: Services = connection.app.state.services
        name = connection.path_params.get("name")
        possible = name if name and NAME.fullmatch(name) else None
        access = await _authenticate(services, connection, possible)
        services.rates.count(access.principal.team_id)
        if not access.principal.scopes & set(scopes):
            raise ForbiddenError(f"the key needs the scope {' or '.join(scopes)}")
        if whole_team and access.principal.collection_ids is not None:
            raise ForbiddenError("the key is limited to some collections")
        if name != possible:
            raise InvalidRequestError.at("/name", NAME_WORDS)
        if name is not None and access.collection is None:
            raise NotFoundError("unknown collection")
        connection.state.access = access
        _restore_doc_id(connection)

    return guard


any_scope = requires(*sorted(ALL_SCOPES))


async def requires_root(connection: Connection, _handler: BaseRouteHandler) -> None:
    """A guard: only the root key."""
    access = await _authenticate(connection.app.state.services, connection, None)
    if not access.principal.root:
        raise ForbiddenError("only the root key may manage teams")
    connection.state.access = access


async def provide_principal(request: Request[Any, Any, State]) -> Principal:
    """Who asks, for handlers."""
    access: Access = request.state.access
    return access.principal


async def provide_collection(
    request: Request[Any, Any, State],
    name: PathName,  # noqa: ARG001 - so that the path's parameter is documented
) -> Collection:
    """The collection that the route names, for handlers."""
    return collection_of(request)


def collection_of(request: Request[Any, Any, State]) -> Collection:
    """The collection that the route names; the guard found it."""
    access: Access = request.state.access
    assert access.collection is not None
    return access.collection


async def reach(connection: Connection, names: Sequence[str]) -> list[Collection]:
    """Collections that a body names; raises `NotFoundError` for one that the key cannot reach."""
    services: Services = connection.app.state.services
    found = []
    for at, name in enumerate(names):
        access = await _authenticate(services, connection, name)
        if access.collection is None:
            pointer, detail = f"/collections/{at}", "unknown collection"
            raise NotFoundError(f"{pointer}: {detail}", errors=(Violation(pointer, detail),))
        found.append(access.collection)
    return found


async def _authenticate(services: Services, connection: Connection, name: str | None) -> Access:
    key = _given_key(connection)
    team = connection.headers.get("x-team")
    root = services.settings.root_api_key
    if root is not None and same_key(key, root.get_secret_value()):
        access = await _root_access(services, team or DEFAULT_TEAM, name)
    else:
        access = await _key_access(services, hash_key(key), name)
    if team is not None and access.team != team:
        raise NotFoundError("unknown team")
    return access


async def _root_access(services: Services, team: str, name: str | None) -> Access:
    if not NAME.fullmatch(team):
        raise NotFoundError("unknown team")
    access = await services.access.get(
        (team, name), lambda: find_root_access(services.database, team, name)
    )
    if access is None:
        raise NotFoundError("unknown team")
    return access


async def _key_access(services: Services, key_hash: bytes, name: str | None) -> Access:
    database = services.database
    access = await services.access.get(
        (key_hash, name), lambda: find_access(database, key_hash, name)
    )
    if access is None:
        raise UnauthorizedError("the key is unknown, revoked or expired")
    if access.unused_key is not None and not await touch_key(database, access.unused_key):
        log.warning("last use of a key not written down", key_id=access.unused_key)
    return access


def team_in_memory(services: Services, connection: Connection, name: str | None) -> int | None:
    """Team of the key, if memory says without a question; for a refusal, not for an answer."""
    try:
        key = _given_key(connection)
    except UnauthorizedError:
        return None
    root = services.settings.root_api_key
    if root is not None and same_key(key, root.get_secret_value()):
        known = services.access.peek((connection.headers.get("x-team", DEFAULT_TEAM), name))
    else:
        known = services.access.peek((hash_key(key), name))
    return None if known is None else known.principal.team_id


def _given_key(connection: Connection) -> str:
    if key := connection.headers.get("x-api-key"):
        return key
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    raise UnauthorizedError("send a key as X-API-Key or as Authorization: Bearer")


def _restore_doc_id(connection: Connection) -> None:
    """Put the exact `doc_id` in place: the router has decoded and merged its slashes."""
    if "doc_id" not in connection.path_params:
        return
    doc_id = connection.path_params["doc_id"].removeprefix("/")
    if raw := connection.scope.get("raw_path"):
        path = raw.partition(b"?")[0]
        before = _BEFORE_DOC_ID.match(path)
        try:
            doc_id = unquote_to_bytes(path[before.end() :] if before else b"").decode()
        except UnicodeDecodeError as error:
            raise InvalidRequestError.at("/doc_id", "must be UTF-8") from error
    connection.scope["path_params"] = {**connection.path_params, "doc_id": doc_id}
