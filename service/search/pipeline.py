"""`search_collection`, the one way in for every caller: legs, fusion, grouping, hydration."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from service.db.candidates import CandidateQuery
from service.db.pool import Database
from service.db.vectors import stored_vectors
from service.errors import ProviderError, UnavailableError
from service.models import Candidate, Collection, Vector
from service.providers.base import EmbedderSource
from service.search.dense import FilterShares, dense_leg
from service.search.diversity import diversify, leaders
from service.search.fusion import Fused, FusionRule, Leg, choose_rule, fuse, single_leg
from service.search.grouping import (
    Selection,
    capped,
    of_documents,
    select_chunks,
    select_documents,
)
from service.search.lexical import CorpusCache, LexicalAnswer, lexical_leg
from service.search.present import Asked, Presented, present
from service.search.request import SearchPlan, SearchRequest, plan_search
from service.search.response import (
    Degradation,
    Explanation,
    FusionExplanation,
    SearchResponse,
    StageName,
)
from service.telemetry import Stage, log, stage

T = TypeVar("T")

HYDRATION_SHARE = 0.2
"""Part of the time that the legs may not use: an answer that nobody can read is none."""
HYDRATION_SECONDS = 0.5
EMBEDDING_SHARE = 0.7
MAX_POOL = 4000
MAX_ATTEMPTS = 3
FAILURES = (TimeoutError, UnavailableError, ProviderError)


class NoEmbedderError(ProviderError):
    """The collection turns no text into vectors, and the query brought none."""


class SearchServices(msgspec.Struct, frozen=True):
    """What a search needs from the process it runs in."""

    database: Database
    embedders: EmbedderSource
    corpus: CorpusCache
    shares: FilterShares = msgspec.field(default_factory=FilterShares)


class Legs(msgspec.Struct, frozen=True):
    """The candidates of the legs that answered, those under a threshold left out."""

    found: Mapping[Leg, list[Candidate]]
    exhausted: bool
    """No leg has more to give."""
    lexical: LexicalAnswer | None


async def search_collection(
    services: SearchServices, collection: Collection, request: SearchRequest
) -> SearchResponse:
    """Answer a search within its `timeout_ms`.

    Raises `InvalidRequestError` for a request that has no meaning on this collection, and
    `UnavailableError` when no leg could answer.
    """
    return await _Search(services, plan_search(request, collection)).run()


class _Search:
    """One search: its deadline, its stages, and what it had to leave out."""

    def __init__(self, services: SearchServices, plan: SearchPlan) -> None:
        self._services = services
        self._plan = plan
        self._started = time.perf_counter()
        self._seconds = plan.request.timeout_ms / 1000
        self._vector: Vector | None = plan.vector
        self._stages: dict[StageName, dict[str, Any]] = {}
        self._degraded: dict[StageName, str] = {}
        self._best: dict[str, float] = {}
        self._ranks: dict[int, int] = {}

    async def run(self) -> SearchResponse:
        for _ in range(MAX_ATTEMPTS):
            legs, rule, selection = await self._select()
            presented = await self._present(legs, selection)
            # What was replaced or deleted since the legs ran is asked for again as it is now.
            if presented.complete:
                break
        return self._respond(legs, rule, selection, presented)

    async def _select(self) -> tuple[Legs, FusionRule | None, Selection]:
        """Run and fuse the legs; a pool with too few documents or chunks is doubled."""
        plan, limit = self._plan, self._plan.pool
        choose = select_documents if plan.request.group_by == "document" else select_chunks
        while True:
            legs = await self._legs(limit)
            rule, fused = self._fuse(legs)
            selection = choose(fused, plan.request.k, plan.per_document)
            done = selection.filled or legs.exhausted or limit >= MAX_POOL
            if done or self._legs_time() <= 0:
                break
            limit = min(2 * limit, MAX_POOL)
        if plan.request.explain:
            self._ranks = {one.candidate.row: rank for rank, one in enumerate(fused, 1)}
        return legs, rule, await self._diversified(fused, selection)

    async def _diversified(self, fused: list[Fused], selection: Selection) -> Selection:
        """Choose again for diversity, if that is asked for; the selection stands if it fails."""
        plan, diversity = self._plan, self._plan.request.diversity
        if diversity is None or not selection.hits:
            return selection
        grouped = plan.request.group_by == "document"
        pool = capped(fused, plan.per_document)
        first = leaders(pool, grouped=grouped)

        async def run(stage: Stage) -> list[int]:
            generation = plan.collection.generation
            async with self._services.database.read(generation.team_id) as connection:
                rows = [one.candidate.row for one in first]
                stored = await stored_vectors(connection, generation.id, rows)
            stage.facts["candidates"] = len(first)
            stage.facts["without_vector"] = len(first) - len(stored)
            scores, vectors = [one.score for one in first], [stored.get(row) for row in rows]
            return await asyncio.to_thread(
                diversify, scores, vectors, plan.request.k, diversity.lambda_
            )

        places = await self._attempt("diversity", self._legs_time(), run)
        if places is None:
            return selection
        picked = [first[place] for place in places]
        hits = of_documents(pool, picked) if grouped else picked
        return msgspec.structs.replace(selection, hits=hits)

    def _fuse(self, legs: Legs) -> tuple[FusionRule | None, list[Fused]]:
        plan = self._plan
        if plan.mode != "hybrid":
            return None, single_leg(*next(iter(legs.found.items())))
        rule = choose_rule(
            plan.method,
            plan.weights,
            plan.rrf_k,
            identifier_query=legs.lexical is not None and legs.lexical.rare_identifier,
        )
        return rule, fuse(legs.found, rule)

    async def _legs(self, limit: int) -> Legs:
        """Both legs at once, each on its own connection; the lexical one awaits no embedding."""
        plan = self._plan
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
        if not found:
            reasons = ", ".join(f"{name} {why}" for name, why in self._degraded.items())
            raise UnavailableError(f"no leg of the search could answer: {reasons}")
        kept = {leg: self._passing(leg, candidates) for leg, candidates in found.items()}
        exhausted = all(
            len(found[leg]) < limit or len(kept[leg]) < len(found[leg]) for leg in found
        )
        return Legs(kept, exhausted, lexical)

    async def _lexical(self, query: CandidateQuery) -> LexicalAnswer | None:
        if self._plan.mode == "vector":
            return None
        services = self._services

        async def run(stage: Stage) -> LexicalAnswer:
            answer = await lexical_leg(services.database, services.corpus, self._plan, query)
            stage.facts["pool"] = query.limit
            stage.facts["candidates"] = len(answer.candidates)
            stage.facts["terms_used"] = len(answer.weights)
            stage.facts["exact"] = answer.exact
            stage.facts["path"] = answer.path
            return answer

        return await self._attempt("lexical", self._legs_time(), run)

    async def _dense(self, query: CandidateQuery) -> list[Candidate] | None:
        if self._plan.mode == "text":
            return None
        if self._vector is None:
            self._vector = await self._attempt(
                "embed", EMBEDDING_SHARE * self._legs_time(), self._embed
            )
        vector = self._vector
        if vector is None:
            self._stages["dense"] = {"status": "skipped", "ms": 0.0}
            return None

        services = self._services

        async def run(stage: Stage) -> list[Candidate]:
            answer = await dense_leg(services.database, services.shares, self._plan, query, vector)
            stage.facts["pool"] = query.limit
            stage.facts["candidates"] = len(answer.candidates)
            stage.facts["method"] = answer.method
            if answer.ef_search is not None:
                stage.facts["ef_search"] = answer.ef_search
            return answer.candidates

        return await self._attempt("dense", self._legs_time(), run)

    async def _embed(self, _stage: Stage) -> Vector:
        embedder = await self._services.embedders.get(self._plan.collection.generation)
        if embedder is None:
            raise NoEmbedderError("the collection has no embedder")
        return await embedder.embed_query(self._plan.text or "")

    async def _attempt(
        self, name: StageName, seconds: float, work: Callable[[Stage], Awaitable[T]]
    ) -> T | None:
        """Run one stage within `seconds`; a failure degrades the answer and is named in it."""
        current: Stage | None = None
        try:
            with stage(name) as current:
                async with asyncio.timeout(seconds):
                    return await work(current)
        except FAILURES as error:
            reason = _reason(error)
            self._degraded[name] = reason
            log.warning(
                "search stage failed", stage=name, reason=reason, error=type(error).__name__
            )
            return None
        finally:
            if current is not None:
                self._record(name, current)

    def _record(self, name: StageName, done: Stage) -> None:
        earlier = self._stages.get(name, {}).get("ms", 0.0)
        spent = round(earlier + done.ms, 2)
        self._stages[name] = {"status": done.status, "ms": spent, **done.facts}

    def _passing(self, leg: Leg, candidates: list[Candidate]) -> list[Candidate]:
        least = getattr(self._plan.request.min_score, leg)
        if least is None:
            return candidates
        if candidates:
            self._best[leg] = candidates[0].score
        return [one for one in candidates if one.score >= least]

    async def _present(self, legs: Legs, selection: Selection) -> Presented:
        weights = legs.lexical.weights if legs.lexical else {}
        try:
            with stage("hydrate") as current:
                async with asyncio.timeout(self._remaining()):
                    asked = Asked(weights, self._vector, self._ranks)
                    services = self._services
                    return await present(
                        services.database, services.corpus, self._plan, selection.hits, asked
                    )
        except TimeoutError as error:
            raise UnavailableError("the answer could not be read in time") from error
        finally:
            self._record("hydrate", current)

    def _remaining(self) -> float:
        return self._seconds - (time.perf_counter() - self._started)

    def _legs_time(self) -> float:
        reserve = min(HYDRATION_SHARE * self._seconds, HYDRATION_SECONDS)
        return self._remaining() - reserve

    def _respond(
        self, legs: Legs, rule: FusionRule | None, selection: Selection, presented: Presented
    ) -> SearchResponse:
        plan = self._plan
        grouped = plan.request.group_by == "document"
        abstained = not selection.hits and bool(self._best)
        return SearchResponse(
            mode=plan.mode,
            exhausted=not selection.filled and legs.exhausted,
            abstained=abstained,
            degraded=[Degradation(name, why) for name, why in self._degraded.items()],
            stages=self._stages,
            took_ms=round((time.perf_counter() - self._started) * 1000, 2),
            hits=msgspec.UNSET if grouped else presented.hits,
            documents=presented.documents if grouped else msgspec.UNSET,
            best_score=self._best if abstained else msgspec.UNSET,
            explain=_explanation(rule) if plan.request.explain else msgspec.UNSET,
        )


def _reason(error: BaseException) -> str:
    if isinstance(error, NoEmbedderError):
        return "no embedder"
    return "timeout" if isinstance(error, TimeoutError) else "error"


def _explanation(rule: FusionRule | None) -> Explanation:
    if rule is None:
        return Explanation(fusion=None)
    rrf_k = rule.rrf_k if rule.method == "rrf" else None
    return Explanation(FusionExplanation(rule.method, rule.weights, rrf_k, rule.reason))
