"""Thousands of requests made from the API's own description, over real sockets."""

import collections
from typing import Any

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from support.api import ROOT
from support.served import served

CASES = 60
LEAST_CASES = 2000
URI_TOO_LONG = 414
ENOUGH_MS = 20_000
"""Answered by the server itself, before the app sees the request."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
DOCUMENTS = [
    {"doc_id": "one", "text": "a text of one chunk", "metadata": {"n": 1}, "summary": "one"},
    {"doc_id": "two", "chunks": [{"id": "c", "text": "a chunk", "vector": [1, 0, 0]}]},
]


def test_no_request_breaks_the_server(dsn: str) -> None:
    statuses: collections.Counter[int] = collections.Counter()
    with served(dsn) as server:
        _prepare(server.url)
        document = httpx.get(server.url + "/schema/openapi.json").json()
        with requests.Session() as session:
            for found in schemathesis.openapi.from_dict(document).get_all_operations():
                operation = found.ok()
                modes = [GenerationMode.POSITIVE]
                if operation.path_parameters or operation.query or operation.body:
                    modes.append(GenerationMode.NEGATIVE)
                for mode in modes:
                    _fuzz(operation, mode, server.url, session, statuses)
        assert httpx.get(server.url + "/readyz").status_code == 200
    assert sum(statuses.values()) >= LEAST_CASES
    # Not only refusals: what the description calls right is mostly taken.
    assert sum(count for status, count in statuses.items() if status < 300) >= LEAST_CASES / 10


def _prepare(url: str) -> None:
    with httpx.Client(base_url=url, headers=ROOT) as client:
        for name in ("docs", "more"):
            body = {"name": name, "embedding": {"provider": "none", "dim": 3}}
            assert client.post("/v1/collections", json=body).status_code == 201
        posted = client.post(
            "/v1/collections/docs/documents?wait=true", json={"documents": DOCUMENTS}
        )
        assert posted.json()["counts"]["indexed"] == len(DOCUMENTS), posted.text


def _fuzz(
    operation: Any,
    mode: GenerationMode,
    url: str,
    session: requests.Session,
    statuses: collections.Counter[int],
) -> None:
    calls = 0

    @seed(1)
    @settings(
        max_examples=CASES,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def run(case: schemathesis.Case) -> None:
        nonlocal calls
        calls += 1
        aimed = _aim(case, calls)
        _give_time(case)
        response = case.call(base_url=url, session=session, headers=ROOT, timeout=30)
        statuses[response.status_code] += 1
        if response.status_code == URI_TOO_LONG:
            return
        # What was wrong with a request may have been the name that it is not sent with.
        checks = CHECKS if aimed else [*CHECKS, negative_data_rejection]
        case.validate_response(response, checks=checks)
        if response.status_code >= 400:
            _check_problem(response)

    run()


def _aim(case: schemathesis.Case, calls: int) -> bool:
    """Send three cases of four to what exists: an unknown name leads no further than itself."""
    given = case.path_parameters
    names = case.body.get("collections") if isinstance(case.body, dict) else None
    if calls % 4 and case.operation.label == "POST /v1/search" and isinstance(names, list):
        case.body["collections"] = ["docs"] if len(names) == 1 else ["docs", "more"]
        return True
    if calls % 4 == 0 or not given or case.operation.label == "DELETE /v1/collections/{name}":
        return False
    if "name" in given:
        given["name"] = "docs"
    if "doc_id" in given and case.method != "DELETE" and calls % 2:
        given["doc_id"] = "one"
    return True


def _give_time(case: schemathesis.Case) -> None:
    """Nothing can answer within a millisecond, and says so with 503: that is tested elsewhere."""
    body = case.body
    if isinstance(body, dict):
        asked = body.get("timeout_ms")
        if isinstance(asked, int) and not isinstance(asked, bool) and 1 <= asked < ENOUGH_MS:
            body["timeout_ms"] = ENOUGH_MS


def _check_problem(response: Any) -> None:
    assert response.headers["content-type"] == ["application/problem+json"]
    problem = response.json()
    assert problem["status"] == response.status_code
    assert problem["type"].startswith("urn:braid:problem:")
    assert problem["title"]
    assert problem["detail"]
    assert "Traceback" not in response.text
