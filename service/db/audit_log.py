"""Who administered what, and when: written in the transaction of the change, without secrets."""

from datetime import datetime
from typing import Any, Literal

import msgspec

from service.db.pool import Connection
from service.models import Principal

Action = Literal[
    "collection.create",
    "collection.change",
    "collection.delete",
    "flag.set",
    "key.create",
    "key.revoke",
    "key.rotate",
    "provider.create",
    "provider.delete",
    "team.create",
]
OF_THE_SERVICE: frozenset[Action] = frozenset(("flag.set", "team.create"))
"""These belong to no team: only the root key sees them."""

INSERT = """
INSERT INTO braid.audit_log (team_id, actor, key_id, action, target, details)
VALUES ($1, $2, $3, $4, $5, $6::jsonb)
"""
LIST = """
SELECT id, at, actor, key_id, action, target, details FROM braid.audit_log
WHERE (team_id = $1 OR ($2 AND team_id IS NULL)) AND id < $3 ORDER BY id DESC LIMIT $4
"""
EXPIRE = "DELETE FROM braid.audit_log WHERE at < now() - make_interval(days => $1)"


class AuditEntry(msgspec.Struct, frozen=True):
    """One change: by the root key or by the key `key_id`, to what, and how."""

    id: int
    at: datetime
    actor: Literal["root", "key"]
    key_id: int | None
    action: Action
    target: str
    details: dict[str, Any]


async def note(
    connection: Connection,
    principal: Principal,
    action: Action,
    target: object,
    *,
    team_id: int | None = None,
    **details: object,
) -> None:
    """Write an action down beside what it does; `team_id` is another one than the asker's."""
    team = None if action in OF_THE_SERVICE else team_id or principal.team_id
    actor = "root" if principal.root else "key"
    said = msgspec.json.encode(details).decode()
    await connection.execute(INSERT, team, actor, principal.key_id, action, str(target), said)


async def list_entries(
    connection: Connection, principal: Principal, *, before: int, limit: int
) -> list[AuditEntry]:
    """What was done in a team, the newest first; the root key also sees what belongs to none."""
    rows = await connection.fetch(LIST, principal.team_id, principal.root, before, limit)
    return [
        AuditEntry(**{**dict(row), "details": msgspec.json.decode(row["details"])}) for row in rows
    ]


async def expire_entries(connection: Connection, days: int) -> None:
    """Delete what is older."""
    await connection.execute(EXPIRE, days)
