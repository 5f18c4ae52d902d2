"""The search request, its bounds, and the plan that it becomes on one collection."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from service.errors import InvalidRequestError
from service.models import (
    Collection,
    Filter,
    FusionMethod,
    Mode,
    RerankDefaults,
    Scope,
    SearchDefaults,
    Vector,
    Weights,
)
from service.search.filters import parse_filter
from service.search.rerank import RerankPlan, common_defaults, plan_rerank
from service.text import clean

MAX_QUERY_CHARACTERS = 32_768
HALFVEC_MAX = 65_504.0
GROUPED_CHUNKS_PER_DOCUMENT = 20
DIVERSITY_POOL = 3
"""Candidates of a leg to each hit when the hits are to differ."""

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked, as text, as a vector of the collection's dimension, or both."""

    text: Annotated[str, msgspec.Meta(max_length=MAX_QUERY_CHARACTERS)] | None = None
    vector: Annotated[list[float], msgspec.Meta(min_length=1, max_length=16_000)] | None = None


class FusionWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Share of each leg; not both 0."""

    dense: Share
    lexical: Share


class Fusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the legs become one list; what is absent comes from the collection, then `auto`.

    rrf (Cormack et al. 2009, weighted): score = sum over legs of weight / (rrf_k + rank).
    dbsf: each leg's scores scaled by its mean +- 3 standard deviations, then the weighted sum.
    """

    method: FusionMethod | None = None
    weights: FusionWeights | None = None
    rrf_k: Count | None = None
    fetch_k: Count | None = None


class Lexical(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the words of the query combine."""

    operator: Literal["or", "and", "websearch"] = "or"


class MinScore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Least score on a named scale; there is none on fused scores, which compare to nothing."""

    dense: float | None = None
    lexical: float | None = None
    rerank: float | None = None
    """Applied when the reranker has answered."""


class Rerank(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the best candidates are ranked anew; what is absent comes from the collection."""

    enabled: bool | None = None
    top_n: Count | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] | None = None


class Expand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to add to each hit from its document."""

    siblings_topk: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Other chunks of the document that fit the query best: by vector, else by BM25."""
    siblings_all: bool = False
    """All other chunks of the document in reading order: at most 1,000, and 10,000 in an answer."""
    neighbours: Annotated[int, msgspec.Meta(ge=0, le=20)] = 0
    """Chunks before and after the hit."""
    summary: bool = False


class Diversity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hits that do not repeat each other: maximal marginal relevance on the stored vectors."""

    lambda_: Share = msgspec.field(name="lambda")
    """1: by relevance alone; 0: the first by relevance, each other as unlike as can be."""


class SearchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a search; only `query` is required."""

    query: Query
    mode: Mode | None = None
    k: Count = 10
    group_by: Literal["chunk", "document"] = "chunk"
    max_chunks_per_document: Count | None = None
    scope: Scope = "chunks"
    filter: dict[str, Any] | None = None
    fusion: Fusion = Fusion()
    lexical: Lexical = Lexical()
    rerank: Rerank = Rerank()
    ef_search: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    """Candidates that an approximate vector search keeps; without, what the collection measured."""
    min_score: MinScore = MinScore()
    diversity: Diversity | None = None
    context: Annotated[str, msgspec.Meta(max_length=100_000)] | None = None
    """The last conversation turns; read by the reranker only."""
    expand: Expand = Expand()
    highlight: bool = False
    """Mark the query's words in the text of each hit."""
    explain: bool = False
    consistency: Literal["eventual", "strong"] = "eventual"
    """strong: what was published before is found, so no replica is asked."""
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = 3000


class SearchPlan(msgspec.Struct, frozen=True):
    """A request with every default filled in from its collection."""

    request: SearchRequest
    collection: Collection
    mode: Mode
    text: str | None
    vector: Vector | None
    filter: Filter | None
    method: FusionMethod | None
    weights: Weights | None
    rrf_k: int | None
    pool: int
    """Candidates that each leg fetches first."""
    per_document: int | None
    rerank: RerankPlan | None = None
    missed: Literal["dense", "lexical"] | None = None
    """The leg that was asked for by name and that a flag leaves out."""
    shown_name: str | msgspec.UnsetType = msgspec.UNSET
    """Name of the collection, where hits have to say it."""


def plan_search(
    request: SearchRequest, collection: Collection, *, hybrid: bool = True
) -> SearchPlan:
    """Check the request against the collection and fill in its defaults.

    Without `hybrid` one leg answers what would be a hybrid search: the dense one, or the lexical
    one where there is no vector to search with.
    """
    asked = request.mode or collection.search.mode
    mode = asked if hybrid else _one_leg(asked, request, [collection])
    return _plan(request, collection, asked, mode)


def _plan(request: SearchRequest, collection: Collection, asked: Mode, mode: Mode) -> SearchPlan:
    """The plan for a search that is answered in `mode`, whatever was asked for."""
    defaults = collection.search
    text = _query_text(request.query)
    _check_query(_mode_to_check(asked, mode, request), request.query, text)
    fusion = request.fusion
    if fusion.weights and fusion.weights.dense + fusion.weights.lexical == 0:
        raise InvalidRequestError.at("/fusion/weights", "must not both be 0")
    weights = (
        Weights(fusion.weights.dense, fusion.weights.lexical) if fusion.weights else None
    ) or defaults.weights
    vector = _query_vector(request.query, collection)
    if asked == "vector" and vector is None and collection.generation.provider == "none":
        raise InvalidRequestError.at(
            "/query/vector", "is required: the collection has no embedder for a text"
        )
    for leg, modes in (("dense", ("hybrid", "vector")), ("lexical", ("hybrid", "text"))):
        if getattr(request.min_score, leg) is not None and asked not in modes:
            raise InvalidRequestError.at(f"/min_score/{leg}", f"has no meaning in mode {asked}")
    rerank = _rerank_plan(request, collection.rerank) if text else None
    grouped = GROUPED_CHUNKS_PER_DOCUMENT if request.group_by == "document" else None
    return SearchPlan(
        request=request,
        collection=collection,
        mode=mode,
        text=text,
        vector=vector,
        filter=parse_filter(request.filter) if request.filter is not None else None,
        method=fusion.method or defaults.method,
        weights=weights,
        rrf_k=fusion.rrf_k or defaults.rrf_k,
        pool=max(fusion.fetch_k or defaults.fetch_k, _least_pool(request), _read_by(rerank)),
        per_document=request.max_chunks_per_document or grouped,
        rerank=rerank,
        missed=_missed(asked, mode, request),
    )


def plan_searches(
    request: SearchRequest, collections: Sequence[Collection], *, hybrid: bool = True
) -> list[SearchPlan]:
    """Plans of one search over several collections; what all of them set alike is their default.

    The mode, the rule of fusion and the first pool are one for all.
    """
    modes = {collection.search.mode for collection in collections}
    asked = request.mode or (modes.pop() if len(modes) == 1 else "hybrid")
    mode = asked if hybrid else _one_leg(asked, request, collections)
    plans = [_plan(request, collection, asked, mode) for collection in collections]
    rules = [(plan.method, plan.weights, plan.rrf_k) for plan in plans]
    if any(rule != rules[0] for rule in rules):
        plain = SearchDefaults()
        rules = [
            (plan.method, plan.weights, plan.rrf_k)
            for plan in (
                _plan(request, msgspec.structs.replace(one, search=plain), asked, mode)
                for one in collections
            )
        ]
    method, weights, rrf_k = rules[0]
    rerank = _rerank_plan(request, common_defaults(collections)) if plans[0].text else None
    pool = max(plan.pool for plan in plans)
    return [
        msgspec.structs.replace(
            plan,
            method=method,
            weights=weights,
            rrf_k=rrf_k,
            pool=pool,
            rerank=rerank,
            shown_name=plan.collection.name,
        )
        for plan in plans
    ]


def _one_leg(asked: Mode, request: SearchRequest, collections: Sequence[Collection]) -> Mode:
    """The mode that answers where no search may use both legs."""
    if asked != "hybrid":
        return asked
    embedded = any(one.generation.provider != "none" for one in collections)
    return "vector" if embedded or request.query.vector is not None else "text"


def _mode_to_check(asked: Mode, mode: Mode, request: SearchRequest) -> Mode:
    """The mode whose rules the query must keep; by default a vector alone will do as well."""
    if mode == "vector" and request.mode is None and request.query.text is None:
        return mode
    return asked


def _missed(asked: Mode, mode: Mode, request: SearchRequest) -> Literal["dense", "lexical"] | None:
    """The leg that was asked for by name and is left out."""
    if asked == mode:
        return None
    left_out: Literal["dense", "lexical"] = "lexical" if mode == "vector" else "dense"
    named = request.mode is not None or getattr(request.min_score, left_out) is not None
    return left_out if named else None


def _rerank_plan(request: SearchRequest, defaults: RerankDefaults) -> RerankPlan | None:
    asked = request.rerank
    return plan_rerank(
        defaults, enabled=asked.enabled, top_n=asked.top_n, timeout_ms=asked.timeout_ms
    )


def _read_by(rerank: RerankPlan | None) -> int:
    return rerank.top_n if rerank else 0


def _least_pool(request: SearchRequest) -> int:
    return request.k * (DIVERSITY_POOL if request.diversity else 1)


def _query_text(query: Query) -> str | None:
    if query.text is None:
        return None
    text, _ = clean(query.text)
    if not text.strip():
        raise InvalidRequestError.at("/query/text", "must not be blank")
    return text


def _check_query(mode: Mode, query: Query, text: str | None) -> None:
    if mode == "vector" and (text is None) == (query.vector is None):
        raise InvalidRequestError.at("/query", "mode vector takes exactly one of text and vector")
    if mode != "vector" and text is None:
        raise InvalidRequestError.at("/query/text", f"is required in mode {mode}")
    if mode == "text" and query.vector is not None:
        raise InvalidRequestError.at("/query/vector", "has no meaning in mode text")


def _query_vector(query: Query, collection: Collection) -> Vector | None:
    if query.vector is None:
        return None
    dim = collection.generation.dim
    if dim is None:
        raise InvalidRequestError.at("/query/vector", "the collection holds no vectors")
    if len(query.vector) != dim:
        raise InvalidRequestError.at(
            "/query/vector", f"has {len(query.vector)} dimensions, the collection has {dim}"
        )
    wide = np.asarray(query.vector, dtype=np.float64)
    if not np.isfinite(wide).all() or np.abs(wide).max() > HALFVEC_MAX:
        raise InvalidRequestError.at(
            "/query/vector", f"must hold finite numbers from -{HALFVEC_MAX:g} to {HALFVEC_MAX:g}"
        )
    vector = wide.astype(np.float32)
    if not vector.astype(np.float16).any():
        raise InvalidRequestError.at("/query/vector", "must not be zero")
    return vector
