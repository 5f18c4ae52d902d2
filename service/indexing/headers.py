"""Headers for the chunks of a batch: those that were made before, and calls for the others."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

import msgspec

from service.db.jobs import JobProgress, add_progress
from service.db.pool import Database
from service.db.prepared import Prepared, PreparedByHash, keep_prepared
from service.errors import ProviderError, ProviderRefusalError
from service.indexing.context import place_in
from service.indexing.persistence import persistently
from service.indexing.services import IndexingServices
from service.indexing.situating import Situated, Wish, Wishes, situate
from service.models import Contextual, Generation
from service.providers.base import Header
from service.telemetry import log

MISSING = "{} chunks have no header yet, the worker makes them later: {}"


class Chunk(Protocol):
    """What a header needs to know of a record."""

    @property
    def text(self) -> str:
        """The chunk's own text."""
        ...

    @property
    def start(self) -> int | None:
        """Where it begins in the document's text, if it was split from it."""
        ...

    @property
    def content_hash(self) -> bytes:
        """What the header is kept by until the chunk is written."""
        ...


class Unsituated(msgspec.Struct, frozen=True):
    """A document and those of its chunks that a model is to situate."""

    id: int
    doc_id: str
    title: str | None
    text: str
    chunks: Mapping[Hashable, Chunk]


class Headers(msgspec.Struct, frozen=True):
    """Headers by chunk, None where the model has nothing to say; chunks left out are due."""

    by_key: Mapping[Hashable, str | None]
    warnings: Sequence[str] = ()


async def as_allowed(services: IndexingServices, generation: Generation) -> Generation:
    """The generation without headers when its team's flag `contextual_retrieval` is off."""
    if not generation.contextual.enabled or await services.headers_allowed(generation.team_id):
        return generation
    return msgspec.structs.replace(generation, contextual=Contextual())


class HeaderStage:
    """Makes headers for one job and one generation; each is stored before the next is asked for."""

    def __init__(self, services: IndexingServices, generation: Generation, job_id: int) -> None:
        self._database: Database = services.database
        self._contextualizers = services.contextualizers
        self._generation = generation
        self._job_id = job_id

    async def make(
        self, documents: Sequence[Unsituated], made: PreparedByHash, *, insist: bool = False
    ) -> Headers:
        """Headers for the chunks of documents; raises `UnavailableError`.

        With `insist` a provider that is out of reach is no reason to do without: raises
        `ProviderError`.
        """
        known: dict[Hashable, str | None] = {}
        places: dict[Hashable, tuple[int, bytes]] = {}
        wishes = []
        for document in documents:
            missing = {}
            for key, chunk in document.chunks.items():
                place = places[key] = (document.id, chunk.content_hash)
                before = made.get(place)
                if before is None or before.context is None:
                    missing[key] = chunk
                else:
                    known[key] = before.context or None
            if missing:
                wishes.append(_wishes(document, missing))
        if not wishes:
            return Headers(known)
        situated = await self._situate(wishes, places)
        if insist:
            _raise_if_out_of_reach(situated)
        known.update({key: text or None for key, text in situated.headers.items()})
        return Headers(known, await self._count_failures(situated))

    async def _situate(
        self, wishes: Sequence[Wishes], places: Mapping[Hashable, tuple[int, bytes]]
    ) -> Situated:
        async def keep(key: Hashable, header: Header) -> None:
            await persistently(lambda: self._keep(places[key], header))

        try:
            contextualizer = await self._contextualizers.get(self._generation)
        except ProviderError as error:
            keys = [wish.key for one in wishes for wish in one.chunks]
            return Situated(failures=dict.fromkeys(keys, error))
        return await situate(contextualizer, wishes, keep)

    async def _keep(self, place: tuple[int, bytes], header: Header) -> None:
        made = {place: Prepared(context=header.text)}
        async with self._database.write(self._generation.team_id) as connection:
            await keep_prepared(connection, self._generation, made)
            await add_progress(connection, self._job_id, JobProgress(usage=counts(header)))

    async def _count_failures(self, situated: Situated) -> list[str]:
        failures = situated.failures
        if not failures:
            return situated.warnings
        reason = str(next(iter(failures.values())))
        log.warning("chunks without headers", job=self._job_id, chunks=len(failures), reason=reason)
        async with self._database.write(self._generation.team_id) as connection:
            counted = JobProgress(usage={"context_failures": len(failures)})
            await add_progress(connection, self._job_id, counted)
        return [*situated.warnings, MISSING.format(len(failures), reason)]


def _raise_if_out_of_reach(situated: Situated) -> None:
    for error in situated.failures.values():
        if error.transient or isinstance(error, ProviderRefusalError):
            raise ProviderError(str(error), transient=True, retry_after=error.retry_after)


def counts(header: Header) -> dict[str, int]:
    """What a header cost, by the names under which its job counts it."""
    usage = header.usage
    return {
        "context_calls": 1,
        "context_input_tokens": usage.input,
        "context_cache_write_tokens": usage.cache_write,
        "context_cached_tokens": usage.cache_read,
        "context_output_tokens": usage.output,
    }


def _wishes(document: Unsituated, missing: Mapping[Hashable, Chunk]) -> Wishes:
    wishes = [
        Wish(key, chunk.text, *place_in(document.text, chunk.text, chunk.start))
        for key, chunk in missing.items()
    ]
    return Wishes(document.doc_id, document.text, document.title, wishes)
