"""API keys and the one statement that answers who asks, what for, and where."""

import math
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from service.db.catalog import COLLECTION_COLUMNS, COLLECTION_TABLES, as_collection
from service.db.pool import Connection, Database
from service.errors import ConflictError, NotFoundError, UnavailableError
from service.models import Collection, KeyScope, Principal

ALL_SCOPES: frozenset[KeyScope] = frozenset(("search", "index", "admin"))
UNUSED_FOR = "interval '1 minute'"

# A key that was superseded is to be revoked later: `revoked_at` may lie in the future.
END_OF_KEY = "least(k.expires_at, k.revoked_at)"
IN_FORCE = f"coalesce({END_OF_KEY} > now(), true)"

# Looking a key up by its hash leaks no usable timing: what an attacker varies is hashed first,
# so how far the index comparison gets says nothing about the 256 random bits of a key.
KEY_ACCESS = f"""
SELECT k.id AS key_id, k.team_id, t.name AS team, k.scopes, k.collection_ids,
       coalesce(k.last_used_at < now() - {UNUSED_FOR}, true) AS unused,
       coalesce(extract(epoch FROM {END_OF_KEY} - now()), 'infinity')::float8 AS seconds_left,
       {COLLECTION_COLUMNS}
FROM braid.api_keys k JOIN braid.teams t ON t.id = k.team_id
LEFT JOIN ({COLLECTION_TABLES}) ON c.team_id = k.team_id AND c.name = $2
    AND (k.collection_ids IS NULL OR c.id = ANY (k.collection_ids))
WHERE k.key_hash = $1 AND {IN_FORCE}
"""

ROOT_ACCESS = f"""
SELECT t.id AS team_id, t.name AS team, {COLLECTION_COLUMNS}
FROM braid.teams t LEFT JOIN ({COLLECTION_TABLES}) ON c.team_id = t.id AND c.name = $2
WHERE t.name = $1
"""

# A row that another request is stamping right now is skipped, so that no request waits.
TOUCH_KEY = f"""
UPDATE braid.api_keys SET last_used_at = now() WHERE id = (
    SELECT id FROM braid.api_keys
    WHERE id = $1 AND coalesce(last_used_at < now() - {UNUSED_FOR}, true)
    FOR UPDATE SKIP LOCKED)
"""

KEY_COLUMNS = f"""
k.id, k.name, k.scopes, {END_OF_KEY} AS expires_at, k.created_at, k.last_used_at,
CASE WHEN k.collection_ids IS NOT NULL THEN ARRAY(
    SELECT c.name FROM braid.collections c WHERE c.id = ANY (k.collection_ids) ORDER BY c.name)
END AS collections
"""

INSERT_KEY = f"""
INSERT INTO braid.api_keys AS k (team_id, name, key_hash, scopes, collection_ids, expires_at)
VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (key_hash) DO NOTHING RETURNING {KEY_COLUMNS}
"""

LIST_KEYS = f"""
SELECT {KEY_COLUMNS} FROM braid.api_keys k
WHERE k.team_id = $1 AND {IN_FORCE} ORDER BY k.id LIMIT $2 OFFSET $3
"""
COUNT_KEYS = f"SELECT count(*) FROM braid.api_keys k WHERE k.team_id = $1 AND {IN_FORCE}"

REVOKE_KEY = """
UPDATE braid.api_keys SET revoked_at = now()
WHERE id = $1 AND team_id = $2 AND coalesce(revoked_at > now(), true) RETURNING id
"""

HOLD_KEY = f"""
SELECT k.revoked_at IS NOT NULL AS superseded FROM braid.api_keys k
WHERE k.id = $1 AND k.team_id = $2 AND {IN_FORCE} FOR UPDATE
"""

# The old key ends after the overlap (or earlier, if it was to), the new one lives as long as
# the old one was meant to.
SUPERSEDE_KEY = f"""
UPDATE braid.api_keys k SET revoked_at = now() + make_interval(secs => $2) WHERE k.id = $1
RETURNING k.name, k.scopes, k.collection_ids, {END_OF_KEY} AS old_expires_at,
          now() + (k.expires_at - k.created_at) AS new_expires_at
"""

# Deleted, not revoked: whoever makes the collection again may choose the same key for it.
DELETE_KEYS_OF_COLLECTION = """
DELETE FROM braid.api_keys WHERE team_id = $1 AND collection_ids = ARRAY[$2::bigint]
"""

FORGET_COLLECTION = """
UPDATE braid.api_keys SET collection_ids = array_remove(collection_ids, $2)
WHERE team_id = $1 AND $2 = ANY (collection_ids)
"""


class Access(msgspec.Struct, frozen=True):
    """Who asks, and the collection that the route names if they may see it."""

    principal: Principal
    team: str
    collection: Collection | None
    unused_key: int | None = None
    """Id of the key whose last use was never written down, or long ago."""
    seconds_left: float = math.inf
    """Until the key ends."""


class StoredKey(msgspec.Struct, frozen=True):
    """A key as it can be shown: all but the key."""

    id: int
    name: str
    scopes: list[KeyScope]
    collections: list[str] | None
    expires_at: datetime | None
    created_at: datetime
    last_used_at: datetime | None


class NewKey(msgspec.Struct, frozen=True):
    """What is written down of a key."""

    name: str
    hash: bytes
    scopes: list[KeyScope]
    collection_ids: list[int] | None = None
    expires_at: datetime | None = None


async def find_access(database: Database, key_hash: bytes, collection: str | None) -> Access | None:
    """Who holds the key, and the named collection; None for a key that is not in force."""
    row = await database.fetch_row(KEY_ACCESS, key_hash, collection)
    if row is None:
        return None
    limited = row["collection_ids"]
    principal = Principal(
        team_id=row["team_id"],
        scopes=frozenset(row["scopes"]),
        collection_ids=None if limited is None else frozenset(limited),
        key_id=row["key_id"],
    )
    unused = row["key_id"] if row["unused"] else None
    return Access(principal, row["team"], as_collection(row), unused, row["seconds_left"])


async def find_root_access(database: Database, team: str, collection: str | None) -> Access | None:
    """The root key acting for a team; None for an unknown team."""
    row = await database.fetch_row(ROOT_ACCESS, team, collection)
    if row is None:
        return None
    principal = Principal(team_id=row["team_id"], scopes=ALL_SCOPES, root=True)
    return Access(principal, row["team"], as_collection(row))


async def touch_key(database: Database, key_id: int) -> bool:
    """Write down that the key was used, at most once a minute; False when that failed."""
    try:
        await database.fetch_row(TOUCH_KEY, key_id)
    except (UnavailableError, asyncpg.PostgresError):
        return False
    return True


async def insert_key(connection: Connection, team_id: int, key: NewKey) -> StoredKey:
    """Add a key; raises `ConflictError` when the same key exists."""
    row = await connection.fetchrow(
        INSERT_KEY, team_id, key.name, key.hash, key.scopes, key.collection_ids, key.expires_at
    )
    if row is None:
        raise ConflictError("the key cannot be used, choose another")
    return _as_key(row)


async def list_keys(
    connection: Connection, team_id: int, *, limit: int, offset: int
) -> tuple[list[StoredKey], int]:
    """Keys of a team that are in force, the oldest first, and how many there are."""
    rows = await connection.fetch(LIST_KEYS, team_id, limit, offset)
    return [_as_key(row) for row in rows], await connection.fetchval(COUNT_KEYS, team_id)


async def revoke_key(connection: Connection, team_id: int, key_id: int) -> None:
    """End a key at once; raises `NotFoundError`."""
    if await connection.fetchval(REVOKE_KEY, key_id, team_id) is None:
        raise NotFoundError("unknown key")


async def rotate_key(
    connection: Connection, team_id: int, key_id: int, *, new_hash: bytes, overlap_s: int
) -> tuple[StoredKey, datetime]:
    """Replace a key by a new one with the same rights; the old one works until the time given.

    Raises `NotFoundError`, and `ConflictError` for a key that another one replaces already.
    """
    held = await connection.fetchrow(HOLD_KEY, key_id, team_id)
    if held is None:
        raise NotFoundError("unknown key")
    if held["superseded"]:
        raise ConflictError("the key is already rotated: rotate the one that replaces it")
    old = await connection.fetchrow(SUPERSEDE_KEY, key_id, float(overlap_s))
    assert old is not None
    new = NewKey(
        name=old["name"],
        hash=new_hash,
        scopes=old["scopes"],
        collection_ids=old["collection_ids"],
        expires_at=old["new_expires_at"],
    )
    return await insert_key(connection, team_id, new), old["old_expires_at"]


async def forget_collection(connection: Connection, team_id: int, collection_id: int) -> None:
    """Take a collection from the keys limited to it; a key that was for it alone is deleted."""
    await connection.execute(DELETE_KEYS_OF_COLLECTION, team_id, collection_id)
    await connection.execute(FORGET_COLLECTION, team_id, collection_id)


def _as_key(row: asyncpg.Record) -> StoredKey:
    fields: dict[str, Any] = {name: row[name] for name in StoredKey.__struct_fields__}
    return StoredKey(**fields)
