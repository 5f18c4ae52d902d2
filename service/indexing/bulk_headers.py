"""Headers for a large job by the provider's batches, before its documents are indexed.

What is submitted is written down at once, so another worker goes on where one stopped. Answers are
kept like any header that was made ahead; what a batch leaves open is asked for in the usual way.
"""

from collections.abc import Mapping, Sequence

from service.db.chunks import stored_rows
from service.db.context_batches import (
    ContextBatch,
    batches_of,
    insert_batch,
    mark_read,
    next_ingests,
    payload_bytes,
)
from service.db.ingests import ClaimedIngest
from service.db.jobs import JobProgress, add_progress
from service.db.prepared import Prepared, PreparedByHash, keep_prepared, prepared_for
from service.errors import ProviderError
from service.indexing.abandon import AbandonedError, Checkpoint, in_thread
from service.indexing.chunking import chunking_of
from service.indexing.context import place_in, whole_text, window_size, window_start
from service.indexing.headers import counts
from service.indexing.payload import unpack
from service.indexing.planning import plan_records
from service.indexing.services import IndexingServices
from service.indexing.situating import WINDOW_TOKENS
from service.indexing.splitting import Chunking
from service.indexing.writing import PlannedDocument
from service.models import Generation
from service.providers.base import BulkContextualizer, Passage
from service.telemetry import log

AUTO_CHUNKS = 2_000
BYTES_A_TOKEN = 4
MAX_REQUESTS = 10_000
MAX_BYTES = 32 * 2**20
DOCUMENTS = 100
POLL_SECONDS = 60.0
PATIENCE_SECONDS = 90_000.0
"""Batches end within a day; one that has not by then is given up."""


class BulkHeaders:
    """The batches of one job."""

    def __init__(self, services: IndexingServices, generation: Generation, job_id: int) -> None:
        self._services = services
        self._database = services.database
        self._generation = generation
        self._job_id = job_id

    async def step(self) -> float | None:
        """Submit or read what is due; seconds to wait, None when documents can be indexed.

        Raises `ProviderError` when trying again later can help.
        """
        if not await self._is_wanted():
            return None
        try:
            bulk = await self._services.contextualizers.bulk(self._generation)
            if bulk is None:
                return None
            await self._submit(bulk)
            return await self._read(bulk)
        except ProviderError as error:
            if error.transient:
                raise
            log.warning("batch of headers given up", job=self._job_id, reason=str(error))
            return None

    async def _is_wanted(self) -> bool:
        contextual = self._generation.contextual
        if not contextual.by_model or contextual.batch == "never":
            return False
        async with self._database.write(self._generation.team_id) as connection:
            if contextual.batch == "always" or await self._batches():
                return True
            size = await payload_bytes(connection, self._job_id)
        return size > AUTO_CHUNKS * self._generation.chunk_size * BYTES_A_TOKEN

    async def _batches(self) -> Sequence[ContextBatch]:
        async with self._database.write(self._generation.team_id) as connection:
            return await batches_of(connection, self._job_id, self._generation.id)

    async def _submit(self, bulk: BulkContextualizer) -> None:
        """Submit what is not yet; each batch ends with a whole document."""
        batches = await self._batches()
        complete = any(batch.complete for batch in batches)
        after = max((batch.last_ingest for batch in batches), default=0)
        embedder = await self._services.embedders.get(self._generation)
        chunking = chunking_of(self._generation, embedder)
        while not complete:
            passages: dict[str, Passage] = {}
            size = 0
            while len(passages) < MAX_REQUESTS and size < MAX_BYTES and not complete:
                ingests = await self._next(after)
                complete = not ingests
                for ingest, found in await self._passages(ingests, chunking):
                    more = sum(len(one.document) + len(one.text) for one in found.values())
                    # Of one that is too large for a batch each chunk is asked for by itself.
                    if more <= MAX_BYTES:
                        passages |= found
                        size += more
                    after = ingest.id
            await self._submit_one(bulk, passages, after, complete=complete)

    async def _next(self, after: int) -> list[ClaimedIngest]:
        async with self._database.write(self._generation.team_id) as connection:
            return await next_ingests(connection, self._job_id, after, DOCUMENTS)

    async def _submit_one(
        self,
        bulk: BulkContextualizer,
        passages: Mapping[str, Passage],
        last: int,
        *,
        complete: bool,
    ) -> None:
        name = await bulk.submit(passages) if passages else None
        async with self._database.write(self._generation.team_id) as connection:
            await insert_batch(
                connection,
                self._generation,
                self._job_id,
                name,
                last_ingest=last,
                complete=complete,
            )
        if name is not None:
            log.info("batch of headers submitted", job=self._job_id, chunks=len(passages))

    async def _passages(
        self, ingests: Sequence[ClaimedIngest], chunking: Chunking
    ) -> list[tuple[ClaimedIngest, dict[str, Passage]]]:
        """What has to be asked about each document."""
        documents = [ingest.document for ingest in ingests]
        async with self._database.write(self._generation.team_id) as connection:
            stored = await stored_rows(connection, self._generation.id, documents)
            prepared = await prepared_for(connection, self._generation.id, documents)

        def plan(checkpoint: Checkpoint) -> list[tuple[ClaimedIngest, dict[str, Passage]]]:
            found: list[tuple[ClaimedIngest, dict[str, Passage]]] = []
            for ingest in ingests:
                try:
                    planned = self._plan(ingest, chunking, checkpoint)
                except AbandonedError:
                    raise
                except Exception:  # noqa: BLE001 - it fails by name when it is indexed
                    found.append((ingest, {}))
                    continue
                added = planned.against(stored[ingest.document]).added
                found.append((ingest, _asked(planned, added, prepared)))
            return found

        return await in_thread(plan)

    def _plan(
        self, ingest: ClaimedIngest, chunking: Chunking, checkpoint: Checkpoint
    ) -> PlannedDocument:
        document = unpack(ingest.payload)
        records = plan_records(ingest.doc_id, document, self._generation, chunking, checkpoint)
        return PlannedDocument(ingest, document, records)

    async def _read(self, bulk: BulkContextualizer) -> float | None:
        waiting = False
        for batch in await self._batches():
            if not batch.read and not await self._read_one(bulk, batch):
                waiting = True
        return POLL_SECONDS if waiting else None

    async def _read_one(self, bulk: BulkContextualizer, batch: ContextBatch) -> bool:
        """Keep the answers of a batch; whether nothing more is to be had from it."""
        made: dict[tuple[int, bytes], Prepared] = {}
        usage: dict[str, int] = {}
        if batch.provider_batch is not None and batch.age_seconds < PATIENCE_SECONDS:
            if not await bulk.has_ended(batch.provider_batch):
                return False
            for name, header in (await bulk.headers(batch.provider_batch)).items():
                made[_place(name)] = Prepared(context=header.text)
                for key, count in counts(header).items():
                    usage[key] = usage.get(key, 0) + count
        async with self._database.write(self._generation.team_id) as connection:
            await keep_prepared(connection, self._generation, made)
            await add_progress(connection, self._job_id, JobProgress(usage=usage))
            await mark_read(connection, batch.id)
        return True


def _asked(
    planned: PlannedDocument, added: Sequence[int], prepared: PreparedByHash
) -> dict[str, Passage]:
    """The chunks that need a header, each with what is around it, by an id that leads back."""
    document = planned.document
    text = whole_text(document.text, document.chunks)
    window = window_size(text, WINDOW_TOKENS)
    asked = {}
    for at in added:
        record = planned.records[at]
        place = (planned.ingest.document, record.content_hash)
        if not record.situate or not record.text or place in prepared:
            continue
        start = window_start(len(text), window, *place_in(text, record.text, record.start))
        asked[_name(*place)] = Passage(record.text, text[start : start + window], document.title)
    return asked


def _name(document: int, content_hash: bytes) -> str:
    return f"{document}-{content_hash.hex()}"


def _place(name: str) -> tuple[int, bytes]:
    document, _, content_hash = name.partition("-")
    return int(document), bytes.fromhex(content_hash)
