"""Who gets in, what each scope opens, and that nobody learns of other teams' things."""

import asyncio

import asyncpg
import httpx
import pytest
from litestar import Litestar
from support.api import ROOT_KEY, client_of, new_collection, new_key, problem, serving

from service.app import ROUTES, create_app_for
from service.errors import ConfigurationError
from service.settings import Settings

EVERY_SCOPE = ["search", "index", "admin"]


def without_key(app: Litestar) -> httpx.AsyncClient:
    return client_of(app, {})


async def test_no_key_is_401_and_says_how_to_send_one(app: Litestar) -> None:
    async with without_key(app) as client:
        response = await client.get("/v1/collections")
    problem(response, 401)
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers",
    [
        {"X-API-Key": "unknown"},
        {"X-API-Key": ROOT_KEY + "x"},
        {"X-API-Key": ROOT_KEY[:-1]},
        {"Authorization": "Bearer unknown"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {ROOT_KEY}"},
        {"Authorization": ROOT_KEY},
        {"X-API-Key": b"\xff\xfe"},
        {"X-API-Key": "k" * 5000},
    ],
)
async def test_a_wrong_key_is_401(app: Litestar, headers: dict[str, str]) -> None:
    async with without_key(app) as client:
        problem(await client.get("/v1/collections", headers=headers), 401)


@pytest.mark.parametrize(
    "headers",
    [
        {"X-API-Key": ROOT_KEY},
        {"Authorization": f"Bearer {ROOT_KEY}"},
        {"Authorization": f"bearer {ROOT_KEY}"},
    ],
)
async def test_a_key_is_taken_from_either_header(app: Litestar, headers: dict[str, str]) -> None:
    async with without_key(app) as client:
        assert (await client.get("/v1/collections", headers=headers)).status_code == 200


async def test_without_a_root_key_nobody_is_root(dsn: str) -> None:
    async with serving(dsn, root_api_key=None) as app, client_of(app) as client:
        problem(await client.get("/v1/teams"), 401)


async def test_the_root_key_acts_for_the_team_of_the_header(client: httpx.AsyncClient) -> None:
    await client.post("/v1/teams", json={"name": "other"})
    other = {"X-Team": "other"}
    await client.post(
        "/v1/collections", json={"name": "theirs", "embedding": {"provider": "none"}}, headers=other
    )
    listed = (await client.get("/v1/collections", headers=other)).json()
    assert [one["name"] for one in listed["collections"]] == ["theirs"]
    assert (await client.get("/v1/collections")).json() == {"collections": [], "total": 0}


@pytest.mark.parametrize("team", ["nobody", "", "a b", "default\x00", "x" * 100])
async def test_an_unknown_team_is_404(client: httpx.AsyncClient, team: str) -> None:
    response = await client.get("/v1/collections", headers={"X-Team": team})
    problem(response, 404)


async def test_another_team_in_the_header_is_404_for_an_ordinary_key(
    client: httpx.AsyncClient,
) -> None:
    await client.post("/v1/teams", json={"name": "other"})
    key = await new_key(client, "search")
    own = await client.get("/v1/collections", headers={**key, "X-Team": "default"})
    other = await client.get("/v1/collections", headers={**key, "X-Team": "other"})
    unknown = await client.get("/v1/collections", headers={**key, "X-Team": "unknown"})
    assert own.status_code == 200
    assert problem(other, 404) == problem(unknown, 404)


async def test_without_a_valid_key_nothing_else_is_looked_at(app: Litestar) -> None:
    async with without_key(app) as client:
        for headers in ({}, {"X-API-Key": "unknown"}):
            for path in ("/v1/collections/no%20name", "/v1/keys?limit=0", "/v1/teams?bogus=1"):
                problem(await client.get(path, headers=headers), 401)
            posted = await client.post("/v1/collections", content=b"{", headers=headers)
            problem(posted, 401)


OPENS = {
    ("POST", "/v1/collections"): ["admin"],
    ("GET", "/v1/collections"): EVERY_SCOPE,
    ("GET", "/v1/collections/{name}"): EVERY_SCOPE,
    ("GET", "/v1/collections/{name}/health"): ["index", "admin"],
    ("POST", "/v1/collections/{name}/index"): ["admin"],
    ("DELETE", "/v1/collections/{name}/index"): ["admin"],
    ("PATCH", "/v1/collections/{name}"): ["admin"],
    ("DELETE", "/v1/collections/{name}"): ["admin"],
    ("POST", "/v1/search"): ["search"],
    ("POST", "/v1/collections/{name}/search"): ["search"],
    ("POST", "/v1/collections/{name}/search/diagnose"): ["search"],
    ("POST", "/v1/collections/{name}/documents"): ["index"],
    ("POST", "/v1/collections/{name}/files"): ["index"],
    ("PATCH", "/v1/collections/{name}/documents/{doc_id}"): ["index"],
    ("DELETE", "/v1/collections/{name}/documents/{doc_id}"): ["index"],
    ("GET", "/v1/collections/{name}/documents"): ["search"],
    ("GET", "/v1/collections/{name}/documents/{doc_id}"): ["search"],
    ("GET", "/v1/collections/{name}/jobs"): ["index"],
    ("GET", "/v1/collections/{name}/jobs/{job_id}"): ["index"],
    ("POST", "/v1/collections/{name}/jobs/{job_id}/pause"): ["admin"],
    ("POST", "/v1/collections/{name}/jobs/{job_id}/resume"): ["admin"],
    ("POST", "/v1/collections/{name}/jobs/{job_id}/cancel"): ["index", "admin"],
    ("POST", "/v1/collections/{name}/reindex"): ["admin"],
    ("POST", "/v1/collections/{name}/rollback"): ["admin"],
    ("POST", "/v1/keys"): ["admin"],
    ("GET", "/v1/keys"): ["admin"],
    ("DELETE", "/v1/keys/{key_id}"): ["admin"],
    ("POST", "/v1/keys/{key_id}/rotate"): ["admin"],
    ("POST", "/v1/providers"): ["admin"],
    ("GET", "/v1/providers"): ["admin"],
    ("DELETE", "/v1/providers/{provider_id}"): ["admin"],
    ("POST", "/v1/providers/{provider_id}/check"): ["admin"],
    ("POST", "/v1/teams"): [],
    ("GET", "/v1/audit"): ["admin"],
    ("GET", "/v1/teams"): [],
    ("PUT", "/v1/flags/{name}"): [],
    ("GET", "/v1/flags"): [],
}


def every_route(app: Litestar) -> set[tuple[str, str]]:
    return {
        (method, route.path_format)
        for route in app.routes
        if route.path_format.startswith("/v1/")
        for method in route.methods - {"OPTIONS"}
    }


async def test_each_scope_opens_its_routes_and_no_other(
    app: Litestar, client: httpx.AsyncClient
) -> None:
    await new_collection(client, "docs")
    assert every_route(app) == set(OPENS)
    for scope in EVERY_SCOPE:
        key = await new_key(client, scope)
        for (method, template), scopes in OPENS.items():
            # An unknown parameter: whoever gets past the guard is told of it.
            path = (
                template.format(name="docs", key_id=1, provider_id=1, job_id=1, doc_id="a")
                + "?bogus=1"
            )
            response = await client.request(method, path, headers=key)
            expected = 400 if scope in scopes else 403
            assert response.status_code == expected, (scope, method, template, response.text)


async def test_routes_without_a_key_are_the_public_ones(app: Litestar) -> None:
    async with without_key(app) as client:
        for route in app.routes:
            for method in route.methods - {"OPTIONS"}:
                path = route.path_format.format(
                    name="docs", key_id=1, provider_id=1, job_id=1, doc_id="a", asset="page.js"
                )
                response = await client.request(method, path)
                if path.startswith("/v1/"):
                    problem(response, 401)
                else:
                    assert response.status_code == 200, path


async def test_a_collection_of_another_team_is_as_unknown_as_none(
    client: httpx.AsyncClient,
) -> None:
    await client.post("/v1/teams", json={"name": "other"})
    await new_collection(client, "docs")
    theirs = {"X-Team": "other"}
    secret = await client.get("/v1/collections/docs", headers=theirs)
    none = await client.get("/v1/collections/none", headers=theirs)
    assert problem(secret, 404) == problem(none, 404)


async def test_a_limited_key_reaches_its_collections_only(client: httpx.AsyncClient) -> None:
    for name in ("mine", "also", "hidden"):
        await new_collection(client, name)
    key = await new_key(client, *EVERY_SCOPE, collections=["mine", "also"])
    listed = (await client.get("/v1/collections", headers=key)).json()
    assert [one["name"] for one in listed["collections"]] == ["also", "mine"]
    assert listed["total"] == 2
    assert (await client.get("/v1/collections/mine", headers=key)).status_code == 200
    hidden = await client.get("/v1/collections/hidden", headers=key)
    none = await client.get("/v1/collections/none", headers=key)
    assert problem(hidden, 404) == problem(none, 404)
    for method, path in [("POST", "/v1/collections"), ("POST", "/v1/keys"), ("GET", "/v1/keys")]:
        problem(await client.request(method, path, headers=key), 403)


async def test_a_key_limited_to_a_deleted_collection_gets_no_wider(
    client: httpx.AsyncClient,
) -> None:
    for name in ("one", "two"):
        await new_collection(client, name)
    single = await new_key(client, "search", collections=["one"])
    double = await new_key(client, "search", collections=["one", "two"])
    await client.delete("/v1/collections/one")
    await new_collection(client, "one")
    problem(await client.get("/v1/collections", headers=single), 401)
    listed = (await client.get("/v1/collections", headers=double)).json()
    assert [one["name"] for one in listed["collections"]] == ["two"]


async def test_a_deleted_collection_is_gone_for_the_next_request(
    client: httpx.AsyncClient,
) -> None:
    await new_collection(client, "docs")
    key = await new_key(client, "search")
    assert (await client.get("/v1/collections/docs", headers=key)).status_code == 200
    await client.delete("/v1/collections/docs")
    problem(await client.get("/v1/collections/docs", headers=key), 404)


async def test_the_last_use_of_a_key_is_written_once_a_minute(
    app: Litestar, client: httpx.AsyncClient, dsn: str
) -> None:
    key = await new_key(client, "search")

    async def last_used() -> str | None:
        (listed,) = (await client.get("/v1/keys")).json()["keys"]
        value: str | None = listed["last_used_at"]
        return value

    assert await last_used() is None
    await asyncio.gather(*(client.get("/v1/collections", headers=key) for _ in range(5)))
    first = await last_used()
    assert first is not None
    await client.get("/v1/collections", headers=key)
    assert await last_used() == first
    # Two minutes later: a process remembers a key for one.
    app.state.services.access.forget()
    await _execute(dsn, "UPDATE braid.api_keys SET last_used_at = now() - interval '2 minutes'")
    await client.get("/v1/collections", headers=key)
    assert (await last_used() or "") >= first


async def test_a_key_that_cannot_be_stamped_still_works(
    client: httpx.AsyncClient, dsn: str
) -> None:
    key = await new_key(client, "search")
    name = await _fetch(dsn, "SELECT current_database()")
    await _execute(dsn, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await _execute(
        dsn,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    for _ in range(8):  # the cut connections of the pool are noticed one by one
        response = await client.get("/v1/collections", headers=key)
        if response.status_code == 200:
            break
    assert response.status_code == 200


async def test_a_search_authenticates_and_finds_its_collection_in_one_statement(
    app: Litestar, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await new_collection(client, "docs")
    key = await new_key(client, "search")
    await client.get("/v1/collections", headers=key)  # the use is noted
    database = app.state.services.database
    statements = []
    fetch_row = database.fetch_row

    async def counted(statement: str, *arguments: object) -> asyncpg.Record | None:
        statements.append(statement)
        return await fetch_row(statement, *arguments)

    monkeypatch.setattr(database, "fetch_row", counted)
    # Refused after the guard, before the search.
    problem(await client.post("/v1/collections/docs/search", json={}, headers=key), 400)
    assert len(statements) == 1


def test_without_a_database_there_is_no_app() -> None:
    with pytest.raises(ConfigurationError):
        create_app_for("all", Settings())


def test_search_and_indexing_apps_share_the_routes_out() -> None:
    both = {str(handler) for handler in ROUTES["all"]}
    assert {str(handler) for handler in [*ROUTES["search"], *ROUTES["index"]]} == both


async def _execute(dsn: str, statement: str) -> None:
    await _fetch(dsn, statement)


async def _fetch(dsn: str, statement: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()
