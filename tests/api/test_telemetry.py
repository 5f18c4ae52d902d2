"""What leaves the process: OTLP on a real receiver, /metrics and logs, none of them telling."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.exercised import PARENT, PLANTED, PRICE, TRACE, exercised
from support.fake_http import Call
from support.otlp_receiver import Received, attributes, receiving
from support.served import stop

from service.db.embedded import EmbeddedPostgres


class Left(NamedTuple):
    """All that one run of the service has left outside."""

    received: Received
    metrics: str
    log: str
    answer: dict[str, Any]
    provider_calls: list[Call]


@pytest.fixture(scope="module")
async def left(server: EmbeddedPostgres, template: str) -> AsyncIterator[Left]:
    """The service is used and stopped."""
    with receiving() as received:
        async with exercised(server, template, "telemetry", otlp_endpoint=received.url) as used:
            metrics = (await used.client.get("/metrics", headers={"X-API-Key": ""})).text
            log = await asyncio.to_thread(stop, used.service)
            yield Left(received, metrics, log, used.answer, used.provider_calls)


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
    points = {
        (said["mode"], said["outcome"]): point
        for point in exported.histogram.data_points
        for said in [attributes(point.attributes)]
    }
    assert {key: one.count for key, one in points.items()} == {
        ("hybrid", "ok"): 2,
        ("hybrid", "degraded"): 11,
        ("text", "ok"): 1,
        ("vector", "ok"): 1,
    }
    point = points["hybrid", "ok"]
    assert point.count == sum(point.bucket_counts)
    assert f'braid_search_duration_seconds_sum{{mode="hybrid",outcome="ok"}} {point.sum}' in (
        left.metrics
    )
    refused = 'http_route="/v1/collections/{name}/search",http_response_status_code="400"'
    assert re.search(rf"http_server_request_duration_seconds_count.*{refused}.* 3\n", left.metrics)


def sample(left: Left, series: str) -> float:
    """The value of one series on the page."""
    (line,) = [one for one in left.metrics.splitlines() if one.startswith(f"{series} ")]
    return float(line.removeprefix(series))


def test_stages_are_counted_once_a_search(left: Left) -> None:
    counts = {"embed": 2, "dense": 2, "lexical": 13, "fusion": 13, "hydrate": 13}
    for stage, count in counts.items():
        labels = f'stage="{stage}",mode="hybrid",outcome="ok"'
        assert sample(left, f"braid_search_stage_duration_seconds_count{{{labels}}}") == count
    labels = 'stage="embed",mode="hybrid",outcome="error"'
    assert sample(left, f"braid_search_stage_duration_seconds_count{{{labels}}}") == 11


def test_what_was_left_out_is_counted_by_stage_and_reason(left: Left) -> None:
    degraded = "braid_search_degraded_total"
    assert sample(left, degraded + '{stage="rerank",reason="error"}') == 10
    assert sample(left, degraded + '{stage="rerank",reason="circuit open"}') == 1
    assert sample(left, degraded + '{stage="embed",reason="error"}') == 11


def test_a_circuit_that_opens_is_seen(left: Left) -> None:
    assert sample(left, 'braid_provider_circuit_changes_total{provider="voyage",state="open"}') == 1
    assert sample(left, 'braid_provider_circuits{provider="voyage",state="open"}') == 1


def test_calls_tokens_and_cost_of_providers(left: Left) -> None:
    calls = "braid_provider_call_duration_seconds_count"
    rerank = 'provider="voyage",purpose="rerank"'
    assert sample(left, f'{calls}{{{rerank},outcome="ok"}}') == 1
    assert sample(left, f'{calls}{{{rerank},outcome="unavailable"}}') == 10
    tokens = [
        sample(left, f'braid_provider_tokens_total{{provider="voyage",type="{kind}"}}')
        for kind in ("embedding", "rerank")
    ]
    assert all(tokens)
    cost = sample(left, 'braid_provider_cost_usd_total{provider="voyage"}')
    assert cost == pytest.approx(sum(tokens) * PRICE / 1e6)


def test_pools_queues_and_documents_are_on_the_page(left: Left) -> None:
    assert sample(left, 'braid_db_pool_limit{pool="read"}') == 10
    assert sample(left, 'braid_db_pool_waiting{pool="read"}') == 0
    assert sample(left, 'braid_search_active{state="waiting"}') == 0
    assert sample(left, 'braid_jobs_unfinished{kind="ingest",status="pending"}') == 0
    assert sample(left, 'braid_jobs_oldest_age_seconds{kind="ingest"}') == 0
    assert sample(left, 'braid_indexing_documents_total{outcome="indexed"}') == 6
    assert sample(left, 'braid_indexing_documents_total{outcome="failed"}') == 1
    assert sample(left, 'braid_cache_requests_total{cache="access",outcome="hit"}') > 0


def test_the_trace_goes_on_to_providers_and_the_callers_state_does_not(left: Left) -> None:
    spans = {span.span_id.hex(): span for span in left.received.spans}
    assert left.provider_calls
    for call in left.provider_calls:
        _, trace_id, parent, flags = call.headers["traceparent"].split("-")
        assert spans[parent].trace_id.hex() == trace_id
        assert spans[parent].name == "braid.provider"
        assert spans[parent].kind == Span.SPAN_KIND_CLIENT
        assert int(flags, 16) & 1
        assert "tracestate" not in call.headers


def test_the_log_line_of_a_request_carries_its_trace(left: Left) -> None:
    spans = search_trace(left)
    lines = [json.loads(line) for line in left.log.splitlines()]
    assert all("trace_id" in one for one in lines if one["event"] == "search stage failed")
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
