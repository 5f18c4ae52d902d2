from datetime import UTC, datetime, timedelta

import asyncpg
import httpx
import pytest
from support.api import ROOT_KEY, new_collection, new_key, pointers, problem
from support.dump import dump


async def test_a_new_key_is_shown_once_and_stored_as_a_hash(
    client: httpx.AsyncClient, dsn: str
) -> None:
    created = (await client.post("/v1/keys", json={"name": "app", "scopes": ["search"]})).json()
    assert created["key"].startswith("braid_")
    assert len(created["key"]) >= 40
    assert created | {"key": "", "id": 0, "created_at": ""} == {
        "id": 0,
        "name": "app",
        "scopes": ["search"],
        "collections": None,
        "expires_at": None,
        "created_at": "",
        "last_used_at": None,
        "key": "",
    }
    listed = (await client.get("/v1/keys")).json()
    assert listed["total"] == 1
    assert listed["keys"] == [{k: v for k, v in created.items() if k != "key"}]
    connection = await asyncpg.connect(dsn)
    row = await connection.fetchval("SELECT api_keys::text FROM braid.api_keys")
    await connection.close()
    assert created["key"] not in row


async def test_a_key_works_until_it_is_revoked(client: httpx.AsyncClient) -> None:
    key = await new_key(client, "search")
    (listed,) = (await client.get("/v1/keys")).json()["keys"]
    assert (await client.get("/v1/collections", headers=key)).status_code == 200
    assert (await client.delete(f"/v1/keys/{listed['id']}")).status_code == 204
    problem(await client.get("/v1/collections", headers=key), 401)
    assert (await client.get("/v1/keys")).json() == {"keys": [], "total": 0}
    problem(await client.delete(f"/v1/keys/{listed['id']}"), 404)


async def test_a_key_ends_when_it_expires(client: httpx.AsyncClient, dsn: str) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    key = await new_key(client, "search", expires_at=later)
    assert (await client.get("/v1/collections", headers=key)).status_code == 200
    connection = await asyncpg.connect(dsn)
    await connection.execute("UPDATE braid.api_keys SET expires_at = now()")
    await connection.close()
    problem(await client.get("/v1/collections", headers=key), 401)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"scopes": []}, "/scopes"),
        ({"scopes": ["root"]}, "/scopes/0"),
        ({"scopes": ["search"] * 4}, "/scopes"),
        ({"name": ""}, "/name"),
        ({"name": "a\x00"}, "/name"),
        ({"name": "n" * 129}, "/name"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, "/expires_at"),
        ({"expires_at": "2100-01-01T00:00:00"}, "/expires_at"),
        ({"expires_at": "soon"}, "/expires_at"),
        ({"expires_at": "9999-12-31T23:59:59-12:00"}, "/expires_at"),
        ({"expires_at": "9999-12-31T23:59:59.999999Z"}, "/expires_at"),
        ({"expires_at": "0001-01-01T00:00:00+14:00"}, "/expires_at"),
        ({"collections": []}, "/collections"),
        ({"collections": ["docs", "none"]}, "/collections/1"),
        ({"collections": ["a\n"]}, "/collections/0"),
        ({"team": "a b"}, "/team"),
        ({"key": "mine"}, "/key"),
    ],
)
async def test_a_bad_key_request_names_the_field(
    client: httpx.AsyncClient, fields: dict[str, object], pointer: str
) -> None:
    await new_collection(client, "docs")
    body = {"name": "a", "scopes": ["search"], **fields}
    assert pointers(await client.post("/v1/keys", json=body)) == [pointer]


async def test_keys_of_another_team_are_out_of_reach(client: httpx.AsyncClient) -> None:
    await client.post("/v1/teams", json={"name": "other"})
    created = await client.post(
        "/v1/keys", json={"name": "a", "scopes": ["admin"], "team": "other"}
    )
    theirs = {"X-API-Key": created.json()["key"]}
    mine = await new_key(client, "admin")
    key_id = created.json()["id"]
    problem(await client.delete(f"/v1/keys/{key_id}", headers=mine), 404)
    problem(await client.post(f"/v1/keys/{key_id}/rotate", headers=mine), 404)
    assert (await client.get("/v1/keys", headers=theirs)).json()["total"] == 1
    body = {"name": "a", "scopes": ["search"], "team": "other"}
    known = await client.post("/v1/keys", json=body, headers=mine)
    unknown = await client.post("/v1/keys", json=body | {"team": "none"}, headers=mine)
    assert problem(known, 403) == problem(unknown, 403)
    problem(await client.post("/v1/keys", json=body | {"team": "none"}), 404)


async def test_rotation_at_once_ends_the_old_key(client: httpx.AsyncClient) -> None:
    await new_collection(client, "docs")
    old = await new_key(client, "search", "index", collections=["docs"])
    (before,) = (await client.get("/v1/keys")).json()["keys"]
    rotated = await client.post(f"/v1/keys/{before['id']}/rotate")
    assert rotated.status_code == 201
    new = rotated.json()
    assert new["replaces"] == before["id"]
    assert (new["name"], new["scopes"], new["collections"]) == (
        before["name"],
        ["index", "search"],
        ["docs"],
    )
    problem(await client.get("/v1/collections", headers=old), 401)
    fresh = await client.get("/v1/collections", headers={"X-API-Key": new["key"]})
    assert fresh.json()["total"] == 1


async def test_during_the_overlap_both_keys_work(client: httpx.AsyncClient, dsn: str) -> None:
    old = await new_key(client, "search")
    (before,) = (await client.get("/v1/keys")).json()["keys"]
    new = (await client.post(f"/v1/keys/{before['id']}/rotate", json={"overlap_s": 60})).json()
    for key in (old, {"X-API-Key": new["key"]}):
        assert (await client.get("/v1/collections", headers=key)).status_code == 200
    connection = await asyncpg.connect(dsn)
    ends = await connection.fetchval(
        "SELECT revoked_at - now() FROM braid.api_keys WHERE id = $1", before["id"]
    )
    await connection.close()
    assert timedelta(seconds=0) < ends <= timedelta(seconds=60)


async def test_a_rotated_key_lives_as_long_as_the_old_was_meant_to(
    client: httpx.AsyncClient,
) -> None:
    hour = datetime.now(UTC) + timedelta(hours=1)
    await new_key(client, "search", expires_at=hour.isoformat())
    (before,) = (await client.get("/v1/keys")).json()["keys"]
    new = (await client.post(f"/v1/keys/{before['id']}/rotate", json={"overlap_s": 9999})).json()
    assert datetime.fromisoformat(new["expires_at"]) >= hour
    assert datetime.fromisoformat(new["old_expires_at"]) == datetime.fromisoformat(
        before["expires_at"]
    )


async def test_a_key_is_rotated_once(client: httpx.AsyncClient) -> None:
    year = datetime.now(UTC) + timedelta(days=365)
    old = await new_key(client, "search", expires_at=year.isoformat())
    (before,) = (await client.get("/v1/keys")).json()["keys"]
    path = f"/v1/keys/{before['id']}/rotate"
    first = (await client.post(path, json={"overlap_s": 60})).json()
    assert "already rotated" in problem(await client.post(path), 409)["detail"]
    assert (await client.get("/v1/collections", headers=old)).status_code == 200
    second = (await client.post(f"/v1/keys/{first['id']}/rotate")).json()
    assert datetime.fromisoformat(second["expires_at"]) >= year
    problem(await client.post(f"/v1/keys/{first['id']}/rotate"), 404)


async def test_a_rotated_key_can_be_revoked_before_its_overlap_ends(
    client: httpx.AsyncClient,
) -> None:
    old = await new_key(client, "search")
    (before,) = (await client.get("/v1/keys")).json()["keys"]
    await client.post(f"/v1/keys/{before['id']}/rotate", json={"overlap_s": 60})
    assert (await client.delete(f"/v1/keys/{before['id']}")).status_code == 204
    problem(await client.get("/v1/collections", headers=old), 401)


async def test_only_keys_in_force_are_listed(client: httpx.AsyncClient, dsn: str) -> None:
    for name in ("kept", "expired", "rotated", "overlapping"):
        await client.post("/v1/keys", json={"name": name, "scopes": ["search"]})
    ids = {key["name"]: key["id"] for key in (await client.get("/v1/keys")).json()["keys"]}
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "UPDATE braid.api_keys SET expires_at = now() WHERE id = $1", ids["expired"]
    )
    await connection.close()
    await client.post(f"/v1/keys/{ids['rotated']}/rotate")
    overlap = {"overlap_s": 60}
    ends = (await client.post(f"/v1/keys/{ids['overlapping']}/rotate", json=overlap)).json()
    listed = (await client.get("/v1/keys")).json()
    assert listed["total"] == 4
    assert [key["name"] for key in listed["keys"]] == [
        "kept",
        "overlapping",
        "rotated",
        "overlapping",
    ]
    assert listed["keys"][1]["expires_at"] == ends["old_expires_at"]


@pytest.mark.parametrize("overlap", [-1, 2_592_001, "60", 1.5, None])
async def test_the_overlap_has_bounds(client: httpx.AsyncClient, overlap: object) -> None:
    await new_key(client, "search")
    (key,) = (await client.get("/v1/keys")).json()["keys"]
    response = await client.post(f"/v1/keys/{key['id']}/rotate", json={"overlap_s": overlap})
    assert pointers(response) == ["/overlap_s"]


async def test_a_revoked_key_cannot_be_rotated(client: httpx.AsyncClient) -> None:
    await new_key(client, "search")
    (key,) = (await client.get("/v1/keys")).json()["keys"]
    await client.delete(f"/v1/keys/{key['id']}")
    problem(await client.post(f"/v1/keys/{key['id']}/rotate"), 404)


async def test_keys_are_listed_in_pages(client: httpx.AsyncClient) -> None:
    for number in range(3):
        await client.post("/v1/keys", json={"name": f"key {number}", "scopes": ["search"]})
    page = (await client.get("/v1/keys?limit=2&offset=1")).json()
    assert [key["name"] for key in page["keys"]] == ["key 1", "key 2"]
    assert page["total"] == 3
    assert (await client.get("/v1/keys?offset=9")).json() == {"keys": [], "total": 3}


async def test_a_team_is_made_once(client: httpx.AsyncClient) -> None:
    created = await client.post("/v1/teams", json={"name": "sales"})
    assert created.status_code == 201
    assert created.json()["name"] == "sales"
    problem(await client.post("/v1/teams", json={"name": "sales"}), 409)
    listed = (await client.get("/v1/teams")).json()
    assert [team["name"] for team in listed["teams"]] == ["default", "sales"]
    assert listed["total"] == 2


async def test_only_the_root_key_sees_teams(client: httpx.AsyncClient) -> None:
    key = await new_key(client, "search", "index", "admin")
    problem(await client.get("/v1/teams", headers=key), 403)
    problem(await client.post("/v1/teams", json={"name": "a"}, headers=key), 403)


async def test_a_key_appears_in_no_dump(client: httpx.AsyncClient, dsn: str) -> None:
    chosen = "a-chosen-collection-key"
    await new_collection(client, "docs", collection_key=chosen)
    made = (await new_key(client, "search", name="a noted name"))["X-API-Key"]
    (_, listed) = (await client.get("/v1/keys")).json()["keys"]
    rotated = (await client.post(f"/v1/keys/{listed['id']}/rotate")).json()["key"]
    stored = await dump(dsn)
    assert "a noted name" in stored
    for secret in (chosen, made, rotated, ROOT_KEY):
        assert secret not in stored
        assert secret.encode().hex() not in stored
