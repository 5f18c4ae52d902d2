"""What a request leaves behind: one access line and one span, neither telling names or texts."""

import json
from collections.abc import Iterator

import httpx
import pytest
import structlog
from litestar import Litestar
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.api import new_collection

from service.instruments import HTTP_DURATION

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("service.api.observe._tracer", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


async def test_a_span_carries_the_template_of_the_route_not_its_names(
    client: httpx.AsyncClient, spans: InMemorySpanExporter
) -> None:
    await new_collection(client, "secret-name")
    spans.clear()
    for path in ("/v1/collections/secret-name?limit=1", "/v1/collections/other-secret"):
        await client.get(path)
    for span in spans.get_finished_spans():
        assert span.name == "GET /v1/collections/{name}"
        assert span.kind is SpanKind.SERVER
        assert span.attributes is not None
        assert span.attributes["http.route"] == "/v1/collections/{name}"
        assert span.attributes["http.request.method"] == "GET"
        assert "secret" not in span.to_json()
    statuses = [
        span.attributes["http.response.status_code"]
        for span in spans.get_finished_spans()
        if span.attributes
    ]
    assert statuses == [400, 404]


async def test_any_number_of_unknown_routes_and_methods_is_one_name(
    client: httpx.AsyncClient, spans: InMemorySpanExporter
) -> None:
    for number in range(3):
        await client.get(f"/v1/unknown-{number}")
        await client.request(f"BREW{number}", "/v1/collections")
    names = {span.name for span in spans.get_finished_spans()}
    assert names == {"GET unmatched", "_OTHER unmatched"}


async def test_the_callers_trace_goes_on(
    client: httpx.AsyncClient, spans: InMemorySpanExporter
) -> None:
    await client.get("/livez", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    await client.get("/livez", headers={"traceparent": "00-nonsense"})
    followed, fresh = spans.get_finished_spans()
    assert f"{followed.context.trace_id:032x}" == TRACE
    assert followed.parent is not None
    assert f"{followed.parent.span_id:016x}" == PARENT
    assert fresh.parent is None


async def test_a_failed_request_is_an_error_span(
    app: Litestar, client: httpx.AsyncClient, spans: InMemorySpanExporter
) -> None:
    await app.state.services.database.close()
    await client.get("/readyz")
    await client.get("/nothing")
    failed, refused = spans.get_finished_spans()
    assert failed.status.status_code is StatusCode.ERROR
    assert refused.status.status_code is StatusCode.UNSET


async def test_one_access_line_a_request_without_names_queries_or_bodies(
    client: httpx.AsyncClient,
) -> None:
    await new_collection(client, "secret-name")
    with structlog.testing.capture_logs() as logs:
        await client.get("/v1/collections/secret-name")
        await client.get("/v1/collections?secret=1")
        await client.post("/v1/collections/secret-name/search", json={"secret": "text"})
        await client.get("/secret")
    requests = [entry for entry in logs if entry["event"] == "request"]
    assert [(one["method"], one["route"], one["status"]) for one in requests] == [
        ("GET", "/v1/collections/{name}", 200),
        ("GET", "/v1/collections", 400),
        ("POST", "/v1/collections/{name}/search", 400),
        ("GET", "unmatched", 404),
    ]
    assert all(one["ms"] >= 0 for one in requests)
    assert "secret" not in json.dumps(logs)


async def test_health_checks_are_logged_as_details_only(client: httpx.AsyncClient) -> None:
    with structlog.testing.capture_logs() as logs:
        await client.get("/livez")
    assert [entry["log_level"] for entry in logs] == ["debug"]


async def test_any_number_of_paths_methods_and_names_is_few_series(
    client: httpx.AsyncClient,
) -> None:
    async def provoke(number: int) -> set[tuple[str, ...]]:
        await client.get(f"/v1/unknown-{number}")
        await client.request(f"BREW{number}", "/v1/collections")
        await client.get(f"/v1/collections/name-{number}")
        return {one.labels for one in HTTP_DURATION.points()}

    once = await provoke(0)
    assert {
        ("GET", "unmatched", "404"),
        ("_OTHER", "unmatched", "405"),
        ("GET", "/v1/collections/{name}", "404"),
    } <= once
    assert await provoke(1) == await provoke(2) == once
