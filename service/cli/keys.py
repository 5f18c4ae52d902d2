"""`braid keys`: make, list, revoke and rotate API keys."""

import asyncio
import json
from typing import Any

from rich.table import Table

from service.cli.client import Api, open_api
from service.cli.console import err, out, write
from service.cli.parser import Arguments

PAGE = 1000


def run(arguments: Arguments) -> int:
    """Run one action on keys."""
    action = {"create": _create, "list": _list, "revoke": _revoke, "rotate": _rotate}
    asyncio.run(action[arguments.action](arguments))
    return 0


async def _create(arguments: Arguments) -> None:
    body: dict[str, Any] = {"name": arguments.name, "scopes": arguments.scopes or ["search"]}
    if arguments.collections:
        body["collections"] = arguments.collections
    if arguments.expires:
        body["expires_at"] = arguments.expires.isoformat()
    async with open_api(arguments.team) as api:
        created = await api.post("/v1/keys", body)
    _show(created)


async def _rotate(arguments: Arguments) -> None:
    async with open_api(arguments.team) as api:
        created = await api.post(
            f"/v1/keys/{arguments.id}/rotate", {"overlap_s": arguments.overlap}
        )
    _show(created)
    err.print(f"key {arguments.id} works until {created['old_expires_at']}")


async def _revoke(arguments: Arguments) -> None:
    async with open_api(arguments.team) as api:
        await api.delete(f"/v1/keys/{arguments.id}")
    err.print(f"key {arguments.id} is revoked")


async def _list(arguments: Arguments) -> None:
    async with open_api(arguments.team) as api:
        keys = await _all_keys(api)
    if arguments.json:
        write(json.dumps(keys, indent=2, ensure_ascii=False))
        return
    table = Table("id", "name", "scopes", "collections", "expires", "last used", box=None)
    for key in keys:
        collections = key["collections"]
        table.add_row(
            str(key["id"]),
            key["name"],
            ", ".join(key["scopes"]),
            "all" if collections is None else ", ".join(collections),
            _minute(key["expires_at"]),
            _minute(key["last_used_at"]),
        )
    out.print(table)


async def _all_keys(api: Api) -> list[dict[str, Any]]:
    keys: list[dict[str, Any]] = []
    while True:
        page = await api.get(f"/v1/keys?limit={PAGE}&offset={len(keys)}")
        keys += page["keys"]
        if not page["keys"] or len(keys) >= page["total"]:
            return keys


def _show(created: dict[str, Any]) -> None:
    """The key alone on stdout, so that a script can take it."""
    write(created["key"])
    err.print(f"key {created['id']} ({', '.join(created['scopes'])}): it is not shown again")


def _minute(time: str | None) -> str:
    return time[:16].replace("T", " ") if time else "never"
