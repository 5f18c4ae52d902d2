"""Errors: one form for all of them, and nothing told of what broke."""

import json

import httpx
import pytest
import structlog
from litestar import Litestar
from support.api import new_collection, problem


async def test_an_unknown_route_is_404(client: httpx.AsyncClient) -> None:
    for path in ("/", "/v1", "/v1/nothing", "/v2/collections", "/v1/collections/a/b"):
        assert problem(await client.get(path), 404)["detail"] == "no such route"


async def test_a_wrong_method_is_405_and_names_the_right_ones(client: httpx.AsyncClient) -> None:
    response = await client.put("/v1/collections")
    problem(response, 405)
    assert set(response.headers["allow"].split(", ")) == {"GET", "POST", "OPTIONS"}
    assert (await client.request("BREW", "/v1/collections")).status_code == 405


async def test_a_bug_is_500_without_details_and_logged_once_without_values(
    app: Litestar, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        secret = "the text of a document"
        raise ValueError(secret)

    monkeypatch.setattr("service.api.search.search_collection", broken)
    await new_collection(client, "docs")
    with structlog.testing.capture_logs() as logs:
        response = await client.post(
            "/v1/collections/docs/search", json={"query": {"text": "secret question"}}
        )
    assert "errors" not in problem(response, 500)
    assert "secret" not in response.text
    assert "document" not in response.text
    (bug,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert bug["error"] == "builtins.ValueError"
    assert bug["route"] == "/v1/collections/{name}/search"
    assert bug["frames"][-1].endswith(" broken")
    assert "text of a document" not in json.dumps(logs)
    assert "secret question" not in json.dumps(logs)


async def test_a_database_that_is_gone_is_503(app: Litestar, client: httpx.AsyncClient) -> None:
    await app.state.services.database.close()
    response = await client.get("/v1/collections")
    problem(response, 503)
    assert response.headers["retry-after"] == "1"
    assert (await client.get("/livez")).status_code == 200


NAME_RULE = "must be 1 to 64 of a-z A-Z 0-9 _ -"


@pytest.mark.parametrize(
    ("request_line", "body", "pointer", "reason"),
    [
        ("GET /v1/collections?limit=0", None, "/limit", "expected `int` >= 1"),
        ("GET /v1/collections?limit=x", None, "/limit", "must be an integer"),
        ("GET /v1/collections/a%20b", None, "/name", NAME_RULE),
        ("POST /v1/collections", {"name": "a b"}, "/name", NAME_RULE),
        ("POST /v1/collections", {"name": "a", "collection_key": "short"}, "/collection_key",
         "must be 16 to 128 printable ASCII characters without spaces"),
        ("POST /v1/keys", {"name": "a\n", "scopes": ["search"]}, "/name",
         "must hold no control characters"),
        ("POST /v1/collections/docs/documents", {"documents": [{"doc_id": "a"}]}, "/documents/0",
         "a document needs text, chunks or a summary"),
        ("POST /v1/collections/docs/search", {"query": {"text": " "}}, "/query/text",
         "must not be blank"),
    ],
)  # fmt: skip
async def test_a_detail_names_the_field_in_plain_words(
    client: httpx.AsyncClient, request_line: str, body: object, pointer: str, reason: str
) -> None:
    await new_collection(client, "docs")
    refused = problem(await client.request(*request_line.split(" ", 1), json=body), 400)
    assert refused["errors"] == [{"pointer": pointer, "detail": reason}]
    assert refused["detail"].removeprefix("/") == f"{pointer[1:]}: {reason}"


async def test_every_answer_says_not_to_sniff_or_store(client: httpx.AsyncClient) -> None:
    for path in ("/livez", "/v1/collections", "/nothing"):
        headers = (await client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


async def test_a_request_that_takes_too_long_is_503_and_its_statement_ends(
    app: Litestar, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.api.deadline.REQUEST_SECONDS", 0.2)
    forever = "SELECT pg_sleep(60) WHERE $1::bigint > 0 AND $2::bigint[] IS NULL"
    monkeypatch.setattr("service.db.catalog.COUNT_COLLECTIONS", forever)
    response = await client.get("/v1/collections")
    assert problem(response, 503)["detail"] == "the request took too long"
    assert response.headers["retry-after"] == "1"
    async with app.state.services.database.administer() as connection:
        running = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND state = 'active' AND query ~ 'pg_sleep'"
            " AND pid <> pg_backend_pid()"
        )
    assert running == 0


async def test_a_body_that_is_missing_is_said_to_be(client: httpx.AsyncClient) -> None:
    found = problem(await client.post("/v1/collections"), 400)
    assert found["detail"] == "the body: is required, as JSON"
