"""Credentials of providers: rows whose secrets are sealed for their team and row."""

from datetime import datetime

import asyncpg
import msgspec
from pydantic import SecretStr

from service.db.changes import Changes
from service.db.pool import Connection, Database
from service.errors import ConflictError, NotFoundError, ProviderError
from service.instruments import CACHE_REQUESTS
from service.models import Credential, ProviderKind
from service.sealing import Sealer, SealError
from service.telemetry import log

COLUMNS = "id, team_id, name, kind, base_url, sealed_secret, created_at"

INSERT = f"""
INSERT INTO braid.provider_credentials (team_id, name, kind, base_url) VALUES ($1, $2, $3, $4)
ON CONFLICT (team_id, name) DO NOTHING RETURNING {COLUMNS}
"""
STORE_SEALED = "UPDATE braid.provider_credentials SET sealed_secret = $2 WHERE id = $1"
LIST = f"""
SELECT {COLUMNS} FROM braid.provider_credentials WHERE team_id = $1 ORDER BY id LIMIT $2 OFFSET $3
"""
COUNT = "SELECT count(*) FROM braid.provider_credentials WHERE team_id = $1"
BY_NAME = f"SELECT {COLUMNS} FROM braid.provider_credentials WHERE team_id = $1 AND name = $2"
BY_ID = f"SELECT {COLUMNS} FROM braid.provider_credentials WHERE team_id = $1 AND id = $2"
DELETE = "DELETE FROM braid.provider_credentials WHERE team_id = $1 AND id = $2 RETURNING id"
LOCK_SEALED = f"""
SELECT {COLUMNS} FROM braid.provider_credentials WHERE sealed_secret IS NOT NULL ORDER BY id
FOR UPDATE
"""
MAX_REMEMBERED = 10_000


class StoredCredential(msgspec.Struct, frozen=True):
    """A credential as it can be shown: all but the secret."""

    id: int
    name: str
    kind: ProviderKind
    base_url: str | None
    has_key: bool
    created_at: datetime


class NewCredential(msgspec.Struct, frozen=True):
    """A checked request for a credential."""

    name: str
    kind: ProviderKind
    base_url: str | None
    secret: SecretStr | None


class Credentials:
    """Opens the credentials of a team; remembered while the process hears of changes."""

    def __init__(self, database: Database, sealer: Sealer, changes: Changes | None = None) -> None:
        self._database = database
        self._sealer = sealer
        self._changes = changes
        self._known: dict[tuple[int, str], Credential] = {}
        if changes is not None:
            changes.subscribe(self.forget)

    def forget(self) -> None:
        """Look everything up again: something may have changed."""
        self._known = {}

    async def find(self, team_id: int, name: str) -> Credential | None:
        """The team's credential of this name; raises `ProviderError` when it cannot be opened."""
        remembered = self._known
        known = remembered.get((team_id, name))
        if known is not None and self._changes is not None and self._changes.current:
            CACHE_REQUESTS.add(1, "credentials", "hit")
            return known
        CACHE_REQUESTS.add(1, "credentials", "miss")
        row = await self._database.fetch_row(BY_NAME, team_id, name)
        credential = open_row(row, self._sealer) if row else None
        if credential is not None:
            if len(remembered) >= MAX_REMEMBERED:
                remembered.clear()
            remembered[team_id, name] = credential
        return credential


async def insert_credential(
    connection: Connection, team_id: int, new: NewCredential, sealer: Sealer
) -> StoredCredential:
    """Add a credential; raises `ConflictError`."""
    row = await connection.fetchrow(INSERT, team_id, new.name, new.kind, new.base_url)
    if row is None:
        raise ConflictError("a provider of this name exists")
    if new.secret is not None:
        sealed = sealer.seal(new.secret.get_secret_value(), place_of(row))
        await connection.execute(STORE_SEALED, row["id"], sealed)
    return _shown(row, has_key=new.secret is not None)


async def list_credentials(
    connection: Connection, team_id: int, *, limit: int, offset: int
) -> tuple[list[StoredCredential], int]:
    """Credentials of a team, the oldest first, and how many there are."""
    rows = await connection.fetch(LIST, team_id, limit, offset)
    shown = [_shown(row, has_key=row["sealed_secret"] is not None) for row in rows]
    return shown, await connection.fetchval(COUNT, team_id)


async def open_credential(
    connection: Connection, team_id: int, credential_id: int, sealer: Sealer
) -> Credential:
    """One credential, opened; raises `NotFoundError` or `ProviderError`."""
    row = await connection.fetchrow(BY_ID, team_id, credential_id)
    if row is None:
        raise NotFoundError("unknown provider")
    return open_row(row, sealer)


async def delete_credential(connection: Connection, team_id: int, credential_id: int) -> None:
    """Delete a credential; raises `NotFoundError`."""
    if await connection.fetchval(DELETE, team_id, credential_id) is None:
        raise NotFoundError("unknown provider")


async def reseal(connection: Connection, sealer: Sealer) -> tuple[int, list[int]]:
    """Seal every secret with the newest key; how many were, and ids of those that cannot be."""
    resealed, closed = 0, []
    for row in await connection.fetch(LOCK_SEALED):
        if sealer.is_newest(row["sealed_secret"]):
            continue
        try:
            secret = sealer.open(row["sealed_secret"], place_of(row))
        except SealError:
            closed.append(row["id"])
            continue
        await connection.execute(STORE_SEALED, row["id"], sealer.seal(secret, place_of(row)))
        resealed += 1
    return resealed, closed


def open_row(row: asyncpg.Record, sealer: Sealer) -> Credential:
    """The credential in a row; raises `ProviderError`."""
    secret = None
    if row["sealed_secret"] is not None:
        try:
            secret = SecretStr(sealer.open(row["sealed_secret"], place_of(row)))
        except SealError as error:
            log.error("provider secret not opened", credential=row["id"], reason=str(error))
            raise ProviderError("the provider's key cannot be opened", transient=True) from error
    return Credential(
        id=row["id"],
        team_id=row["team_id"],
        name=row["name"],
        kind=row["kind"],
        base_url=row["base_url"],
        secret=secret,
    )


def place_of(row: asyncpg.Record) -> str:
    """What a secret is bound to: moved elsewhere, or sent elsewhere, it does not open."""
    return f"{row['team_id']}/{row['id']}/{row['kind']}/{row['base_url'] or ''}"


def _shown(row: asyncpg.Record, *, has_key: bool) -> StoredCredential:
    return StoredCredential(
        row["id"], row["name"], row["kind"], row["base_url"], has_key, row["created_at"]
    )
