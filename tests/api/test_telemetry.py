"""What leaves the process: OTLP on a real receiver, /metrics and logs, none of them telling."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import asyncpg
import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.api import ROOT, ROOT_KEY
from support.otlp_receiver import Received, attributes, receiving
from support.served import served, stop

from service.db.embedded import EmbeddedPostgres

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
COLLECTION, TEAM = "plantedcollection", "plantedteam"
DOCUMENT, TEXT, QUERY = "planteddocument", "plantedtext", "plantedquery"
PLANTED = (COLLECTION, TEAM, DOCUMENT, TEXT, QUERY, ROOT_KEY)
SEARCH_PATH = f"/v1/collections/{COLLECTION}/search"


class Left(NamedTuple):
    """All that one run of the service has left outside."""

    received: Received
    metrics: str
    log: str
    answer: dict[str, Any]


@pytest.fixture(scope="module")
async def left(server: EmbeddedPostgres, template: str) -> AsyncIterator[Left]:
    """A team indexes and searches, well and badly, and the service stops."""
    connection = await asyncpg.connect(server.dsn())
    await connection.execute(f"CREATE DATABASE telemetry TEMPLATE {template}")
    await connection.close()
    dsn = server.dsn("telemetry")
    with receiving() as received, served(dsn, otlp_endpoint=received.url) as running:
        async with httpx.AsyncClient(base_url=running.url, headers=ROOT, timeout=60) as client:
            answer, metrics = await _use(client)
        log = await asyncio.to_thread(stop, running)
        yield Left(received, metrics, log, answer)


async def _use(client: httpx.AsyncClient) -> tuple[dict[str, Any], str]:
    (await client.post("/v1/teams", json={"name": TEAM})).raise_for_status()
    client.headers["X-Team"] = TEAM
    (await client.post("/v1/collections", json={"name": COLLECTION})).raise_for_status()
    documents = [{"doc_id": f"{DOCUMENT}-{n}", "text": f"{TEXT} number {n}"} for n in range(3)]
    ingested = await client.post(
        f"/v1/collections/{COLLECTION}/documents",
        json={"documents": documents},
        params={"wait": "true"},
    )
    assert ingested.json()["status"] == "done", ingested.text
    query: dict[str, Any] = {"query": {"text": f"{QUERY} {TEXT}"}, "expand": {"neighbours": 1}}
    traced = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    answer = await client.post(SEARCH_PATH, json=query, headers=traced)
    for bad in ({"query": {"text": ""}}, query | {"mode": QUERY}, query | {QUERY: 1}):
        assert (await client.post(SEARCH_PATH, json=bad)).status_code == 400
    await client.post("/v1/collections/other" + COLLECTION + "/search", json=query)
    await client.get("/" + QUERY)
    found: dict[str, Any] = answer.json()
    return found, (await client.get("/metrics", headers={"X-API-Key": ""})).text


def search_trace(left: Left) -> dict[str, Span]:
    spans = [span for span in left.received.spans if span.trace_id.hex() == TRACE]
    assert len(spans) == len({span.name for span in spans})
    return {span.name: span for span in spans}


def seconds(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def test_a_search_is_one_trace_with_its_stages_as_children(left: Left) -> None:
    spans = search_trace(left)
    root = spans["POST /v1/collections/{name}/search"]
    assert root.parent_span_id.hex() == PARENT
    assert root.kind == Span.SPAN_KIND_SERVER
    searched = spans["braid.search"]
    assert searched.parent_span_id == root.span_id
    stages = {name: spans[f"braid.{name}"] for name in [*left.answer["stages"], "fusion"]}
    assert set(stages) == {"embed", "dense", "lexical", "fusion", "hydrate"}
    assert all(span.parent_span_id == searched.span_id for span in stages.values())
    assert spans["braid.expand"].parent_span_id == stages["hydrate"].span_id


def test_the_times_of_the_stages_add_up(left: Left) -> None:
    spans = search_trace(left)
    took = {name.removeprefix("braid."): seconds(span) for name, span in spans.items()}
    for name, facts in left.answer["stages"].items():
        # The span begins a moment before the time that the answer tells, and ends after it.
        assert took[name] >= facts["ms"] / 1000 - 0.0005
    legs = max(took["embed"] + took["dense"], took["lexical"])
    parts = legs + took["fusion"] + took["hydrate"]
    assert parts <= took["search"] * 1.05
    # What no stage accounts for is the scheduling between them.
    assert took["search"] - parts <= max(0.5 * took["search"], 0.05)
    order = ("lexical", "fusion", "hydrate")
    for earlier, later in itertools.pairwise(order):
        ended = spans[f"braid.{earlier}"].end_time_unix_nano
        assert ended <= spans[f"braid.{later}"].start_time_unix_nano


def test_spans_say_how_a_stage_ended_and_what_it_found(left: Left) -> None:
    spans = search_trace(left)
    dense = attributes(spans["braid.dense"].attributes)
    assert dense["braid.outcome"] == "ok"
    assert dense["braid.candidates"] == 3
    assert dense["braid.method"] == "exact"
    searched = attributes(spans["braid.search"].attributes)
    assert searched["braid.mode"] == "hybrid"
    assert searched["braid.result"] == "ok"


def test_indexing_is_a_trace_of_its_own(left: Left) -> None:
    by_id = {span.span_id: span for span in left.received.spans}
    ingest = next(span for span in by_id.values() if span.name == "braid.ingest")
    children = {span.name for span in by_id.values() if span.parent_span_id == ingest.span_id}
    assert {"braid.chunk", "braid.embed", "braid.write"} <= children


def test_metrics_arrive_as_otlp_and_say_the_same_as_the_page(left: Left) -> None:
    (resource, *_) = left.received.resources
    said = attributes(resource.attributes)
    assert said["service.name"] == "braid"
    assert said["braid.role"] == "all"
    exported = left.received.metrics["braid.search.duration"]
    assert exported.unit == "s"
    (point,) = exported.histogram.data_points
    assert attributes(point.attributes) == {"mode": "hybrid", "outcome": "ok"}
    assert point.count == sum(point.bucket_counts) == 1
    assert f'braid_search_duration_seconds_sum{{mode="hybrid",outcome="ok"}} {point.sum}' in (
        left.metrics
    )
    refused = 'http_route="/v1/collections/{name}/search",http_response_status_code="400"'
    assert re.search(rf"http_server_request_duration_seconds_count.*{refused}.* 3\n", left.metrics)


def test_stages_are_counted_once_a_search(left: Left) -> None:
    for stage in ("embed", "dense", "lexical", "fusion", "hydrate"):
        name = "braid_search_stage_duration_seconds_count"
        assert f'{name}{{stage="{stage}",mode="hybrid",outcome="ok"}} 1\n' in left.metrics
    assert 'braid_db_pool_limit{pool="read"} 10\n' in left.metrics
    assert 'braid_db_pool_waiting{pool="read"} 0\n' in left.metrics


def test_the_log_line_of_a_request_carries_its_trace(left: Left) -> None:
    spans = search_trace(left)
    lines = [json.loads(line) for line in left.log.splitlines() if line.startswith("{")]
    (line,) = [one for one in lines if one.get("trace_id") == TRACE]
    assert line["event"] == "request"
    root = spans["POST /v1/collections/{name}/search"]
    assert line["span_id"] == root.span_id.hex()


def test_names_texts_and_keys_never_leave(left: Left) -> None:
    assert len(left.received.bodies) >= 2
    assert len(left.log.splitlines()) > 5
    for secret in PLANTED:
        assert secret.encode() not in left.received.everything
        assert secret not in left.metrics
        assert secret not in left.log
