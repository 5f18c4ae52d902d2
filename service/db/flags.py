"""Feature flags: rows that change at run time, and each process's copy of them in memory."""

import asyncio
import contextlib
import hashlib
from collections.abc import Mapping, Sequence

import asyncpg
import msgspec

from service.db.changes import Changes
from service.db.pool import Connection, Database
from service.errors import UnavailableError
from service.models import FlagName
from service.telemetry import log

POLL_SECONDS = 0.5
"""How old the copy may become where no notice of a change comes."""
PAUSE_SECONDS = 0.1
"""Between two readings: a burst of notices is one change."""

LIST = 'SELECT name, enabled AS "default", percentage, teams FROM braid.flags ORDER BY name'
PUT = """
UPDATE braid.flags SET enabled = $2, percentage = $3, teams = $4::jsonb WHERE name = $1
"""
UNKNOWN_TEAMS = """
SELECT name FROM unnest($1::text[]) name WHERE name NOT IN (SELECT t.name FROM braid.teams t)
"""
READ = """
SELECT f.name, f.enabled, f.percentage, (
    SELECT coalesce(jsonb_object_agg(t.id, named.value), '{}')
    FROM jsonb_each(f.teams) named JOIN braid.teams t ON t.name = named.key) AS teams
FROM braid.flags f
"""


class Flag(msgspec.Struct, frozen=True):
    """Where a feature is on: for the teams named as they say, else by `default` and share."""

    name: FlagName
    default: bool
    percentage: int
    teams: dict[str, bool]


class _Rule(msgspec.Struct, frozen=True):
    enabled: bool
    percentage: int
    teams: Mapping[int, bool]


async def list_flags(connection: Connection) -> list[Flag]:
    """All flags, by name."""
    rows = await connection.fetch(LIST)
    return [
        Flag(row["name"], row["default"], row["percentage"], msgspec.json.decode(row["teams"]))
        for row in rows
    ]


async def put_flag(connection: Connection, flag: Flag) -> None:
    """Set a flag; every process hears of it."""
    teams = msgspec.json.encode(flag.teams).decode()
    await connection.execute(PUT, flag.name, flag.default, flag.percentage, teams)


async def unknown_teams(connection: Connection, names: Sequence[str]) -> set[str]:
    """Those of the names that no team has."""
    return {row["name"] for row in await connection.fetch(UNKNOWN_TEAMS, names)}


class Flags:
    """The flags in memory. Asking costs no query; a change is obeyed within two seconds."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes
        self._rules: dict[str, _Rule] = {}
        self._decided: dict[tuple[str, int], bool] = {}
        self._stale = asyncio.Event()
        self._reading = asyncio.Lock()
        changes.subscribe(self._stale.set)

    def on(self, name: FlagName, team_id: int) -> bool:
        """Whether the feature is on for a team; on before the flags were ever read."""
        known = self._decided.get((name, team_id))
        if known is None:
            known = self._decided[name, team_id] = self._decide(name, team_id)
        return known

    async def headers_allowed(self, team_id: int) -> bool:
        """Whether the chunks of a team may have headers."""
        return self.on("contextual_retrieval", team_id)

    async def refresh(self) -> None:
        """Read the flags anew; what was known stands when that fails."""
        async with self._reading:
            self._stale.clear()
            try:
                async with self._database.administer() as connection:
                    rows = await connection.fetch(READ)
            except (UnavailableError, asyncpg.PostgresError) as error:
                log.warning("flags not read", error=type(error).__name__)
                return
            self._rules = {row["name"]: _as_rule(row) for row in rows}
            self._decided = {}

    async def watch(self) -> None:
        """Keep the copy as the database has it, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._stale.wait()
            if self._stale.is_set() or not self._changes.current:
                await self.refresh()
            await asyncio.sleep(PAUSE_SECONDS)

    def _decide(self, name: FlagName, team_id: int) -> bool:
        rule = self._rules.get(name)
        if rule is None:
            return True
        named = rule.teams.get(team_id)
        if named is not None:
            return named
        return rule.enabled and place_of(name, team_id) < rule.percentage


def _as_rule(row: asyncpg.Record) -> _Rule:
    teams = msgspec.json.decode(row["teams"], type=dict[int, bool])
    return _Rule(row["enabled"], row["percentage"], teams)


def place_of(name: FlagName, team_id: int) -> float:
    """Where in 0..100 a team stands for a flag; the same in every process, for ever.

    A flag at p percent is on for the teams below p, so a larger share only adds teams.
    """
    digest = hashlib.sha256(f"{name}/{team_id}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64 * 100
