"""Administrative actions are written down with what they do: who, what, when, and no secret."""

import asyncpg
import httpx
from support.api import new_collection, new_key, problem

from service.db.audit_log import expire_entries
from service.db.pool import Database

SECRETS = ("provider-secret", "a-given-collection-key")


async def everything(client: httpx.AsyncClient) -> dict[str, str]:
    """Do one of each; the headers of the key that did the last ones."""
    await client.post("/v1/teams", json={"name": "other"})
    await client.put("/v1/flags/hybrid_search", json={"percentage": 50})
    await new_collection(client, "docs", collection_key=SECRETS[1])
    key = await new_key(client, "admin")
    changed = await client.patch("/v1/collections/docs", json={"search": {"mode": "text"}})
    assert changed.status_code == 200
    await client.delete("/v1/collections/docs", headers=key)
    provider = {"name": "mine", "kind": "local"}
    made = await client.post("/v1/providers", json=provider, headers=key)
    await client.delete(f"/v1/providers/{made.json()['id']}", headers=key)
    spare = (await client.post("/v1/keys", json={"name": "spare", "scopes": ["search"]})).json()
    rotated = (await client.post(f"/v1/keys/{spare['id']}/rotate")).json()
    await client.delete(f"/v1/keys/{rotated['id']}")
    return key


async def test_every_action_is_there_with_who_did_it(client: httpx.AsyncClient) -> None:
    key = await everything(client)
    page = (await client.get("/v1/audit")).json()
    assert page["next_cursor"] is None
    done = [(one["action"], one["actor"]) for one in reversed(page["entries"])]
    assert done == [
        ("team.create", "root"),
        ("flag.set", "root"),
        ("collection.create", "root"),
        ("key.create", "root"),
        ("collection.change", "root"),
        ("collection.delete", "key"),
        ("provider.create", "key"),
        ("provider.delete", "key"),
        ("key.create", "root"),
        ("key.rotate", "root"),
        ("key.revoke", "root"),
    ]
    keys = {one["key_id"] for one in page["entries"] if one["actor"] == "key"}
    assert len(keys) == 1
    changed = next(one for one in page["entries"] if one["action"] == "collection.change")
    assert (changed["target"], changed["details"]["search"]) == ("docs", {"mode": "text"})
    by_admin = (await client.get("/v1/audit", headers=key)).json()["entries"]
    assert [one for one in page["entries"] if one in by_admin] == by_admin
    assert {one["action"] for one in by_admin}.isdisjoint({"team.create", "flag.set"})


async def test_it_holds_no_key(client: httpx.AsyncClient) -> None:
    key = await everything(client)
    said = (await client.get("/v1/audit")).text
    assert not any(secret in said for secret in (*SECRETS, key["X-API-Key"]))


async def test_a_team_sees_its_own_only(client: httpx.AsyncClient) -> None:
    await everything(client)
    await new_key(client, "search", team="other")
    seen = (await client.get("/v1/audit", headers={"X-Team": "other"})).json()["entries"]
    actions = [one["action"] for one in seen]
    assert actions == ["key.create", "flag.set", "team.create"]


async def test_pages_join_without_gap_or_overlap(client: httpx.AsyncClient) -> None:
    await everything(client)
    whole = (await client.get("/v1/audit")).json()["entries"]
    paged, cursor = [], {}
    while True:
        page = (await client.get("/v1/audit", params={"limit": 4, **cursor})).json()
        paged += page["entries"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert paged == whole


async def test_what_failed_leaves_no_entry(client: httpx.AsyncClient) -> None:
    await new_collection(client, "docs")
    body = {"name": "docs", "embedding": {"provider": "none"}}
    problem(await client.post("/v1/collections", json=body), 409)
    problem(await client.delete("/v1/keys/12345"), 404)
    (entry,) = (await client.get("/v1/audit")).json()["entries"]
    assert entry["action"] == "collection.create"


async def test_entries_end_after_their_days(
    client: httpx.AsyncClient, database: Database, dsn: str
) -> None:
    await new_collection(client, "old")
    connection = await asyncpg.connect(dsn)
    await connection.execute("UPDATE braid.audit_log SET at = now() - interval '31 days'")
    await connection.close()
    await new_collection(client, "fresh")
    async with database.administer() as owner:
        await expire_entries(owner, 30)
    (entry,) = (await client.get("/v1/audit")).json()["entries"]
    assert entry["target"] == "fresh"
