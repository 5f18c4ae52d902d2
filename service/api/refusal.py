"""Refuses searches at the door when the process is full: a refusal must cost next to nothing."""

import re

import msgspec
from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.types import ASGIApp, Receive, Scope, Send

from service.api.access import team_in_memory
from service.api.problems import PROBLEM_JSON, TYPE_PREFIX, Problem
from service.api.services import Services
from service.errors import OverloadedError
from service.instruments import HTTP_DURATION

SMALL_BYTES = 60_000
"""A body that the server reads along with the head; a larger one has to be taken off the wire."""

_SEARCH = re.compile(r"/v1/(?:collections/([^/]+)/)?search")
_IN_COLLECTION, _IN_MANY = "/v1/collections/{name}/search", "/v1/search"


class Refused:
    """Answers 429 before anything of the request is read, while nobody of its team could even wait.

    Such a request is counted, but has neither a span nor a line in the log.
    """

    def __init__(self, app: ASGIApp, owner: Litestar) -> None:
        self._app = app
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope.get("method") == "POST" and scope["path"].endswith("/search"):
            services: Services = self._owner.state.services
            if services.gate.busy and _has_no_place(services, scope) and _is_small(scope):
                await _refuse(scope, send, services.gate.refusal())
                return
        await self._app(scope, receive, send)


def _has_no_place(services: Services, scope: Scope) -> bool:
    """Whether the team that asks, as far as memory knows it, has as many callers as it may."""
    found = _SEARCH.fullmatch(scope["path"])
    if found is None:
        return False
    team_id = team_in_memory(services, ASGIConnection(scope), found[1])
    return team_id is not None and services.gate.refuses(team_id)


def _is_small(scope: Scope) -> bool:
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return length.isdigit() and int(length) <= SMALL_BYTES


async def _refuse(scope: Scope, send: Send, error: OverloadedError) -> None:
    problem = Problem(TYPE_PREFIX + error.type, error.title, error.status, error.detail)
    headers = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"retry-after", str(error.seconds).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    body = msgspec.json.encode(problem)
    await send({"type": "http.response.body", "body": body, "more_body": False})
    route = _IN_MANY if scope["path"] == _IN_MANY else _IN_COLLECTION
    HTTP_DURATION.record(0.0, "POST", route, str(error.status))
