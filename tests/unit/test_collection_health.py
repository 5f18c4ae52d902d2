"""What an audit is judged as: severities, and a way to set right whatever is wrong."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from support.rows import generation_of

from service.app import openapi
from service.db.audit import (
    Audit,
    FailedDocument,
    HeaderState,
    IndexState,
    JobState,
    OtherGeneration,
    TableState,
    VectorIndexState,
)
from service.db.segments import Segment
from service.indexing.health import CollectionHealth, judge
from service.models import Collection, SearchDefaults, VectorIndex

NOW = datetime(2024, 1, 1, tzinfo=UTC)
TABLE = TableState(
    rows=10_000,
    estimated=False,
    without_vector=0,
    dead=0,
    modified=0,
    bytes=1,
    analyzed_at=NOW,
    vacuumed_at=NOW,
)
WELL = Audit(
    indexes=[IndexState("chunks_tsv", "chunks_7_tsv_idx", valid=True)],
    vector_index=VectorIndexState("auto", None, None, None, None),
    table=TABLE,
    segments=[Segment(1, 0, 10_001, 10_000, 100.0)],
    packed_alive=10_000,
    fresh=0,
    failed=0,
    failures=[],
    average_length=100.0,
    jobs=JobState(0, 0, None, None, None),
    generations=[],
    headers=HeaderState(0, 0, 0),
)
HNSW = VectorIndex("none", 10_000, 100)
WITH_HNSW = VectorIndexState("auto", 10_000, 0.995, None, ["chunks_7_hnsw"])
BELOW = VectorIndexState("auto", 10_000, 0.9, "recall is low", ["chunks_7_hnsw"])
INDEX = "POST /v1/collections/docs/index"
OLD = OtherGeneration(8, "retired", 3, "done", 0)
PATHS = openapi()["paths"]
OPEN = JobState(1, 0, 5.0, 5.0, None)
REINDEX = "POST /v1/collections/docs/reindex"
POST = "POST /v1/collections/docs/documents"


def judged(
    provider: str = "local",
    dim: int | None = 3,
    index: VectorIndex | None = None,
    **changes: Any,
) -> CollectionHealth:
    generation = generation_of(7, provider=provider, dim=dim)
    table = {key: changes.pop(key) for key in list(changes) if hasattr(TABLE, key)}
    audit = msgspec.structs.replace(WELL, table=msgspec.structs.replace(TABLE, **table), **changes)
    generation = msgspec.structs.replace(generation, vector_index=index)
    return judge(Collection(1, 1, "docs", SearchDefaults(), generation), audit)


def test_nothing_wrong_is_ok_everywhere_and_needs_no_fix() -> None:
    health = judged()
    assert (health.collection, health.generation, health.status) == ("docs", 7, "ok")
    assert {check.severity for check in health.checks} == {"ok"}
    assert {check.fix for check in health.checks} == {None}


@pytest.mark.parametrize(
    ("changes", "name", "severity", "fix"),
    [
        ({"indexes": [IndexState("chunks_tsv", None, valid=False)]}, "indexes", "error", REINDEX),
        (
            {"indexes": [IndexState("chunks_tsv", "chunks_7_tsv_idx", valid=False)]},
            "indexes",
            "error",
            "REINDEX TABLE CONCURRENTLY braid.chunks_7",
        ),
        ({"dim": 2_000}, "vector_index", "warning", INDEX),
        ({"dim": 2_000, "jobs": OPEN}, "vector_index", "info", None),
        ({"index": HNSW}, "vector_index", "error", INDEX),
        (
            {"index": VectorIndex("none", 10_000, None), "vector_index": BELOW},
            "vector_index",
            "warning",
            "target_recall",
        ),
        ({"analyzed_at": None}, "statistics", "warning", "ANALYZE braid.chunks_7"),
        ({"modified": 6_000}, "statistics", "warning", "ANALYZE braid.chunks_7"),
        ({"dead": 6_000}, "dead_rows", "warning", "VACUUM (ANALYZE) braid.chunks_7"),
        ({"without_vector": 1}, "vectors", "warning", REINDEX),
        ({"without_vector": 1, "provider": "none"}, "vectors", "info", POST),
        ({"headers": HeaderState(3, 0, 0)}, "headers", "warning", REINDEX),
        ({"headers": HeaderState(3, 0, 0), "jobs": OPEN}, "headers", "info", None),
        ({"segments": [], "packed_alive": 0}, "packed_postings", "warning", REINDEX),
        ({"fresh": 5_000}, "packed_postings", "warning", REINDEX),
        ({"packed_alive": 5_000}, "packed_postings", "warning", REINDEX),
        ({"fresh": 5_000, "jobs": OPEN}, "packed_postings", "info", None),
        ({"average_length": 130.0}, "average_length", "warning", REINDEX),
        ({"average_length": 130.0, "jobs": OPEN}, "average_length", "info", None),
        ({"failed": 1, "failures": [FailedDocument("a", "why")]}, "documents", "warning", POST),
        ({"jobs": OPEN}, "jobs", "info", None),
        ({"jobs": JobState(1, 0, 900.0, 900.0, None)}, "jobs", "warning", "braid worker"),
        ({"generations": [OLD]}, "generations", "info", None),
        (
            {"generations": [OtherGeneration(8, "building", 3, "processing", 0)]},
            "generations",
            "info",
            None,
        ),
        (
            {"generations": [OtherGeneration(8, "building", 3, "error", 2)]},
            "generations",
            "warning",
            "POST /v1/collections/docs/jobs/3/resume",
        ),
        (
            {"generations": [OtherGeneration(8, "building", 3, "paused", 0)]},
            "generations",
            "info",
            "POST /v1/collections/docs/jobs/3/resume",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_sets_it_right(
    changes: dict[str, Any], name: str, severity: str, fix: str | None
) -> None:
    health = judged(**changes)
    (check,) = [one for one in health.checks if one.name == name]
    assert check.severity == severity == health.status
    assert fix == check.fix or (fix is not None and fix in (check.fix or ""))
    if check.fix and check.fix.startswith("POST "):
        route = (
            check.fix.removeprefix("POST ").replace("/docs", "/{name}").replace("/3/", "/{job_id}/")
        )
        assert "post" in PATHS[route]
    others = [one.severity for one in health.checks if one.name != name]
    assert set(others) <= {"ok", "info"}


@pytest.mark.parametrize(
    "changes",
    [
        {"dim": None, "without_vector": 10_000},
        {"rows": 2_000, "modified": 2_000, "analyzed_at": None},
        {"dead": 2_000, "rows": 100},
        {"rows": 4_000, "segments": [], "packed_alive": 0},
        {"average_length": None},
        {"jobs": JobState(1, 1, 300.0, 300.0, None)},
        {"index": HNSW, "vector_index": WITH_HNSW, "dim": 2_000},
        {"vector_index": VectorIndexState("exact", None, None, None, None), "dim": 2_000},
    ],
)
def test_what_nobody_can_feel_is_no_finding(changes: dict[str, Any]) -> None:
    assert judged(**changes).status in ("ok", "info")
    assert {check.fix for check in judged(**changes).checks} == {None}
