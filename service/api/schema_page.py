"""The API's own description: OpenAPI as JSON, and a page that reads it without the internet."""

import functools
from pathlib import Path
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.routes import HTTPRoute

from service.api.problems import Problem
from service.errors import NotFoundError

STATIC = Path(__file__).parent / "static"
ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "page.js": "text/javascript",
}
# The page holds no inline script, and the browser is told to ask nobody but this server.
POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Braid API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/schema/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="/schema/swagger-ui-bundle.js"></script>
<script src="/schema/page.js"></script>
</body>
</html>
"""


@get("/schema", include_in_schema=False)
async def schema_page() -> Response[str]:
    """A page to read and try the API."""
    return Response(PAGE, media_type="text/html", headers={"Content-Security-Policy": POLICY})


@get("/schema/openapi.json", include_in_schema=False)
async def schema_document(request: Request[Any, Any, State]) -> Response[dict[str, Any]]:
    """The OpenAPI document of this process."""
    document: dict[str, Any] = request.app.state.openapi()
    return Response(document, media_type="application/json")


@get("/schema/{asset:str}", include_in_schema=False)
async def schema_asset(asset: FromPath[str]) -> Response[bytes]:
    """A script or style of the page."""
    if asset not in ASSETS:
        raise NotFoundError("no such route")
    return Response(
        _read(asset), media_type=ASSETS[asset], headers={"Cache-Control": "max-age=3600"}
    )


@functools.cache
def _read(asset: str) -> bytes:
    return (STATIC / asset).read_bytes()


def openapi_document(app: Litestar) -> dict[str, Any]:
    """The OpenAPI document of an app, its bodies described by msgspec itself."""
    document = app.openapi_schema.to_schema()
    components = document["components"]
    components["schemas"] = _body_schemas(app)
    return document


def _body_schemas(app: Litestar) -> dict[str, Any]:
    # Litestar leaves out what is forbidden (`additionalProperties`) and what fields are for.
    types: list[Any] = [Problem]
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                types += _body_types(handler) if handler.resolve_include_in_schema() else []
    _, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return dict(sorted(schemas.items()))


def _body_types(handler: HTTPRouteHandler) -> list[Any]:
    signature = handler.parsed_fn_signature
    answer = signature.return_type
    if answer.is_subclass_of(Response):
        answer = answer.inner_types[0]
    given = [signature.parameters["data"].annotation] if "data" in signature.parameters else []
    return [*given, answer.annotation]
