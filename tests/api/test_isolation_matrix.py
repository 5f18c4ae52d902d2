"""Every endpoint with every kind of key: only who may gets an answer, the others learn nothing."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import asyncpg
import httpx
import msgspec
import pytest
import structlog
from litestar import Litestar
from support.api import ROOT, client_of, new_collection, new_key, serving
from support.matrix import ROWS, Row
from support.searching import chunk, document, fill

from service.api import access
from service.app import openapi
from service.db.keys import Access
from service.db.pool import Database
from service.models import Collection

SECRETS = ("secretword", "secret-title", "secret-key-name", "secret-provider", "hidden-docs")
EVERY_SCOPE = ("search", "index", "admin")
OTHER_SCOPE = {"search": "index", "index": "search", "admin": "search"}
MISSING = {"name": "missing", "doc_id": "missing", "job_id": 1 << 40, "key_id": 1 << 40}
MISSING["provider_id"] = 1 << 40
At = tuple[str, str]
Cell = tuple[str, dict[str, str], int]


class Place(msgspec.Struct, frozen=True):
    """A team with one of everything, and keys of all kinds."""

    client: httpx.AsyncClient
    ids: dict[str, Any]
    valid: dict[str, dict[str, str]]
    refused: dict[str, dict[str, str]]
    limited: dict[str, str]
    others: dict[str, str]


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Litestar]:
    async with serving(dsn, secret_key="s" * 40, allowed_base_urls="http://127.0.0.1:*") as app:
        yield app


@pytest.fixture
async def place(app: Litestar, dsn: str) -> AsyncIterator[Place]:
    async with client_of(app) as root, client_of(app, {}) as client:
        await root.post("/v1/teams", json={"name": "other"})
        for name in ("docs", "hidden-docs", "second"):
            await new_collection(root, name)
        text = chunk("c", "the secretword stands here", [1, 0, 0])
        await fill(root, "docs", [document("d", text, title="secret-title")])
        provider = {"name": "secret-provider", "kind": "cohere", "base_url": "http://127.0.0.1:1"}
        made = (await root.post("/v1/providers", json={**provider, "api_key": "a-key"})).json()
        named = {"name": "secret-key-name", "scopes": ["search"]}
        spare = (await root.post("/v1/keys", json=named)).json()
        (job,) = (await root.get("/v1/collections/docs/jobs")).json()["jobs"]
        ids = {"name": "docs", "doc_id": "d", "job_id": job["job_id"], "key_id": spare["id"]}
        ids["provider_id"] = made["id"]
        other = {**ROOT, "X-Team": "other"}
        key = {"name": "theirs", "scopes": list(EVERY_SCOPE)}
        theirs = (await root.post("/v1/keys", json=key, headers=other)).json()["key"]
        valid = {scope: await new_key(root, scope) for scope in EVERY_SCOPE}
        limited = await new_key(root, *EVERY_SCOPE, collections=["second"])
        yield Place(
            client,
            ids,
            {**valid, "root": ROOT},
            {"none": {}, "wrong": {"X-API-Key": "k" * 43}, **await ended_keys(root, dsn)},
            limited,
            {"X-API-Key": theirs},
        )


async def ended_keys(root: httpx.AsyncClient, dsn: str) -> dict[str, dict[str, str]]:
    ended = {how: await new_key(root, *EVERY_SCOPE) for how in ("revoked", "expired")}
    connection = await asyncpg.connect(dsn)
    newest = "(SELECT max(id) - {} FROM braid.api_keys)"
    for column, back in (("revoked_at", 1), ("expires_at", 0)):
        await connection.execute(
            f"UPDATE braid.api_keys SET {column} = now() - interval '1 second'"
            f" WHERE id = {newest.format(back)}"
        )
    await connection.close()
    return ended


def in_order() -> list[tuple[At, Row]]:
    return sorted(ROWS.items(), key=lambda one: one[1].last)


async def ask(
    place: Place, at: At, headers: Mapping[str, str], ids: Mapping[str, Any] | None = None
) -> httpx.Response:
    method, template = at
    ids = place.ids if ids is None else ids
    given = {**ids, "name": "hybrid_search"} if "/flags/" in template else ids
    send = dict(ROWS[at].send)
    if "json" in send:
        send["json"] = json.loads(json.dumps(send["json"]).replace("{name}", str(ids["name"])))
    path = template.format(**given)
    return await place.client.request(method, path, headers=dict(headers), **send)


def refusals(place: Place, row: Row) -> list[Cell]:
    """What each key that must not get through is told."""
    cells = [(how, headers, 401) for how, headers in place.refused.items()]
    if row.scope in OTHER_SCOPE:
        cells.append(("wrong scope", place.valid[OTHER_SCOPE[row.scope]], 403))
    if row.reach == "root":
        keys = [*place.valid.items(), ("other team", place.others), ("limited", place.limited)]
        return cells + [(how, key, 403) for how, key in keys if how != "root"]
    if row.whole_team:
        cells.append(("limited", place.limited, 403))
    elif row.reach == "collection":
        cells.append(("limited", place.limited, 404))
    if row.reach in ("collection", "team"):
        cells.append(("other team", place.others, 404))
    return cells


def test_every_endpoint_has_its_row() -> None:
    methods = ("get", "post", "put", "patch", "delete")
    described = {
        (method.upper(), path)
        for path, item in openapi()["paths"].items()
        for method in methods
        if method in item and path.startswith("/v1/")
    }
    assert described == set(ROWS)


async def test_only_who_may_gets_an_answer(place: Place, dsn: str) -> None:
    before = await counts(dsn)
    with structlog.testing.capture_logs() as logs:
        for at, row in in_order():
            for how, headers, status in refusals(place, row):
                answer = await ask(place, at, headers)
                assert answer.status_code == status, (how, at, answer.text)
                assert not tells(answer), (how, at)
    assert await counts(dsn) == before
    said = json.dumps(logs, default=str)
    keys = [key for one in place.refused.values() for key in one.values()]
    assert not any(word in said for word in (*SECRETS, *keys, *place.others.values()))
    for at, row in in_order():
        headers = place.valid[row.scope or "search"]
        answer = await ask(place, at, headers)
        assert answer.status_code == row.status, (at, answer.text)


async def test_what_is_not_yours_is_as_unknown_as_what_does_not_exist(place: Place) -> None:
    for at, row in in_order():
        if row.reach not in ("collection", "team"):
            continue
        for headers in (place.others, place.limited):
            if headers is place.limited and row.whole_team:
                continue
            theirs = await ask(place, at, headers)
            missing = await ask(place, at, headers, MISSING)
            assert theirs.status_code == 404
            assert theirs.content == missing.content, at
            assert theirs.headers == missing.headers, at


async def test_lists_of_another_team_hold_its_own_things_only(place: Place) -> None:
    for at, row in in_order():
        if row.reach in ("own", "collections"):
            answer = await ask(place, at, place.others)
            assert answer.status_code == row.status, (at, answer.text)
            assert not tells(answer), at
    seen = (await place.client.get("/v1/collections", headers=place.limited)).json()
    assert [one["name"] for one in seen["collections"]] == ["second"]


# These act as the schema's owner on a collection that the guard found.
BY_THE_OWNER = {
    ("PATCH", "/v1/collections/{name}"),
    ("DELETE", "/v1/collections/{name}"),
    ("GET", "/v1/collections/{name}/health"),
}


async def test_row_level_security_alone_shows_and_changes_nothing(
    app: Litestar, place: Place, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard gives the other team's key the collection, as if nobody looked whose it is."""
    database = app.state.services.database
    (own,) = [
        found.collection
        for found in [await access.find_root_access(database, "default", "docs")]
        if found
    ]
    assert own is not None
    find = access.find_access

    async def fooled(database: Database, key_hash: bytes, name: str | None) -> Access | None:
        found = await find(database, key_hash, None)
        if found is None or name is None:
            return found
        return msgspec.structs.replace(found, collection=given_to(found.principal.team_id, own))

    monkeypatch.setattr(access, "find_access", fooled)
    before = await counts(dsn)
    for at, row in in_order():
        if row.reach == "collection" and at not in BY_THE_OWNER:
            answer = await ask(place, at, place.others)
            assert not tells(answer), (at, answer.text)
            if "diagnose" in at[1]:
                assert answer.json()["reason"] == "unknown"
    assert await counts(dsn) == before


def given_to(team_id: int, collection: Collection) -> Collection:
    generation = msgspec.structs.replace(collection.generation, team_id=team_id)
    return msgspec.structs.replace(collection, team_id=team_id, generation=generation)


def tells(answer: httpx.Response) -> bool:
    said = answer.text + str(answer.headers)
    return any(word in said for word in SECRETS)


async def counts(dsn: str) -> dict[str, str]:
    """What every table of the team holds."""
    tables = ("collections", "documents", "chunks", "jobs", "api_keys", "provider_credentials")
    connection = await asyncpg.connect(dsn)
    try:
        return {
            table: await connection.fetchval(
                f"SELECT md5(string_agg((to_jsonb(t) - 'last_used_at')::text, '' ORDER BY id))"
                f" FROM braid.{table} t WHERE team_id = 1"
            )
            for table in tables
        }
    finally:
        await connection.close()
