"""The legs of a search in one collection, run at once and each within its time."""

import asyncio
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from service.db.candidates import CandidateQuery
from service.db.flags import Flags
from service.db.pool import Database
from service.db.replicas import Replicas
from service.errors import ProviderError
from service.models import Candidate, Generation, Vector
from service.providers.base import EmbedderSource, RerankerSource
from service.search.dense import FilterShares, dense_leg
from service.search.fusion import Leg
from service.search.lexical import CorpusCache, LexicalAnswer, lexical_leg
from service.search.progress import Deadline, NoEmbedderError, Progress
from service.search.request import SearchPlan
from service.telemetry import Stage

ModelKey: TypeAlias = tuple[str, str | None, int | None, str | None]
EMBEDDING_SHARE = 0.7


class SearchServices(msgspec.Struct, frozen=True):
    """What a search needs from the process it runs in."""

    database: Database
    embedders: EmbedderSource
    corpus: CorpusCache
    rerankers: RerankerSource | None = None
    shares: FilterShares = msgspec.field(default_factory=FilterShares)
    replicas: Replicas | None = None
    flags: Flags | None = None

    def hybrid_for(self, team_id: int) -> bool:
        """Whether searches of a team may use both legs."""
        return self.flags is None or self.flags.on("hybrid_search", team_id)


class Legs(msgspec.Struct, frozen=True):
    """The candidates of the legs that answered, those under a threshold left out."""

    found: Mapping[Leg, list[Candidate]]
    exhausted: bool
    """No leg has more to give."""
    lexical: LexicalAnswer | None


class QueryVectors:
    """The query's vector by model: made once, however many collections ask for it."""

    def __init__(self, embedders: EmbedderSource, text: str | None) -> None:
        self._embedders = embedders
        self._text = text or ""
        self._made: dict[ModelKey, Vector | ProviderError] = {}
        self._busy: dict[ModelKey, asyncio.Lock] = {}

    async def of(self, generation: Generation) -> Vector:
        """The vector in the space of a generation; raises `ProviderError`."""
        key = (generation.provider, generation.model, generation.dim, generation.base_url)
        async with self._busy.setdefault(key, asyncio.Lock()):
            if key not in self._made:
                try:
                    self._made[key] = await self._embed(generation)
                except ProviderError as error:
                    self._made[key] = error
        made = self._made[key]
        if isinstance(made, ProviderError):
            raise made
        return made

    async def _embed(self, generation: Generation) -> Vector:
        embedder = await self._embedders.get(generation)
        if embedder is None:
            raise NoEmbedderError("the collection has no embedder")
        return await embedder.embed_query(self._text)


class CollectionLegs:
    """What a search does in one of its collections."""

    def __init__(
        self, services: SearchServices, plan: SearchPlan, vectors: QueryVectors, deadline: Deadline
    ) -> None:
        self.plan = plan
        self.progress = Progress(deadline)
        self.vector: Vector | None = plan.vector
        self.best: dict[Leg, float] = {}
        """Best score seen on each scale that has a threshold."""
        self._services = services
        self._vectors = vectors
        self._deadline = deadline

    async def run(self, limit: int) -> Legs:
        """Both legs at once, each on its own connection; the lexical one awaits no embedding."""
        plan = self.plan
        query = CandidateQuery(
            generation_id=plan.collection.generation.id,
            scope=plan.request.scope,
            filter=plan.filter,
            limit=limit,
            per_document=plan.per_document,
        )
        # The dense statement is under way while the lexical leg still prepares its words.
        dense, lexical = await asyncio.gather(self._dense(query), self._lexical(query))
        found: dict[Leg, list[Candidate]] = {}
        if dense is not None:
            found["dense"] = dense
        if lexical is not None:
            found["lexical"] = lexical.candidates
        kept = {leg: self._passing(leg, candidates) for leg, candidates in found.items()}
        exhausted = all(
            len(found[leg]) < limit or len(kept[leg]) < len(found[leg]) for leg in found
        )
        return Legs(kept, exhausted, lexical)

    async def _lexical(self, query: CandidateQuery) -> LexicalAnswer | None:
        if self.plan.mode == "vector":
            return None
        services = self._services

        async def run(stage: Stage) -> LexicalAnswer:
            answer = await lexical_leg(services.database, services.corpus, self.plan, query)
            stage.facts["pool"] = query.limit
            stage.facts["candidates"] = len(answer.candidates)
            stage.facts["terms_used"] = len(answer.weights)
            stage.facts["exact"] = answer.exact
            stage.facts["path"] = answer.path
            return answer

        return await self.progress.attempt("lexical", self._deadline.for_legs(), run)

    async def _dense(self, query: CandidateQuery) -> list[Candidate] | None:
        if self.plan.mode == "text":
            return None
        if self.vector is None:
            seconds = EMBEDDING_SHARE * self._deadline.for_legs()
            self.vector = await self.progress.attempt("embed", seconds, self._embed)
        vector = self.vector
        if vector is None:
            self.progress.stages["dense"] = {"status": "skipped", "ms": 0.0}
            return None

        services = self._services

        async def run(stage: Stage) -> list[Candidate]:
            answer = await dense_leg(services.database, services.shares, self.plan, query, vector)
            stage.facts["pool"] = query.limit
            stage.facts["candidates"] = len(answer.candidates)
            stage.facts["method"] = answer.method
            if answer.ef_search is not None:
                stage.facts["ef_search"] = answer.ef_search
            return answer.candidates

        return await self.progress.attempt("dense", self._deadline.for_legs(), run)

    async def _embed(self, _stage: Stage) -> Vector:
        return await self._vectors.of(self.plan.collection.generation)

    def _passing(self, leg: Leg, candidates: list[Candidate]) -> list[Candidate]:
        least = getattr(self.plan.request.min_score, leg)
        if least is None:
            return candidates
        if candidates:
            self.best[leg] = candidates[0].score
        return [one for one in candidates if one.score >= least]
