"""Asking for a re-index: what it would change and cost, its start, its end, the way back."""

import asyncio

import msgspec

from service.db.builds import (
    count_behind,
    end_job,
    find_build,
    give_up_build,
    reopen_build,
    retry_failures,
    start_build,
)
from service.db.documents import hold_generation
from service.db.extent import Extent, extent_of
from service.db.jobs import insert_job, job_kind, set_documents
from service.db.pool import Connection, Database
from service.db.queue import enqueue
from service.errors import ConflictError, NotFoundError
from service.indexing.carrying import Change, change_between
from service.indexing.context import recipe
from service.models import Collection, Generation, JobStatus
from service.providers.base import Embedder, EmbedderSource
from service.providers.embedders import is_free

CLIENT_VECTORS = (
    "the vectors of this collection are its clients': no other model can make them;"
    " make a new collection and send the documents with their new vectors"
)
SETTINGS = {
    "language": ("language",),
    "analyzer": ("analyzer",),
    "embedding": ("provider", "model", "dim"),
    "chunking": ("chunk_size", "chunk_overlap"),
    "bm25": ("k1", "b"),
    "contextual": ("contextual",),
}
MOST_DOCUMENTS = 2**31 - 1
NOT_OVER: tuple[JobStatus, ...] = ("pending", "processing", "paused", "error")


class ReindexPlan(msgspec.Struct, frozen=True):
    """What a re-index would do; of large collections numbers are estimates.

    `cost_usd` is null when it is unknown.
    """

    changes: list[str]
    documents: int
    chunks: int
    """With summaries, as they are now."""
    reused_vectors: int
    embedded_chunks: int
    model_headers: int
    """Chunks that a model is asked about."""
    embedding_tokens: int
    cost_usd: float | None


def changed_settings(active: Generation, wanted: Generation) -> list[str]:
    """Names of the settings that differ."""
    return [
        name
        for name, fields in SETTINGS.items()
        if any(getattr(active, field) != getattr(wanted, field) for field in fields)
    ]


async def plan_reindex(
    database: Database, embedders: EmbedderSource, active: Generation, wanted: Generation
) -> ReindexPlan:
    """What building `wanted` beside `active` would do; raises `ConflictError` if it cannot be."""
    async with database.write(active.team_id) as connection:
        extent = await extent_of(connection, active)
    change = change_between(active, wanted)
    if not change.same_model and active.provider == "none" and extent.any_own:
        raise ConflictError(CLIENT_VECTORS)
    headers = extent.rows if wanted.contextual.by_model and not change.same_headers else 0
    embedded = _rows_to_embed(extent, change)
    if change.embeds and change.same_model and _embeds_other_texts(active, wanted):
        embedded = extent.rows
    embedder = await embedders.get(wanted) if embedded else None
    tokens = 0
    if embedder is not None:
        tokens = await asyncio.to_thread(_estimate_tokens, embedder, extent, embedded)
    return ReindexPlan(
        changes=changed_settings(active, wanted),
        documents=extent.documents,
        chunks=extent.rows,
        reused_vectors=max(extent.embedded - embedded, 0) if change.same_model else 0,
        embedded_chunks=embedded,
        model_headers=headers,
        embedding_tokens=tokens,
        cost_usd=0.0 if headers == 0 and (tokens == 0 or is_free(wanted.provider)) else None,
    )


def _embeds_other_texts(active: Generation, wanted: Generation) -> bool:
    """Whether headers that are embedded come, go or change."""
    before = recipe(active.contextual) if active.contextual.embedded else None
    return before != (recipe(wanted.contextual) if wanted.contextual.embedded else None)


def _rows_to_embed(extent: Extent, change: Change) -> int:
    if not change.embeds:
        return 0
    if not change.same_model:
        return extent.rows
    return extent.raw if change.resplit else 0


def _estimate_tokens(embedder: Embedder, extent: Extent, rows: int) -> int:
    """Tokens of some texts, scaled to those that are embedded."""
    characters = sum(len(text) for text in extent.texts)
    if not characters or not extent.rows:
        return 0
    tokens = sum(embedder.count_tokens(text) for text in extent.texts)
    return round(extent.characters * tokens / characters * rows / extent.rows)


async def start_reindex(
    database: Database, collection: Collection, wanted: Generation, plan: ReindexPlan
) -> int:
    """Begin building `wanted`; the id of the job. Raises `ConflictError`, `NotFoundError`."""
    async with database.write(collection.team_id) as connection:
        active = await hold_generation(connection, collection.id)
        if active.id != collection.generation.id:
            raise ConflictError("the collection was re-indexed meanwhile")
        job_id = await insert_job(
            connection,
            collection.team_id,
            collection.id,
            documents=plan.documents,
            kind="reindex",
        )
        await start_build(connection, wanted, job_id)
        await enqueue(connection, collection.team_id, job_id, "reindex")
    return job_id


async def start_rollback(database: Database, collection: Collection) -> int:
    """Begin returning to the generation before the active one; the id of the job.

    It first follows what was published since. Raises `ConflictError`, `NotFoundError`.
    """
    async with database.write(collection.team_id) as connection:
        await hold_generation(connection, collection.id)
        job_id = await insert_job(
            connection, collection.team_id, collection.id, documents=0, kind="reindex"
        )
        await reopen_build(connection, collection.id, job_id)
        build = await find_build(connection, job_id)
        assert build is not None
        behind = await count_behind(connection, build, MOST_DOCUMENTS)
        await set_documents(connection, job_id, behind)
        await enqueue(connection, collection.team_id, job_id, "reindex")
    return job_id


async def pause_reindex(database: Database, collection: Collection, job_id: int) -> None:
    """Let a re-index rest; raises `ConflictError` when it is not going on, `NotFoundError`."""
    async with database.write(collection.team_id) as connection:
        await _check_kind(connection, collection, job_id)
        if not await end_job(connection, job_id, "paused", among=("pending", "processing")):
            raise ConflictError("only a re-index that goes on can be paused")


async def resume_reindex(database: Database, collection: Collection, job_id: int) -> None:
    """Let a paused re-index go on, or one that failed try again what failed.

    Raises `ConflictError` for any other, `NotFoundError`.
    """
    async with database.write(collection.team_id) as connection:
        await _check_kind(connection, collection, job_id)
        build = await find_build(connection, job_id)
        if build is None:
            raise ConflictError("this re-index is over")
        await retry_failures(connection, build)
        if not await end_job(connection, job_id, "pending", among=("paused", "error")):
            raise ConflictError("only a re-index that is paused or failed can be resumed")
        await enqueue(connection, collection.team_id, job_id, "reindex")


async def cancel_reindex(database: Database, collection: Collection, job_id: int) -> None:
    """End a re-index; what it built is dropped. Raises `ConflictError`, `NotFoundError`."""
    async with database.write(collection.team_id) as connection:
        await _check_kind(connection, collection, job_id)
        await give_up_build(connection, job_id)
        if not await end_job(connection, job_id, "cancelled", among=NOT_OVER):
            raise ConflictError("this re-index is over")


async def _check_kind(connection: Connection, collection: Collection, job_id: int) -> None:
    kind = await job_kind(connection, collection.id, job_id)
    if kind is None:
        raise NotFoundError("unknown job")
    if kind != "reindex":
        raise ConflictError("only a re-index can be paused, resumed or cancelled")
