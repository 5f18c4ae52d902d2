"""Providers: the services that a team uses, and its keys for them. A key is never shown again."""

import time
from typing import Annotated

import msgspec
from litestar import delete, get, post
from litestar.params import JSONBody
from msgspec import Meta
from pydantic import SecretStr

from service.api.access import CurrentPrincipal, requires
from service.api.fields import Limit, ModelName, Name, Offset, RowId, Secret
from service.api.problems import CREATING, EVERYWHERE, WITH_BODY
from service.api.services import CurrentServices, Services
from service.db import credentials
from service.db.audit_log import note
from service.db.credentials import NewCredential, StoredCredential
from service.errors import ConflictError, InvalidRequestError, ProviderError
from service.models import ProviderKind
from service.providers.addresses import MAX_CHARACTERS, is_allowed, parse_address
from service.providers.checking import CHECK_SECONDS, check_account
from service.providers.embedders import BUNDLED, NO_PROVIDER
from service.providers.outbound import OPERATORS_LIST

RESERVED = (BUNDLED, NO_PROVIDER)


class ProviderRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new provider; collections name it in `embedding.provider` and `rerank.provider`."""

    name: Name
    kind: ProviderKind
    api_key: Secret | None = None
    base_url: Annotated[str, Meta(min_length=1, max_length=MAX_CHARACTERS)] | None = None
    """Another address than the kind's own; the operator has to allow it."""


class ProviderList(msgspec.Struct, frozen=True):
    """Providers, the oldest first."""

    providers: list[StoredCredential]
    total: int


class CheckRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to check beside the key."""

    model: ModelName | None = None


class CheckResult(msgspec.Struct, frozen=True):
    """Whether a test call worked, why not, and how long it took."""

    ok: bool
    reason: str | None
    ms: float


@post(
    "/providers",
    guards=[requires("admin", whole_team=True)],
    responses=CREATING,
    status_code=201,
    summary="Register a provider",
    tags=["providers"],
)
async def create_provider(
    data: JSONBody[ProviderRequest], services: CurrentServices, principal: CurrentPrincipal
) -> StoredCredential:
    """Register a service; its key is stored sealed and never shown."""
    new = NewCredential(
        name=data.name,
        kind=data.kind,
        base_url=_base_url(data, services),
        secret=_secret(data, services),
    )
    if data.name in RESERVED:
        raise InvalidRequestError.at("/name", f"must not be {' or '.join(RESERVED)}")
    async with services.database.administer() as connection:
        stored = await credentials.insert_credential(
            connection, principal.team_id, new, services.providers.sealer
        )
        await note(
            connection,
            principal,
            "provider.create",
            stored.id,
            name=stored.name,
            kind=stored.kind,
            base_url=stored.base_url,
        )
        return stored


@get(
    "/providers",
    guards=[requires("admin", whole_team=True)],
    responses=EVERYWHERE,
    summary="List providers",
    tags=["providers"],
)
async def list_providers(
    services: CurrentServices, principal: CurrentPrincipal, limit: Limit = 100, offset: Offset = 0
) -> ProviderList:
    """List the providers of the team, the oldest first; `has_key` tells whether there is a key."""
    async with services.database.administer() as connection:
        found = await credentials.list_credentials(
            connection, principal.team_id, limit=limit, offset=offset
        )
    return ProviderList(*found)


@delete(
    "/providers/{provider_id:str}",
    guards=[requires("admin", whole_team=True)],
    responses=EVERYWHERE,
    summary="Delete a provider",
    tags=["providers"],
)
async def delete_provider(
    provider_id: RowId, services: CurrentServices, principal: CurrentPrincipal
) -> None:
    """Delete a provider with its key.

    Collections that name it go on without: searches degrade, and indexing waits for a provider of
    the same name.
    """
    async with services.database.administer() as connection:
        await credentials.delete_credential(connection, principal.team_id, provider_id)
        await note(connection, principal, "provider.delete", provider_id)
    services.providers.credentials.forget()


@post(
    "/providers/{provider_id:str}/check",
    guards=[requires("admin", whole_team=True)],
    responses=WITH_BODY,
    status_code=200,
    summary="Check a provider",
    tags=["providers"],
)
async def check_provider(
    provider_id: RowId,
    services: CurrentServices,
    principal: CurrentPrincipal,
    data: JSONBody[CheckRequest | None] = None,
) -> CheckResult:
    """Make a test call: the key works, and the model if one is named."""
    started = time.perf_counter()
    reason = None
    try:
        async with services.database.administer() as connection:
            credential = await credentials.open_credential(
                connection, principal.team_id, provider_id, services.providers.sealer
            )
        account = services.providers.outbound.account(credential, principal.team_id)
        await check_account(account, data.model if data else None)
    except ProviderError as error:
        reason = str(error)
    except TimeoutError:
        reason = f"the provider did not answer in {CHECK_SECONDS:.0f} s"
    return CheckResult(reason is None, reason, round((time.perf_counter() - started) * 1000, 1))


def _base_url(data: ProviderRequest, services: Services) -> str | None:
    if data.base_url is None:
        return None
    if data.kind == BUNDLED:
        raise InvalidRequestError.at("/base_url", "has no meaning for this kind")
    try:
        address = parse_address(data.base_url)
    except ValueError as error:
        raise InvalidRequestError.at("/base_url", str(error)) from error
    if not is_allowed(address, services.providers.outbound.allowed):
        raise InvalidRequestError.at("/base_url", f"is not in {OPERATORS_LIST}")
    return address.url


def _secret(data: ProviderRequest, services: Services) -> SecretStr | None:
    if data.api_key is None:
        if data.kind != BUNDLED and data.base_url is None:
            raise InvalidRequestError.at("/api_key", "is required for this kind")
        return None
    if data.kind == BUNDLED:
        raise InvalidRequestError.at("/api_key", "has no meaning for this kind")
    if not services.providers.sealer.ready:
        raise ConflictError("keys cannot be stored: the operator has not set BRAID_SECRET_KEY")
    return SecretStr(data.api_key)
