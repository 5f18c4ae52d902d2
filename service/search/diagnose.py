"""Why is this document not in the answer? Runs what it takes to tell."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated

import msgspec

from service.db.candidates import CandidateQuery
from service.db.dense import exact_candidates
from service.db.diagnosis import (
    DocumentState,
    RecordState,
    document_of_chunk,
    document_state,
    record_states,
)
from service.db.hydrate import impacts
from service.errors import InvalidRequestError, ProviderError
from service.models import Candidate, Collection, Condition, Vector
from service.search.dense import dense_leg
from service.search.diagnosis import (
    ORDER,
    WORDS,
    Diagnosis,
    DocumentDiagnosis,
    Findings,
    LegRun,
    QueryDiagnosis,
    Reason,
    diagnose_record,
    furthest,
)
from service.search.filters import conjuncts
from service.search.fusion import DEFAULT_RRF_K, Fused, FusionRule, Leg, fuse, single_leg
from service.search.legs import SearchServices
from service.search.lexical import lexical_leg
from service.search.pipeline import search_collection
from service.search.request import Expand, Query, SearchPlan, SearchRequest, plan_search
from service.search.response import SearchResponse

WIDE = (1_000, 10_000)
"""Candidates that a leg is asked for to find the rank of what its pool does not hold."""
MAX_SHOWN = 20
LEGS: tuple[Leg, ...] = ("dense", "lexical")
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=600)]
RunLeg = Callable[[CandidateQuery], Awaitable[Sequence[Candidate]]]


class Ways(msgspec.Struct, frozen=True):
    """How a leg is run: as the search does, and so that nothing is passed by."""

    as_searched: RunLeg
    thorough: RunLeg


class DiagnoseRequest(SearchRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search, and what is looked for in its answer: a document, a record, or both."""

    doc_id: Id | None = None
    id: Id | None = None


async def diagnose(
    services: SearchServices, collection: Collection, request: DiagnoseRequest
) -> Diagnosis:
    """Say of a document's records how far each came, and what kept it from going on.

    The search is run as it was asked, then each leg with the same pool, with a wider one, and on
    the document alone.
    """
    if request.doc_id is None and request.id is None:
        raise InvalidRequestError.at("/doc_id", "is required, or `id`")
    for pointer, given in (("/doc_id", request.doc_id), ("/id", request.id)):
        if "\x00" in (given or ""):
            raise InvalidRequestError.at(pointer, "holds a NUL")
    plan = plan_search(request, collection, hybrid=services.hybrid_for(collection.team_id))
    return await _Diagnose(services, plan, request).run()


class _Diagnose:
    def __init__(
        self, services: SearchServices, plan: SearchPlan, request: DiagnoseRequest
    ) -> None:
        self._services = services
        self._plan = plan
        self._request = request
        self._generation = plan.collection.generation
        self._conditions = conjuncts(request.filter or {})
        self._vector: Vector | None = None
        self._weights: Mapping[str, float] = {}

    async def run(self) -> Diagnosis:
        doc_id, state, records = await self._look_up()
        self._vector = await self._embed()
        answer = await search_collection(self._services, self._plan.collection, self._as_searched())
        runs = await self._run_legs(answer, doc_id, {one.row for one in records})
        found = Findings(
            plan=self._plan,
            answer=answer,
            doc_id=doc_id,
            runs=runs,
            weights=self._weights,
            impacts=await self._impacts([one.row for one in records]),
            fused=self._fuse(answer, runs),
            pointers=[pointer for pointer, _ in self._conditions],
        )
        shown = sorted(
            (diagnose_record(found, one) for one in records),
            key=lambda one: (-ORDER[one.reason], one.position, one.id),
        )
        reason = furthest([one.reason for one in shown]) if shown else _absence(state)
        return Diagnosis(
            doc_id=doc_id,
            id=self._request.id,
            reason=reason,
            detail=WORDS[reason],
            document=_document(state, len(records)),
            query=self._query(runs),
            degraded=answer.degraded,
            records=shown[:MAX_SHOWN],
        )

    async def _look_up(self) -> tuple[str, DocumentState | None, list[RecordState]]:
        generation, given = self._generation, self._request.id or ""
        doc_id = self._request.doc_id
        async with self._services.database.read(generation.team_id) as connection:
            if doc_id is None:
                doc_id = await document_of_chunk(connection, generation, given)
                # A record that is not there yet: chunks made here are named after their document.
                doc_id = doc_id or given.rpartition("::")[0] or given
            conditions = [condition for _, condition in self._conditions]
            records = await record_states(
                connection, generation, doc_id, self._request.id, conditions
            )
        async with self._services.database.write(generation.team_id) as connection:
            state = await document_state(connection, generation, doc_id)
        return doc_id, state, records

    async def _embed(self) -> Vector | None:
        plan = self._plan
        if plan.mode == "text" or plan.vector is not None:
            return plan.vector
        try:
            embedder = await self._services.embedders.get(self._generation)
            return await embedder.embed_query(plan.text or "") if embedder else None
        except ProviderError:
            return None  # the search meets the same trouble, and its answer names it

    def _as_searched(self) -> SearchRequest:
        """The search without what only makes its answer longer."""
        request = self._request
        query = request.query
        if self._vector is not None and self._plan.mode == "hybrid":
            query = Query(query.text, self._vector.tolist())
        return msgspec.structs.replace(
            request,
            query=query,
            expand=Expand(),
            highlight=False,
            explain=True,
            consistency="strong",
        )

    async def _run_legs(
        self, answer: SearchResponse, doc_id: str, rows: set[int]
    ) -> dict[Leg, LegRun]:
        ways: dict[Leg, Ways] = {
            "dense": Ways(self._dense, self._every_vector),
            "lexical": Ways(self._lexical, self._lexical),
        }
        asked = [leg for leg in LEGS if leg in answer.stages]
        runs = await asyncio.gather(
            *(self._run_leg(answer.stages[leg], ways[leg], doc_id, rows) for leg in asked)
        )
        return dict(zip(asked, runs, strict=True))

    async def _run_leg(
        self, stage: Mapping[str, object], ways: Ways, doc_id: str, rows: set[int]
    ) -> LegRun:
        pool = stage.get("pool")
        if stage["status"] != "ok" or not isinstance(pool, int):
            return LegRun(str(stage["status"]))
        query = self._candidate_query(pool)
        candidates = await ways.as_searched(query)
        alone = msgspec.structs.replace(
            self._candidate_query(WIDE[-1]),
            scope="both",
            filter=Condition("doc_id", "eq", doc_id),
            per_document=None,
        )
        scores = {one.row: one.score for one in await ways.thorough(alone) if one.row in rows}
        limit, wide = pool, candidates
        for limit in WIDE if scores else ():
            wider = msgspec.structs.replace(query, limit=limit, per_document=None)
            wide = await ways.thorough(wider)
            if len(wide) < limit or scores.keys() <= {one.row for one in wide}:
                break
        return LegRun("ok", pool, candidates, wide, limit, scores)

    def _candidate_query(self, limit: int) -> CandidateQuery:
        return CandidateQuery(
            generation_id=self._generation.id,
            scope=self._plan.request.scope,
            filter=self._plan.filter,
            limit=limit,
            per_document=self._plan.per_document,
        )

    async def _dense(self, query: CandidateQuery) -> Sequence[Candidate]:
        assert self._vector is not None
        services = self._services
        found = await dense_leg(services.database, services.shares, self._plan, query, self._vector)
        return found.candidates

    async def _every_vector(self, query: CandidateQuery) -> Sequence[Candidate]:
        assert self._vector is not None
        async with self._services.database.read(self._generation.team_id) as connection:
            return await exact_candidates(connection, query, self._vector)

    async def _lexical(self, query: CandidateQuery) -> Sequence[Candidate]:
        services = self._services
        found = await lexical_leg(services.database, services.corpus, self._plan, query)
        self._weights = found.weights or self._weights
        return found.candidates

    async def _impacts(self, rows: Sequence[int]) -> Mapping[int, Mapping[int, float]]:
        if not self._weights or not rows:
            return {}
        async with self._services.database.read(self._generation.team_id) as connection:
            return await impacts(connection, self._generation.id, rows)

    def _fuse(self, answer: SearchResponse, runs: Mapping[Leg, LegRun]) -> list[Fused]:
        """The fused list of the search: the same candidates by the same rule."""
        passing = {
            leg: [one for one in run.candidates if one.score >= self._least(leg)]
            for leg, run in runs.items()
            if run.status == "ok"
        }
        rule = answer.explain.fusion if answer.explain else None
        if rule is None:
            return [one for leg, found in passing.items() for one in single_leg(leg, found)]
        rrf_k = rule.rrf_k or DEFAULT_RRF_K
        return fuse(
            passing,
            FusionRule(rule.method, rule.weights, rrf_k, rule.reason, lowest=rule.lowest),
        )

    def _least(self, leg: Leg) -> float:
        least: float | None = getattr(self._plan.request.min_score, leg)
        return float("-inf") if least is None else least

    def _query(self, runs: Mapping[Leg, LegRun]) -> QueryDiagnosis:
        return QueryDiagnosis(
            mode=self._plan.mode,
            language=self._generation.language,
            analyzer=self._generation.analyzer,
            lexemes=dict(self._weights),
            pools={leg: run.pool for leg, run in runs.items()},
        )


def _absence(state: DocumentState | None) -> Reason:
    if state is None:
        return "unknown"
    if state.status == "pending":
        return "pending"
    return "failed" if state.status == "error" else "no_record"


def _document(state: DocumentState | None, records: int) -> DocumentDiagnosis:
    if state is None:
        return DocumentDiagnosis("unknown", None, None, waiting=False, records=records)
    return DocumentDiagnosis(
        state.status, state.failure_reason, state.language, state.waiting, records
    )
