"""What a diagnosis says, and how it is reasoned from what the legs found; pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from service.db.diagnosis import RecordState
from service.db.documents import DocumentStatus
from service.models import AnalyzerKind, Candidate, Mode, RecordType, Scope
from service.search.diversity import leaders
from service.search.fusion import Fused, Leg
from service.search.grouping import capped
from service.search.request import SearchPlan
from service.search.response import Degradation, FusedExplanation, SearchResponse
from service.text import lexeme_hash

Reason = Literal[
    "unknown",
    "pending",
    "failed",
    "no_record",
    "scope",
    "filter",
    "no_vector",
    "no_match",
    "not_run",
    "pool",
    "approximate",
    "budget",
    "document_cap",
    "min_score",
    "k",
    "rerank",
    "diversity",
    "found",
]
"""From the first hurdle of a search to its end; later is nearer to the answer."""
WORDS: Mapping[Reason, str] = {
    "unknown": "the collection has no such document",
    "pending": "the document is not indexed yet",
    "failed": "the document could not be indexed",
    "no_record": "the document has no such record, or none at all",
    "scope": "the scope of the search leaves records of this type out",
    "filter": "the filter does not hold for it",
    "no_vector": "it has no vector to compare",
    "no_match": "it holds none of the words, or not all that the operator demands",
    "not_run": "a leg that might have found it did not answer",
    "pool": "others rank before it: a leg takes only as many candidates as its pool holds",
    "approximate": "the approximate vector index passed it by",
    "budget": "it holds only common words of the query, and rows with rarer ones were enough",
    "document_cap": "other chunks of its document took the places that a document may have",
    "min_score": "its score is below the threshold",
    "k": "others rank before it: the answer ends at k",
    "rerank": "the reranker put others before it, or its score there is below the threshold",
    "diversity": "it repeats what was picked before it",
    "found": "it is in the answer",
}
ORDER: Mapping[Reason, int] = {reason: at for at, reason in enumerate(WORDS)}
SCOPE_OF: Mapping[RecordType, Scope] = {"chunk": "chunks", "summary": "summaries"}
CUT_OFF: Mapping[Leg, Reason] = {"dense": "approximate", "lexical": "budget"}
"""What a leg gives up for speed."""


class LegDiagnosis(msgspec.Struct, frozen=True):
    """What one leg makes of a record."""

    matched: bool
    """Whether the leg could find it, filter and scope aside."""
    rank: int | None
    """From 1 among all that match and are allowed; null when that is not so, or past 10,000."""
    score: float | None
    cut: Reason | None
    """Why it is no candidate of the leg; null when it is one."""
    terms: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    """Lexical only: what each lexeme of the query adds to its score."""
    missing: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Lexical only: lexemes of the query that it does not hold."""


class RecordDiagnosis(msgspec.Struct, frozen=True):
    """What a search makes of a record; `place` is its own or its document's, from 1."""

    id: str
    type: RecordType
    position: int
    reason: Reason
    place: int | None
    failed_conditions: list[str]
    """Pointers of the parts of the filter that do not hold."""
    dense: LegDiagnosis | None
    lexical: LegDiagnosis | None
    fused: FusedExplanation | None


class DocumentDiagnosis(msgspec.Struct, frozen=True):
    """Where the document stands."""

    status: DocumentStatus | Literal["unknown"]
    failure_reason: str | None
    language: str | None
    waiting: bool
    """A version of it waits to be indexed; until then the one before is searched."""
    records: int


class QueryDiagnosis(msgspec.Struct, frozen=True):
    """How the query was read."""

    mode: Mode
    language: str
    analyzer: AnalyzerKind
    lexemes: dict[str, float]
    """Weight of each: idf times its count in the query."""
    pools: dict[str, int]
    """Candidates that each leg was asked for."""


class Diagnosis(msgspec.Struct, frozen=True):
    """Why a document or record is in the answer or not."""

    doc_id: str | None
    id: str | None
    reason: Reason
    detail: str
    document: DocumentDiagnosis
    query: QueryDiagnosis
    degraded: list[Degradation]
    records: list[RecordDiagnosis]
    """Those that came furthest first, at most 20."""


class LegRun(msgspec.Struct, frozen=True):
    """One leg run three ways: as the search does, wider, and on the document alone."""

    status: str
    pool: int = 0
    candidates: Sequence[Candidate] = ()
    wide: Sequence[Candidate] = ()
    wide_limit: int = 0
    scores: Mapping[int, float] = {}
    """Of every record of the document that the leg matches, filter and scope aside."""


class Findings(msgspec.Struct, frozen=True):
    """What was found out about a search and the records that are looked for in it."""

    plan: SearchPlan
    answer: SearchResponse
    doc_id: str
    runs: Mapping[Leg, LegRun]
    weights: Mapping[str, float]
    """Of the query's lexemes: idf times their count in the query."""
    impacts: Mapping[int, Mapping[int, float]]
    """Document side of BM25 of each record, by the lexeme's position."""
    fused: Sequence[Fused]
    pointers: Sequence[str]
    """Of the conditions of the filter."""


def diagnose_record(found: Findings, record: RecordState) -> RecordDiagnosis:
    """How far a record came, and what kept it from going on."""
    barred = _barred(found.plan, record)
    legs = {leg: _diagnose_leg(found, leg, record, barred) for leg in found.runs}
    rank, fused = _fused_place(found.fused, record.row)
    place = _place(found.answer, found.doc_id, record)
    reason: Reason
    if place is not None:
        reason = "found"
    elif barred is not None:
        reason = barred
    elif fused is not None:
        reason = _after_fusion(found, fused)
    else:
        reason = furthest([leg.cut or "no_match" for leg in legs.values()])
    return RecordDiagnosis(
        id=record.id,
        type=record.type,
        position=record.position,
        reason=reason,
        place=place,
        failed_conditions=[found.pointers[at] for at in record.failed],
        dense=legs.get("dense"),
        lexical=legs.get("lexical"),
        fused=FusedExplanation(rank, fused.score) if fused else None,
    )


def furthest(reasons: Sequence[Reason]) -> Reason:
    """The reason that is nearest to the answer."""
    return max(reasons, key=ORDER.__getitem__)


def _barred(plan: SearchPlan, record: RecordState) -> Reason | None:
    if plan.request.scope not in ("both", SCOPE_OF[record.type]):
        return "scope"
    return "filter" if record.failed else None


def _diagnose_leg(
    found: Findings, leg: Leg, record: RecordState, barred: Reason | None
) -> LegDiagnosis:
    run = found.runs[leg]
    if run.status != "ok":
        return LegDiagnosis(matched=False, rank=None, score=None, cut="not_run")
    score, rank, cut = run.scores.get(record.row), None, barred
    if score is None:
        lacks_vector = leg == "dense" and not record.has_vector
        cut = "no_vector" if lacks_vector else "no_match"
    elif barred is None:
        least: float | None = getattr(found.plan.request.min_score, leg)
        rank, cut = place_in_leg(run, record.row, CUT_OFF[leg], found.plan.per_document)
        if cut is None and least is not None and score < least:
            cut = "min_score"
    held = found.impacts.get(record.row, {})
    impacts = {lexeme: held.get(lexeme_hash(lexeme)) for lexeme in found.weights}
    lexical = leg == "lexical"
    return LegDiagnosis(
        matched=score is not None,
        rank=rank,
        score=score,
        cut=cut,
        terms={one: found.weights[one] * impact for one, impact in impacts.items() if impact}
        if lexical
        else msgspec.UNSET,
        missing=[one for one, impact in impacts.items() if not impact]
        if lexical
        else msgspec.UNSET,
    )


def place_in_leg(
    run: LegRun, row: int, cut_off: Reason, per_document: int | None
) -> tuple[int | None, Reason | None]:
    """Rank of a row that may be in the leg, and why it is no candidate (None: it is one).

    `cut_off` is what the leg gives up for speed, which explains what nothing else does.
    """
    rank = _rank_of(run.candidates, row)
    if rank is not None:
        return rank, None
    rank = _rank_of(run.wide, row)
    if rank is None:
        return None, "pool" if len(run.wide) >= run.wide_limit else cut_off
    before = run.wide[: rank - 1]
    if per_document is None:
        return rank, "pool" if rank > run.pool else cut_off
    counts = Counter(one.document for one in before)
    if counts[run.wide[rank - 1].document] >= per_document:
        return rank, "document_cap"
    kept = sum(min(count, per_document) for count in counts.values())
    return rank, "pool" if kept >= run.pool else cut_off


def _rank_of(candidates: Sequence[Candidate], row: int) -> int | None:
    return next((rank for rank, one in enumerate(candidates, 1) if one.row == row), None)


def _fused_place(fused: Sequence[Fused], row: int) -> tuple[int, Fused | None]:
    found = ((rank, one) for rank, one in enumerate(fused, 1) if one.candidate.row == row)
    return next(found, (0, None))


def _after_fusion(found: Findings, fused: Fused) -> Reason:
    plan = found.plan
    kept = capped(found.fused, plan.per_document)
    if fused not in kept:
        return "document_cap"
    order = leaders(kept, grouped=plan.request.group_by == "document")
    best = {one.candidate.document for one in order[: plan.request.k]}
    near = fused in order[: plan.request.k] or (
        plan.request.group_by == "document" and fused.candidate.document in best
    )
    reranked = found.answer.stages.get("rerank", {}).get("status") == "ok"
    if reranked and (near or plan.request.min_score.rerank is not None):
        return "rerank"
    return "diversity" if near and plan.request.diversity else "k"


def _place(answer: SearchResponse, doc_id: str, record: RecordState) -> int | None:
    grouped = answer.documents or []
    hits = [[hit] for hit in answer.hits] if answer.hits else [one.chunks for one in grouped]
    wanted = (doc_id, record.type, record.id)
    for place, together in enumerate(hits, 1):
        if any((hit.doc_id, hit.type, hit.id) == wanted for hit in together):
            return place
    return None
