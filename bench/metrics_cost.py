"""What the metrics and stages of one hybrid search cost when nothing is exported.

Counts the records and stages of a search through the whole app, then times as many of each alone.
The target is at most 0.1 ms a search.
"""

import asyncio
import tempfile
import timeit
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from service import metrics
from service.app import create_app_for
from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate
from service.instruments import CACHE_REQUESTS, SEARCH_STAGE_DURATION
from service.settings import Settings
from service.telemetry import Stage, configure_telemetry, stage

KEY = "key-of-the-benchmark-run"
REPEATS, ROUNDS = 20_000, 5


def counting(counts: Counter[str], kind: type, method: str) -> None:
    """Count the calls of a method from now on."""
    original = getattr(kind, method)

    def counted(self: Any, *given: Any, **named: Any) -> Any:
        counts[f"{kind.__name__}.{method}"] += 1
        return original(self, *given, **named)

    setattr(kind, method, counted)


async def records_of_a_search(dsn: str) -> Counter[str]:
    settings = Settings(database_url=dsn, root_api_key=KEY)
    app = create_app_for("all", settings)
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    body = {"query": {"text": "how do I rotate a key"}}
    counts: Counter[str] = Counter()
    async with (
        app.lifespan(),
        httpx.AsyncClient(
            transport=transport, base_url="http://braid", headers={"X-API-Key": KEY}, timeout=60
        ) as client,
    ):
        await client.post("/v1/collections", json={"name": "bench"})
        documents = [{"doc_id": str(n), "text": f"rotate key number {n}"} for n in range(50)]
        await client.post(
            "/v1/collections/bench/documents",
            json={"documents": documents},
            params={"wait": "true"},
        )
        path = "/v1/collections/bench/search"
        (await client.post(path, json=body)).raise_for_status()
        originals = {
            (kind, method): getattr(kind, method)
            for kind, method in (
                (metrics.Histogram, "record"),
                (metrics.Counter, "add"),
                (metrics.Gauge, "add"),
                (Stage, "__enter__"),
            )
        }
        for kind, method in originals:
            counting(counts, kind, method)
        (await client.post(path, json=body)).raise_for_status()
        for (kind, method), original in originals.items():
            setattr(kind, method, original)
    return counts


def microseconds(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=REPEATS, repeat=ROUNDS)) / REPEATS * 1e6


def a_stage() -> None:
    with stage("bench"):
        pass


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="braid-bench-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder))
        dsn = postgres.start()
        try:
            asyncio.run(migrate(dsn))
            telemetry = configure_telemetry(Settings(database_url=dsn, log_level="error"))
            counts = asyncio.run(records_of_a_search(dsn))
        finally:
            postgres.stop()
    with trace.get_tracer("bench").start_as_current_span("request"):
        record = microseconds(lambda: SEARCH_STAGE_DURATION.record(0.01, "dense", "hybrid", "ok"))
        add = microseconds(lambda: CACHE_REQUESTS.add(1, "access", "hit"))
        staged = microseconds(a_stage)
    sdk = MeterProvider(metric_readers=[InMemoryMetricReader()]).get_meter("bench")
    histogram = sdk.create_histogram("bench")
    labels = {"stage": "dense", "mode": "hybrid", "outcome": "ok"}
    of_sdk = microseconds(lambda: histogram.record(0.01, labels))
    records, stages = counts["Histogram.record"], counts["Stage.__enter__"]
    adds = counts["Counter.add"] + counts["Gauge.add"]
    print(f"histogram record {record:.2f} us, counter {add:.2f} us, stage {staged:.2f} us")
    print(f"histogram record of the OpenTelemetry SDK {of_sdk:.2f} us")
    total = records * record + adds * add + stages * staged
    print(f"a hybrid search: {records} records, {adds} additions, {stages} stages: {total:.1f} us")
    print("target at most 100 us")
    telemetry.shutdown()


if __name__ == "__main__":
    main()
