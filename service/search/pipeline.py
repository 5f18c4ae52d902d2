"""`search_collection`, the one way in for every caller: legs, fusion, grouping, hydration."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from service.db.hydrate import contextualized_texts
from service.db.pool import Database
from service.db.replicas import ReplicaLostError
from service.db.vectors import stored_vectors
from service.errors import UnavailableError
from service.models import Candidate, Collection, Vector
from service.search.diversity import diversify, leaders, side_by_side
from service.search.fusion import NO_EVIDENCE, Fused, FusionRule, Leg, choose_rule, fuse, single_leg
from service.search.grouping import (
    Selection,
    capped,
    of_documents,
    select_chunks,
    select_documents,
)
from service.search.legs import CollectionLegs, Legs, QueryVectors, SearchServices
from service.search.measured import measured
from service.search.merging import Part, Space, is_whole, merge_parts, own_scores, space_of
from service.search.present import Asked, Presented, Shown, arrange, show
from service.search.progress import Deadline, Progress
from service.search.report import combined_stages, explain_rule, named, report_part
from service.search.request import SearchPlan, SearchRequest, plan_search, plan_searches
from service.search.rerank import (
    RerankPlan,
    passing,
    question,
    relevance_of,
    reorder,
    texts_of,
)
from service.search.response import SearchResponse
from service.search.together import together
from service.search.words import pool_words
from service.telemetry import Stage, log, stage

MAX_POOL = 4000
MAX_ATTEMPTS = 3


async def search_collection(
    services: SearchServices, collection: Collection, request: SearchRequest
) -> SearchResponse:
    """Answer a search within its `timeout_ms`.

    Raises `InvalidRequestError` for a request that has no meaning on this collection, and
    `UnavailableError` when no leg could answer.
    """
    hybrid = services.hybrid_for(collection.team_id)
    return await _answer(services, [plan_search(request, collection, hybrid=hybrid)])


async def search_collections(
    services: SearchServices, collections: Sequence[Collection], request: SearchRequest
) -> SearchResponse:
    """Answer one search over several collections, as `search_collection` does for one.

    A collection in which nothing could answer degrades the answer.
    """
    hybrid = services.hybrid_for(collections[0].team_id)
    return await _answer(services, plan_searches(request, collections, hybrid=hybrid))


async def _answer(services: SearchServices, plans: Sequence[SearchPlan]) -> SearchResponse:
    search = _Search(services, plans)
    replicas = services.replicas
    if replicas is not None and plans[0].request.consistency != "strong":
        replica = await replicas.choose([plan.collection for plan in plans])
        if replica is not None:
            try:
                return await search.on(replica).run()
            except ReplicaLostError:
                log.warning("a replica was lost in a search, asking the primary")
    return await search.run()


class _Search:
    """One search: its collections, its stages, and what came of them."""

    def __init__(
        self,
        services: SearchServices,
        plans: Sequence[SearchPlan],
        deadline: Deadline | None = None,
        vectors: QueryVectors | None = None,
    ) -> None:
        self._services = services
        self._plans = plans
        self._plan = plans[0]
        """For what is the same in all collections."""
        self._deadline = deadline or Deadline(self._plan.request.timeout_ms / 1000)
        self._progress = Progress(self._deadline)
        if self._plan.missed is not None:
            self._progress.degrade(self._plan.missed, "off by flag")
        self._vectors = vectors or QueryVectors(services.embedders, self._plan.text)
        self._collections = [
            CollectionLegs(services, plan, self._vectors, self._deadline) for plan in plans
        ]
        self._places = asyncio.Semaphore(max(1, services.database.readers // 2))
        """Collections at work at the same time: each takes a connection for each of two legs."""
        self._home: dict[int, int] = {}
        """Collection of each candidate."""
        self._ranks: dict[int, int] = {}
        self._exhausted = False
        """Nothing more is to be found, and nothing that was found is left out."""
        self._best_rerank: float | None = None

    def on(self, server: Database) -> "_Search":
        """The same search with all its statements on another server, due at the same time."""
        services = msgspec.structs.replace(self._services, database=server)
        return _Search(services, self._plans, self._deadline, self._vectors)

    async def run(self) -> SearchResponse:
        with measured(self._plan.mode, self._parts_of_progress):
            return await self._run()

    def _parts_of_progress(self) -> list[Progress]:
        return [*(collection.progress for collection in self._collections), self._progress]

    async def _run(self) -> SearchResponse:
        for _ in range(MAX_ATTEMPTS):
            legs, rule, selection = await self._select()
            presented = await self._present(legs, selection)
            # What was replaced or deleted since the legs ran is asked for again as it is now.
            if presented.complete:
                break
        return self._respond(legs, rule, selection, presented)

    async def _select(self) -> tuple[list[Legs], FusionRule | None, Selection]:
        """Run and fuse the legs; a pool with too few documents or chunks is doubled."""
        plan, limit = self._plan, self._plan.pool
        choose = select_documents if plan.request.group_by == "document" else select_chunks
        while True:
            legs = await self._legs(limit)
            parts = await self._parts(legs)
            with stage("fusion") as fusion:
                rule, fused = self._fuse(legs, merge_parts(parts, limit))
                fused = own_scores(fused, parts)
                selection = choose(fused, plan.request.k, plan.per_document)
            self._progress.fusion_seconds += fusion.ms / 1000
            self._exhausted = is_whole(parts, limit) and all(one.exhausted for one in legs)
            done = selection.filled or self._exhausted or limit >= MAX_POOL
            if done or self._deadline.for_legs() <= 0:
                break
            limit = min(2 * limit, MAX_POOL)
        if plan.request.explain:
            self._ranks = {one.candidate.row: rank for rank, one in enumerate(fused, 1)}
        reranked = await self._reranked(fused)
        if reranked is not None:
            fused = reranked
            selection = choose(fused, plan.request.k, plan.per_document)
        return legs, rule, await self._diversified(fused, selection)

    async def _legs(self, limit: int) -> list[Legs]:
        """The legs of all collections; at least one must have answered."""

        async def one(collection: CollectionLegs) -> Legs:
            async with self._places:
                return await collection.run(limit)

        legs = await together([one(collection) for collection in self._collections])
        if not any(part.found for part in legs):
            reasons = {
                f"{degraded.stage} {degraded.reason}": None
                for collection in self._collections
                for degraded in collection.progress.degraded
            }
            raise UnavailableError(f"no leg of the search could answer: {', '.join(reasons)}")
        if len(legs) > 1:
            self._home = {
                candidate.row: at
                for at, part in enumerate(legs)
                for candidates in part.found.values()
                for candidate in candidates
            }
        return legs

    async def _parts(self, legs: Sequence[Legs]) -> list[Part]:
        """What was found in each collection, with scores that compare between them."""
        plans = [collection.plan for collection in self._collections]
        pooled: Sequence[list[Candidate] | None] = [None] * len(plans)
        if sum(bool(one.lexical and one.lexical.candidates) for one in legs) > 1:

            async def run(_stage: Stage) -> Sequence[list[Candidate] | None]:
                return await pool_words(self._services.database, self._places, plans, legs)

            seconds = self._deadline.for_legs()
            pooled = await self._progress.attempt("rescore", seconds, run) or pooled
        return [
            Part(one.found, space_of(plan), words)
            for plan, one, words in zip(plans, legs, pooled, strict=True)
        ]

    def _fuse(
        self, legs: Sequence[Legs], found: Mapping[Leg, list[Candidate]]
    ) -> tuple[FusionRule | None, list[Fused]]:
        plan = self._plan
        if plan.mode != "hybrid":
            return None, single_leg(*next(iter(found.items())))
        evidence = (one.lexical.evidence for one in legs if one.lexical)
        best = max(evidence, key=lambda one: one.coverage, default=NO_EVIDENCE)
        rule = choose_rule(plan.method, plan.weights, plan.rrf_k, best)
        return rule, fuse(found, rule)

    async def _reranked(self, fused: list[Fused]) -> list[Fused] | None:
        """The candidates in the reranker's order; None when the fused order stands."""
        plan, least = self._plan.rerank, self._plan.request.min_score.rerank
        if plan is None or not fused:
            if plan is None and least is not None:
                self._progress.degrade("rerank", "off")
            return None
        read = capped(fused, self._plan.per_document)[: plan.top_n]
        seconds = min(plan.seconds, self._deadline.for_legs())

        async def run(stage: Stage) -> list[Fused] | None:
            return await self._rerank(stage, plan, fused, read)

        ranked = await self._progress.attempt("rerank", seconds, run)
        if ranked is None:
            return None
        self._best_rerank = next((one.rerank.score for one in ranked if one.rerank), None)
        return passing(ranked, least)

    async def _rerank(
        self, stage: Stage, plan: RerankPlan, fused: list[Fused], read: list[Fused]
    ) -> list[Fused] | None:
        rerankers, team_id = self._services.rerankers, self._plan.collection.team_id
        reranker = await rerankers.get(team_id, plan.provider, plan.model) if rerankers else None
        if reranker is None:
            stage.status = "skipped"
            return None
        parts = await together([self._texts(at, of) for at, of in self._by_home(read)])
        rows, texts = texts_of(
            [one.candidate.row for one in read],
            {row: text for part in parts for row, text in part.items()},
        )
        stage.facts["candidates"] = len(texts)
        if not texts:
            return None
        asked = question(self._plan.text or "", self._plan.request.context)
        ranked = await reranker.rerank(asked, texts)
        stage.facts["ranked"] = len(ranked)
        if len(ranked) < len(texts):
            self._progress.degrade("rerank", "partial answer")
        return reorder(fused, rows, ranked)

    async def _texts(self, at: int, chosen: Sequence[Fused]) -> dict[int, str]:
        """Contextualized texts by row; the connection is given back before the model is asked."""
        generation = self._collections[at].plan.collection.generation
        async with self._places, self._services.database.read(generation.team_id) as connection:
            rows = [one.candidate.row for one in chosen]
            return await contextualized_texts(connection, generation.id, rows)

    async def _diversified(self, fused: list[Fused], selection: Selection) -> Selection:
        """Choose again for diversity, if that is asked for; the selection stands if it fails."""
        plan, diversity = self._plan, self._plan.request.diversity
        if diversity is None or not selection.hits:
            return selection
        grouped = plan.request.group_by == "document"
        pool = capped(fused, plan.per_document)
        first = leaders(pool, grouped=grouped)

        async def run(stage: Stage) -> list[int]:
            parts = await together([self._stored(at, of) for at, of in self._by_home(first)])
            stored = side_by_side(parts)
            stage.facts["candidates"] = len(first)
            stage.facts["without_vector"] = len(first) - len(stored)
            scores = relevance_of(first)
            vectors = [stored.get(one.candidate.row) for one in first]
            return await asyncio.to_thread(
                diversify, scores, vectors, plan.request.k, diversity.lambda_
            )

        places = await self._progress.attempt("diversity", self._deadline.for_legs(), run)
        if places is None:
            return selection
        picked = [first[place] for place in places]
        hits = of_documents(pool, picked) if grouped else picked
        return msgspec.structs.replace(selection, hits=hits)

    async def _stored(self, at: int, chosen: Sequence[Fused]) -> tuple[Space, dict[int, Vector]]:
        plan = self._collections[at].plan
        generation = plan.collection.generation
        async with self._places, self._services.database.read(generation.team_id) as connection:
            rows = [one.candidate.row for one in chosen]
            return space_of(plan), await stored_vectors(connection, generation.id, rows)

    async def _present(self, legs: Sequence[Legs], selection: Selection) -> Presented:
        try:
            with stage("hydrate") as current:
                async with asyncio.timeout(self._deadline.remaining()):
                    parts = await together(
                        [
                            self._show(at, legs[at], chosen)
                            for at, chosen in self._by_home(selection.hits)
                        ]
                    )
        except TimeoutError as error:
            raise UnavailableError("the answer could not be read in time") from error
        finally:
            self._progress.record("hydrate", current)
        grouped = self._plan.request.group_by == "document"
        return arrange(selection.hits, parts, grouped=grouped)

    async def _show(self, at: int, legs: Legs, chosen: Sequence[Fused]) -> Shown:
        collection, services = self._collections[at], self._services
        weights = legs.lexical.weights if legs.lexical else {}
        asked = Asked(weights, collection.vector, self._ranks)
        async with self._places:
            return await show(services.database, services.corpus, collection.plan, chosen, asked)

    def _by_home(self, chosen: Iterable[Fused]) -> list[tuple[int, list[Fused]]]:
        """The candidates of each collection that has any."""
        if len(self._collections) == 1:
            return [(0, list(chosen))]
        homes: dict[int, list[Fused]] = {}
        for one in chosen:
            homes.setdefault(self._home[one.candidate.row], []).append(one)
        return list(homes.items())

    def _respond(
        self,
        legs: Sequence[Legs],
        rule: FusionRule | None,
        selection: Selection,
        presented: Presented,
    ) -> SearchResponse:
        plan = self._plan
        grouped = plan.request.group_by == "document"
        best: dict[str, float] = {}
        for collection in self._collections:
            for leg, score in collection.best.items():
                best[leg] = max(score, best.get(leg, score))
        if plan.request.min_score.rerank is not None and self._best_rerank is not None:
            best["rerank"] = self._best_rerank
        abstained = not selection.hits and bool(best)
        parts = [collection.progress for collection in self._collections]
        names = [collection.plan.shown_name for collection in self._collections]
        return SearchResponse(
            mode=plan.mode,
            exhausted=not selection.filled and self._exhausted,
            abstained=abstained,
            degraded=[
                *(
                    one
                    for part, name in zip(parts, names, strict=True)
                    for one in named(part, name)
                ),
                *self._progress.degraded,
            ],
            stages={**combined_stages(parts), **self._progress.stages},
            took_ms=self._deadline.spent_ms,
            hits=msgspec.UNSET if grouped else presented.hits,
            documents=presented.documents if grouped else msgspec.UNSET,
            best_score=best if abstained else msgspec.UNSET,
            explain=explain_rule(rule) if plan.request.explain else msgspec.UNSET,
            collections={
                name: report_part(part, one.exhausted)
                for name, part, one in zip(names, parts, legs, strict=True)
                if name is not msgspec.UNSET
            }
            or msgspec.UNSET,
        )
