"""Judges the audit of a collection: what is wrong, how bad it is, and what sets it right; pure."""

from typing import Any, Literal

import msgspec

from service.db.audit import Audit
from service.db.dense import EXACT_COMPONENTS
from service.db.vector_index import index_name
from service.indexing.packing import DEAD_SHARE, DRIFT, FRESH_ROWS
from service.models import Collection

Severity = Literal["ok", "info", "warning", "error"]
ORDER: tuple[Severity, ...] = ("ok", "info", "warning", "error")

LOWER_TARGET = '{"search": {"target_recall": 0.95}}'
SMALL_ROWS = 2_000
"""Below it nothing of a table's state can be felt."""
STALE_SHARE = 0.5
"""Rows changed since the statistics were made; the worker renews them from a fifth on."""
DEAD_ROWS_SHARE = 0.3
IDLE_SECONDS = 60.0
"""A worker that is there begins with a waiting job sooner."""
STUCK_SECONDS = 900.0
"""One that is at work writes down how far it is more often."""
RESTING = ("paused", "error")


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    severity: Severity
    detail: str
    facts: dict[str, Any]
    fix: str | None = None
    """The call, command or SQL statement that sets it right."""


class CollectionHealth(msgspec.Struct, frozen=True):
    """An audit of a collection; `status` is its worst severity."""

    collection: str
    generation: int
    status: Severity
    checks: list[Check]


def judge(collection: Collection, audit: Audit) -> CollectionHealth:
    """All checks of a collection, those that are well too."""
    checks = [
        _indexes(collection, audit),
        _vector_index(collection, audit),
        _statistics(collection, audit),
        _dead_rows(collection, audit),
        _vectors(collection, audit),
        _headers(collection, audit),
        _packed_postings(collection, audit),
        _average_length(collection, audit),
        _documents(collection, audit),
        _jobs(audit),
        _generations(collection, audit),
    ]
    worst = max(ORDER.index(check.severity) for check in checks)
    return CollectionHealth(collection.name, collection.generation.id, ORDER[worst], checks)


def _indexes(collection: Collection, audit: Audit) -> Check:
    missing = [one.of_parent for one in audit.indexes if one.name is None]
    invalid = [one.name for one in audit.indexes if one.name is not None and not one.valid]
    facts = {"indexes": len(audit.indexes), "missing": missing, "invalid": invalid}
    if not missing and not invalid:
        return Check("indexes", "ok", "every index is there and valid", facts)
    return Check(
        "indexes",
        "error",
        "an index is missing or invalid: searches read every row instead",
        facts,
        _sql(f"REINDEX TABLE CONCURRENTLY {_table(collection)}")
        if not missing
        else _reindex(collection),
    )


def _vector_index(collection: Collection, audit: Audit) -> Check:
    generation, found = collection.generation, audit.vector_index
    index = generation.vector_index
    facts = {
        "policy": found.policy,
        "indexes": found.complete or [],
        "ef_search": index and index.ef_search,
        "recall": found.recall,
        "measured_rows": found.measured_rows,
    }
    build = f"POST /v1/collections/{collection.name}/index"
    if index is not None:
        if index_name(generation.id, index.quantization) not in (found.complete or []):
            detail = "the vector index is missing or invalid: searches compare every vector"
            return Check("vector_index", "error", detail, facts, build)
        if index.ef_search is None:
            detail = f"searches compare every vector: {found.note}"
            lower = f"PATCH /v1/collections/{collection.name} " + LOWER_TARGET
            return Check("vector_index", "warning", detail, facts, lower)
        detail = "searches use the vector index"
        return Check("vector_index", "ok", detail, facts)
    large = audit.table.rows * (generation.dim or 0) > EXACT_COMPONENTS
    if found.policy == "exact" or not large:
        return Check("vector_index", "ok", "searches compare every vector", facts)
    if audit.jobs.pending or audit.jobs.processing:
        return Check("vector_index", "info", "built after the jobs that are open", facts)
    detail = "large, and without a vector index: " + (found.note or "searches compare every vector")
    return Check("vector_index", "warning", detail, facts, build)


def _statistics(collection: Collection, audit: Audit) -> Check:
    table = audit.table
    facts = {"rows": table.rows, "modified": table.modified, "analyzed_at": table.analyzed_at}
    stale = table.analyzed_at is None or table.modified > STALE_SHARE * table.rows
    if table.rows <= SMALL_ROWS or not stale:
        return Check("statistics", "ok", "the planner's statistics are fresh enough", facts)
    return Check(
        "statistics",
        "warning",
        "the planner's statistics are stale: plans and the frequencies of words may be wrong",
        facts,
        _sql(f"ANALYZE {_table(collection)}"),
    )


def _dead_rows(collection: Collection, audit: Audit) -> Check:
    table = audit.table
    share = table.dead / max(1, table.dead + table.rows)
    facts = {"dead": table.dead, "share": round(share, 3), "vacuumed_at": table.vacuumed_at}
    if table.dead <= SMALL_ROWS or share <= DEAD_ROWS_SHARE:
        return Check("dead_rows", "ok", "few rows are dead", facts)
    return Check(
        "dead_rows",
        "warning",
        "many rows are dead: searches read past them",
        facts,
        _sql(f"VACUUM (ANALYZE) {_table(collection)}"),
    )


def _vectors(collection: Collection, audit: Audit) -> Check:
    generation, without = collection.generation, audit.table.without_vector
    facts = {
        "provider": generation.provider,
        "rows": audit.table.rows,
        "without_vector": without,
        "estimated": audit.table.estimated,
    }
    if generation.dim is None:
        return Check("vectors", "ok", "the collection holds no vectors", facts)
    if not without:
        return Check("vectors", "ok", "every record has a vector", facts)
    detail = "records without a vector are found by their words only"
    if generation.provider == "none":
        return Check("vectors", "info", detail, facts, _post_documents(collection))
    return Check("vectors", "warning", detail, facts, _reindex(collection))


def _headers(collection: Collection, audit: Audit) -> Check:
    contextual, state = collection.generation.contextual, audit.headers
    tokens = state.cached_tokens + state.full_price_tokens
    facts = {
        "mode": contextual.mode if contextual.enabled else None,
        "due": state.due,
        "cache_hit_ratio": round(state.cached_tokens / tokens, 3) if tokens else None,
    }
    if not state.due:
        return Check("headers", "ok", "no chunk waits for its header", facts)
    detail = "chunks wait for the headers that situate them: they are found without"
    if audit.jobs.pending or audit.jobs.processing:
        return Check("headers", "info", detail, facts)
    return Check("headers", "warning", detail, facts, _reindex(collection))


def _packed_postings(collection: Collection, audit: Audit) -> Check:
    packed = sum(segment.rows for segment in audit.segments)
    dead = packed - audit.packed_alive
    facts = {
        "segments": len(audit.segments),
        "rows": packed,
        "dead": dead,
        "fresh": audit.fresh if audit.segments else audit.table.rows,
    }
    behind = facts["fresh"] > 2 * FRESH_ROWS
    worn = dead > max(2 * FRESH_ROWS, 2 * DEAD_SHARE * packed)
    if not behind and not worn:
        return Check("packed_postings", "ok", "posting lists are packed as far as needed", facts)
    if audit.jobs.pending or audit.jobs.processing:
        return Check("packed_postings", "info", "packed after the jobs that are open", facts)
    return Check(
        "packed_postings",
        "warning",
        "posting lists are not packed: text queries take the slower way",
        facts,
        _reindex(collection),
    )


def _average_length(collection: Collection, audit: Audit) -> Check:
    in_use, measured = collection.generation.average_length, audit.average_length
    facts = {"in_use": round(in_use, 2), "measured": measured and round(measured, 2)}
    drift = abs(measured / in_use - 1) if measured else 0.0
    if drift <= 2 * DRIFT:
        return Check("average_length", "ok", "word scores fit the texts", facts)
    if audit.jobs.pending or audit.jobs.processing:
        return Check("average_length", "info", "renewed after the jobs that are open", facts)
    return Check(
        "average_length",
        "warning",
        "word scores were computed with another average length",
        facts,
        _reindex(collection),
    )


def _documents(collection: Collection, audit: Audit) -> Check:
    examples = [{"doc_id": one.doc_id, "reason": one.reason} for one in audit.failures]
    facts = {"failed": audit.failed, "examples": examples}
    if not audit.failed:
        return Check("documents", "ok", "no document has failed", facts)
    return Check(
        "documents",
        "warning",
        "documents could not be indexed: correct them and send them again",
        facts,
        _post_documents(collection),
    )


def _jobs(audit: Audit) -> Check:
    jobs = audit.jobs
    facts = {
        "pending": jobs.pending,
        "processing": jobs.processing,
        "oldest_seconds": jobs.oldest_seconds,
        "waiting_for": jobs.waiting_for,
    }
    if not jobs.pending and not jobs.processing:
        return Check("jobs", "ok", "no job is open", facts)
    patience = STUCK_SECONDS if jobs.processing else IDLE_SECONDS
    if (jobs.idle_seconds or 0.0) <= patience:
        return Check("jobs", "info", "jobs are open", facts)
    detail = "no job has moved for a while: " + (jobs.waiting_for or "is a worker running?")
    return Check("jobs", "warning", detail, facts, "braid worker")


def _generations(collection: Collection, audit: Audit) -> Check:
    others = audit.generations
    facts = {"others": [msgspec.structs.asdict(one) for one in others]}
    if not others:
        return Check("generations", "ok", "there is no generation but the active one", facts)
    stopped = [one for one in others if one.state == "building" and one.job_status in RESTING]
    if not stopped:
        detail = "another generation is built, or kept to go back to"
        return Check("generations", "info", detail, facts)
    one = stopped[0]
    return Check(
        "generations",
        "info" if one.job_status == "paused" else "warning",
        f"a re-index rests, {one.failures} documents could not be carried over",
        facts,
        f"POST /v1/collections/{collection.name}/jobs/{one.job_id}/resume",
    )


def _table(collection: Collection) -> str:
    return f"braid.chunks_{collection.generation.id:d}"


def _sql(statement: str) -> str:
    return f'psql "$BRAID_DATABASE_URL" -c "{statement}"'


def _reindex(collection: Collection) -> str:
    return f"POST /v1/collections/{collection.name}/reindex"


def _post_documents(collection: Collection) -> str:
    return f"POST /v1/collections/{collection.name}/documents"
