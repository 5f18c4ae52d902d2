"""The API's description: current, complete, and readable without the internet."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar import Litestar
from support.api import client_of, problem

from service.app import openapi

ROOT = Path(__file__).parent.parent.parent
COMMITTED = ROOT / "openapi" / "openapi.json"
REFERENCE = ROOT / "docs" / "reference" / "api.md"
METHODS = ("get", "post", "put", "patch", "delete")


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, item[method])
        for path, item in openapi()["paths"].items()
        for method in METHODS
        if method in item
    ]


def test_the_committed_description_is_current() -> None:
    assert json.loads(COMMITTED.read_text()) == openapi(), "run `make openapi`"


def test_every_reference_in_the_description_resolves() -> None:
    document = openapi()
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert names <= set(document["components"]["schemas"])


def test_requests_forbid_what_they_do_not_know() -> None:
    schemas = openapi()["components"]["schemas"]
    bodies = {
        body["schema"]["$ref"].rpartition("/")[2]
        for _, _, operation in operations()
        if "requestBody" in operation
        for body in operation["requestBody"]["content"].values()
        if "$ref" in body["schema"]
    }
    assert {"CollectionRequest", "SearchRequest", "KeyRequest", "FilesForm"} <= bodies
    assert all(schemas[name]["additionalProperties"] is False for name in bodies)


@pytest.mark.parametrize(("method", "path", "operation"), operations())
def test_every_route_says_what_it_does_and_how_it_fails(
    method: str, path: str, operation: dict[str, Any]
) -> None:
    assert operation["summary"]
    assert operation["description"]
    errors = {code for code in operation["responses"] if code >= "400"}
    if path.startswith("/v1/"):
        assert operation["security"] == [{"ApiKey": []}, {"Bearer": []}]
        assert {"400", "401", "403", "404", "503"} <= errors
        assert ("413" in errors) == ("requestBody" in operation)
    for code in errors:
        assert list(operation["responses"][code]["content"]) == ["application/problem+json"]


def test_every_route_is_documented() -> None:
    reference = REFERENCE.read_text()
    missing = [
        f"{method} {path}"
        for method, path, _ in operations()
        if f"`{method} {path}`" not in reference
    ]
    assert missing == []


def test_no_documented_route_is_unknown() -> None:
    documented = set(re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/[^`]+)`", REFERENCE.read_text()))
    assert documented == {(method, path) for method, path, _ in operations()}


def test_every_request_field_is_documented() -> None:
    reference = REFERENCE.read_text()
    schemas = openapi()["components"]["schemas"]
    requests = [
        schema for schema in schemas.values() if schema.get("additionalProperties") is False
    ]
    missing = {
        field
        for schema in requests
        for field in schema["properties"]
        if not re.search(rf"\b{field}\b", reference)
    }
    assert missing == set()


async def test_the_description_is_served(client: httpx.AsyncClient) -> None:
    response = await client.get("/schema/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == openapi()


async def test_the_page_works_without_the_internet(app: Litestar) -> None:
    async with client_of(app, {}) as client:
        page = await client.get("/schema")
        assert page.headers["content-type"].startswith("text/html")
        assert "https://" not in page.text
        assert "http://" not in page.text
        assert not re.search(r"(src|href)=.?//", page.text)
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert "<script>" not in page.text
        assets = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)
        assert len(assets) == 3
        for asset in assets:
            served = await client.get(asset)
            assert served.status_code == 200
            assert served.headers["content-type"].startswith(("text/javascript", "text/css"))
            assert len(served.content) > 100
        script = (await client.get("/schema/page.js")).text
        assert '"/schema/openapi.json"' in script
        assert "validatorUrl: null" in script
        style = (await client.get("/schema/swagger-ui.css")).text
        assert not re.search(r"(@import|url\(.?(https?:)?//)", style)


@pytest.mark.parametrize(
    "asset", ["README.md", "swagger-ui.LICENSE", "..%2Fproblems.py", "nothing.js", "%00"]
)
async def test_nothing_else_is_served_beside_the_page(
    client: httpx.AsyncClient, asset: str
) -> None:
    problem(await client.get(f"/schema/{asset}"), 404)
